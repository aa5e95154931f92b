"""Every part of a zoo by itself, then how the parts agree; what is wrong with one hides no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from ...errors import CheckpointError, EngineError
from ...manifest import Task
from ...types import Finding, Progress, Weights
from ...weights import check_finite, check_same_architecture, open_weights
from ..encoders.backbone import architecture, misfits, preprocessing
from ..encoders.heads import read_heads
from ..encoders.text import unreadable_prompts
from ..folder import Zoo
from ..images.readers.source import LABELLED
from ..making.prompts import sets_in_words, wish_in_words
from .agreement import agreement
from .duplicates import duplicates

SHOWN = 3  # misfits of one file that are listed


def inspect(
    zoo: Zoo,
    progress: Progress,
    *,
    models: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    values: bool = True,
) -> Iterator[Finding]:
    """Look at every part of a zoo; what is wrong with one part hides no other.

    Args:
        zoo: the opened zoo.
        progress: told what is being checked.
        models: experts and references to look at; all by default.
        tasks: tasks to look at; all by default.
        values: read every tensor and image, and classify some; False reads headers only.
    """
    manifest = zoo.manifest
    every = [*(reference.name for reference in manifest.references), *manifest.expert_table]
    chosen = [task for task in manifest.tasks if tasks is None or task.name in tasks]
    parts: list[tuple[str, Callable[[], Iterator[Finding]]]] = [("the base", lambda: _base(zoo, values))]
    parts += [
        (model, lambda model=model: _model(zoo, model, values)) for model in (every if models is None else models)
    ]
    parts += [(f"the data of {task.name}", lambda task=task: _data(zoo, task, values)) for task in chosen if task.data]
    if manifest.heads:
        parts.append(("the heads", lambda: _heads(zoo, chosen)))
    elif chosen:
        parts.append(("the text encoder", lambda: _no_heads(zoo, chosen)))
    if values:
        parts += [
            (f"{zoo.modality.many} of {task.name} that come twice", lambda task=task: duplicates(zoo, task.name))
            for task in chosen
            if task.data
        ]
        parts.append(("how models and heads agree", lambda: agreement(zoo, [task.name for task in chosen])))
    for number, (what, check) in enumerate(parts):
        progress(number / len(parts), f"Checking {what}")
        try:
            yield from check()
        except EngineError as error:
            yield Finding("error", str(error))


def _base(zoo: Zoo, values: bool) -> Iterator[Finding]:
    weights = zoo.weights("base")
    wrong = misfits(architecture(zoo.folder, zoo.manifest), weights)
    if wrong:
        more = f" And {len(wrong) - SHOWN} more." if len(wrong) > SHOWN else ""
        raise CheckpointError(
            f"The base does not fit the architecture {zoo.manifest.backbone.architecture}. {' '.join(wrong[:SHOWN])}"
            f"{more} Choose weights of this architecture, or correct `architecture`."
        )
    if values:
        check_finite(weights, "The base")
    said = zoo.modality.extent_in_words(preprocessing(zoo.folder, zoo.manifest))
    yield Finding("note", f"base: {len(weights.names)} {said}")
    if warning := zoo.modality.assumed(zoo.manifest):
        yield Finding("warning", warning)


def _model(zoo: Zoo, model: str, values: bool) -> Iterator[Finding]:
    weights = zoo.weights(model)
    kind = "Expert" if model in zoo.manifest.expert_table else "Reference"
    check_same_architecture(zoo.weights("base"), weights, model, kind)
    if values:
        check_finite(weights, f"{kind} '{model}'")
    finite = ", all finite" if values else ""
    yield Finding("note", f"{model}: {len(weights.names)} tensors of the base's shapes{finite}")
    yield from _precision(f"{kind} '{model}'", weights, zoo.weights("base"))


def _precision(owner: str, weights: Weights, base: Weights) -> Iterator[Finding]:
    """Return a model of lower precision than the base: its task vector is rounded."""
    for name in weights.names:
        own, of_base = weights.dtype(name), base.dtype(name)
        if own.itemsize < of_base.itemsize:
            yield Finding(
                "warning",
                f"{owner} is stored in {_plain(own)}, the base in {_plain(of_base)}: its differences from the base are "
                "rounded. Take the file of full precision if there is one.",
            )
            return


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _data(zoo: Zoo, task: Task, values: bool) -> Iterator[Finding]:
    data = zoo.open_data(task.name)
    if data is None:
        return
    for split in LABELLED:
        if data.has(split):
            yield from _classes(task, split, data.labels(split), zoo.modality.one)
    yield from (Finding("warning", note) for note in data.notes)
    if values:
        reasons = [reason for split in data.lengths for _, reason in data.damaged(split)]
        if reasons and task.corrupt == "skip":
            yield Finding("warning", data.skipped())
        elif reasons:
            yield Finding("error", data.refusal(sum(data.lengths.values()), reasons))
        yield from (Finding("warning", remark) for remark in data.remarks())
    counts = ", ".join(f"{count} {split}" for split, count in data.lengths.items())
    yield Finding("note", f"{task.name}: {counts} {zoo.modality.many}, {len(task.classes)} classes")


def _classes(task: Task, split: str, labels: np.ndarray, sample: str) -> Iterator[Finding]:
    present = set(np.unique(labels).tolist())
    absent = [name for number, name in enumerate(task.classes) if number not in present]
    if absent:
        listed = ", ".join(absent[:SHOWN]) + (f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else "")
        yield Finding("warning", f"Task '{task.name}': no {split} {sample} is of class {listed}.")


def _no_heads(zoo: Zoo, tasks: Sequence[Task]) -> Iterator[Finding]:
    """Say of a zoo without heads whether its text encoder can give them, and with whose prompts."""
    if zoo.text_problem:
        text = f"The zoo has no heads and none can be built: {zoo.text_problem.rstrip('.')}. Nothing will be scored."
        yield Finding("warning", text)
    elif wrong := unreadable_prompts(zoo.folder, zoo.manifest):
        level = "error" if len(zoo.data) else "warning"  # a run with images builds the heads of all tasks
        yield from (Finding(level, f"{text} Give other templates or class names, or heads.") for text in wrong)
    else:
        whose, asked = sets_in_words(tasks), zoo.manifest.templates
        whose += f" ({wish_in_words(asked, tasks)})" if asked else ""
        yield Finding("note", f"heads: built from the base's text encoder when they are needed; templates: {whose}")


def _heads(zoo: Zoo, tasks: Sequence[Task]) -> Iterator[Finding]:
    heads, warnings = {}, []
    stored = set(open_weights(zoo.path(zoo.manifest.heads)).names)
    idle = [task.name for task in tasks if task.name not in stored and not task.data]
    if idle:
        yield Finding("warning", f"No head for {', '.join(idle)}; these tasks cannot be scored.")
    for task in (task.name for task in tasks if task.name not in idle):
        try:
            found, warnings = read_heads(zoo.folder, zoo.manifest, [task])
            heads |= found
        except EngineError as error:
            yield Finding("error", str(error))
    if heads:
        yield Finding("note", f"heads: {len(heads)} tasks, scale {next(iter(heads.values())).scale:.3g}")
    yield from (Finding("warning", text) for text in warnings)
