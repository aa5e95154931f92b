"""Everything that can be wrong with a zoo, found before anything long starts, and all of it at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from ..errors import CheckpointError, EngineError, ZooError
from ..manifest import Task, locate_zoo, read_manifest
from ..types import Finding, Progress, Weights
from ..weights import check_finite, check_same_architecture
from .described.make import holding
from .described.sources import describes
from .encoders.backbone import architecture, misfits, preprocessing
from .encoders.heads import read_heads
from .folder import Zoo
from .images.data import LABELLED, corrupt_message, find_corrupt, open_task

SHOWN = 3  # misfits of one file that are listed


def check_zoo(zoo: str, progress: Progress) -> list[str]:
    """Check files, architecture, keys, shapes, values, heads and data of a zoo.

    Args:
        zoo: a bundled zoo's name or a path.
        progress: told what is being checked.

    Returns:
        One sentence for each part that is in order, or that is worth knowing.

    Raises:
        ZooError: everything that is wrong, one line each.
    """
    opened = Zoo.open(zoo)
    findings = absent(zoo) or list(inspect(opened, progress))
    faults = [finding.text for finding in findings if finding.level == "error"]
    if faults:
        number = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise ZooError("\n".join([f"The zoo '{opened.manifest.name}' has {number}:", *faults]))
    return [f"Warning: {found.text}" if found.level == "warning" else found.text for found in findings]


def absent(zoo: str) -> list[Finding]:
    """What a description lacks on this machine, all at once; nothing for a zoo whose files are there."""
    found = holding(zoo) if describes(read_manifest(locate_zoo(zoo))) else None
    if found is None:
        return []
    if not found.missing:
        return [
            Finding("error", f"The files of '{zoo}' are here, but not converted: `python -m engine zoo fetch {zoo}`.")
        ]
    sizes = [f" (about {item.about / 1e6:,.0f} MB)" if item.about else "" for item in found.missing]
    findings = [
        Finding("error", f"{item.label}: {item.source} is not on this machine{size}.")
        for item, size in zip(found.missing, sizes, strict=True)
    ]
    todo = f"`python -m engine zoo fetch {zoo}` downloads it after asking; `--from FOLDER` takes it from a folder."
    return [*findings, Finding("error", f"About {found.about / 1e9:.1f} GB and the images. {todo}")]


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
        values: read every tensor for NaN and infinities; False reads headers only.
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
        parts.append(("the heads", lambda: _heads(zoo, [task.name for task in chosen])))
    elif chosen:
        parts.append(("the text encoder", lambda: _no_heads(zoo)))
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
    size = preprocessing(zoo.folder, zoo.manifest).size
    yield Finding("note", f"base: {len(weights.names)} visual tensors that fit the architecture, images of {size} px")


def _model(zoo: Zoo, model: str, values: bool) -> Iterator[Finding]:
    weights = zoo.weights(model)
    check_same_architecture(zoo.weights("base"), weights, model)
    if values:
        check_finite(weights, f"Expert '{model}'")
    finite = ", all finite" if values else ""
    yield Finding("note", f"{model}: {len(weights.names)} tensors of the base's shapes{finite}")
    yield from _precision(f"Expert '{model}'", weights, zoo.weights("base"))


def _precision(owner: str, weights: Weights, base: Weights) -> Iterator[Finding]:
    """An expert of lower precision than the base: its task vector is rounded."""
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
    data = open_task(zoo.folder, task)
    for split in LABELLED:
        if data.has(split):
            yield from _classes(task, split, data.labels(split))
    yield from (Finding("warning", note) for note in data.notes)
    if values:
        reasons = [reason for split in data.lengths for _, reason in find_corrupt(data, split)]
        if reasons and task.corrupt == "skip":
            yield Finding("warning", data.skipped())
        elif reasons:
            yield Finding("error", corrupt_message(task, sum(data.lengths.values()), reasons))
    counts = ", ".join(f"{count} {split}" for split, count in data.lengths.items())
    yield Finding("note", f"{task.name}: {counts} images, {len(task.classes)} classes")


def _classes(task: Task, split: str, labels: np.ndarray) -> Iterator[Finding]:
    present = set(np.unique(labels).tolist())
    absent = [name for number, name in enumerate(task.classes) if number not in present]
    if absent:
        listed = ", ".join(absent[:SHOWN]) + (f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else "")
        yield Finding("warning", f"Task '{task.name}': no {split} image is of class {listed}.")


def _no_heads(zoo: Zoo) -> Iterator[Finding]:
    """Where a zoo brings no heads, its text encoder gives them, or nothing can be scored."""
    if zoo.text_problem:
        text = f"The zoo has no heads and none can be built: {zoo.text_problem.rstrip('.')}. Nothing will be scored."
        yield Finding("warning", text)
    else:
        yield Finding("note", "heads: built from the base's text encoder and the templates when they are needed")


def _heads(zoo: Zoo, tasks: Sequence[str]) -> Iterator[Finding]:
    heads, warnings = {}, []
    width = architecture(zoo.folder, zoo.manifest)["embed_dim"]
    for task in tasks:
        try:
            found, warnings = read_heads(zoo.folder, zoo.manifest, [task])
            if found[task].weight.shape[1] != width:
                raise ZooError(
                    f"The head of '{task}' takes features of {found[task].weight.shape[1]} dimensions; the backbone "
                    f"makes {width}. Choose heads of this architecture."
                )
            heads |= found
        except EngineError as error:
            yield Finding("error", str(error))
    if heads:
        yield Finding("note", f"heads: {len(heads)} tasks, scale {next(iter(heads.values())).scale:.3g}")
    yield from (Finding("warning", text) for text in warnings)
