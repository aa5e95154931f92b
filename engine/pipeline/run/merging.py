"""Steps on weights: the merge itself, and the salience of every layer."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import field_serializer

from ...catalog import MERGE_METHODS, TRANSFORMS, row_of
from ...errors import CheckpointError
from ...merging.apply import merge as merge_experts
from ...merging.lwptv import salience as layer_salience
from ...preparation import Preparation
from ...recipe import MethodCall, Probe
from ...types import Merged, PerSample, PerTask, Static, Weights
from ...weights import LazyTaskVectors, check_finite, check_same_architecture, open_weights, write_weights
from ...weights.families import family_warnings, moved
from ...weights.files import Memory
from ...zoo.encoders.backbone import build_encoder, forward_with, load_encoder
from ...zoo.folder import Zoo
from ...zoo.metadata import describe_model, header_text
from ..sources import Sources
from ..steps import A, Inputs, NoInputs, StepParams, apart, step
from .context import MergeContext

if TYPE_CHECKING:
    from ..tools import StepTools

KINDS: dict[type, str] = {Static: "static", PerTask: "per_task", PerSample: "per_sample"}


class SalienceParams(StepParams):
    """Parameters of the salience step."""

    experts: tuple[tuple[str, float], ...]  # names with their weights
    digests: dict[str, str]  # of the weights, by the expert's name and ``base``
    sources: Sources = apart()


class MergeParams(SalienceParams):
    """Parameters of the merge step."""

    transforms: tuple[MethodCall, ...]
    merge: MethodCall
    probe: Probe | None  # None for a method that looks at no images
    seed: int  # 0 where chance plays no part
    data: dict[str, str | None] | None = None  # digests by task, for methods that look at images
    heads: str | None = None  # digest
    factors: dict[str, tuple[str, int]] | None = None  # by expert: digest of the file, seed of the start
    counted: Literal["present"] | None = None  # which tokens, where a method counts them and samples are padded
    tasks: tuple[str, ...] | None = None  # of the experts, where images are looked at or there is a model for each
    architecture: dict[str, Any] | None = None  # of the encoder, where images go through it, and their preparation
    preprocess: Preparation | None = None

    @field_serializer("probe")
    def _empty_without_images(self, probe: Probe | None) -> dict[str, Any]:
        return {} if probe is None else probe.model_dump(mode="json")


@dataclass(frozen=True)
class MergeInputs(Inputs[A]):
    """Inputs of the merge step."""

    heads: A | None = None  # where they are built, and the method reads them


def _cost(params: MergeParams) -> float:
    return 6.0 if MERGE_METHODS[params.merge.method].learns else 2.0


def _encodes(params: MergeParams) -> bool:
    """Tell whether a merge looks at images: what it does then is mostly running encoders."""
    return params.probe is not None


@step("merge", label="Merging", params=MergeParams, inputs=MergeInputs, cost=_cost, gpu=_encodes)
def merge(inputs: MergeInputs[Path], params: MergeParams, output: Path, tools: StepTools) -> None:
    """Merge a zoo's experts as a recipe says.

    Writes ``merged.safetensors`` (static) or ``parts.safetensors`` (weights per task or image), and ``merged.json``.
    """
    started = time.perf_counter()
    zoo = params.sources.open()
    base, experts = _models(zoo, params)
    names = [name for name, _ in params.experts]
    tasks = tuple(zoo.manifest.expert_table[name].task for name in names)
    probe, digests = params.probe or Probe(), params.digests
    context = MergeContext(zoo, tasks, digests, probe, params.seed, tools, dict(params.experts))
    _refuse_not_finite(base, experts, context)
    vectors = LazyTaskVectors(base, experts, weights=[weight for _, weight in params.experts])
    merged = merge_experts(base, vectors, params.transforms, params.merge, context)
    seconds = time.perf_counter() - started
    mixed = family_warnings(moved(base, {n: w for n, w in experts.items() if digests[n] != digests["base"]}))
    _save(merged, zoo, params, output, tools, seconds, mixed)


@step("salience", label="Measuring the salience of every layer", params=SalienceParams)
def salience(inputs: NoInputs[Path], params: SalienceParams, output: Path, tools: StepTools) -> None:
    """Measure the LwPTV salience of every layer for every expert; writes ``salience.json`` with scores, not masks."""
    base, experts = _models(params.sources.open(), params)
    vectors = LazyTaskVectors(base, experts)
    layers, scores = layer_salience(vectors)
    document = {
        "layers": list(layers),
        "parameters": [int(torch.Size(vectors.shape(name)).numel()) for name in layers],
        "score": {name: [float(value) for value in row] for name, row in zip(experts, scores, strict=True)},
    }
    (output / "salience.json").write_text(json.dumps(document))


def place_merged(merge: Path, folder: Path, zoo: Zoo) -> None:
    """Put a merged model into a run's folder, linked where its files describe the zoo's encoder as the zoo does now.

    Weights alone are merged once, whatever is corrected afterwards in how the zoo's samples are prepared.

    Args:
        merge: what the merge step wrote.
        folder: of the run.
        zoo: that the run is of.
    """
    document = json.loads((merge / "merged.json").read_text("utf-8"))
    old, document["model"] = document.get("model"), describe_model(zoo)
    static = document["kind"] == "static"
    if old == document["model"]:
        for name in ("merged.safetensors",) if static else ("merged/parts.safetensors", "merged/merged.json"):
            link(merge / Path(name).name, folder / name)
    elif static:
        weights = open_weights(merge / "merged.safetensors")
        write_weights(folder / "merged.safetensors", weights, metadata=_header(document))
    else:
        link(merge / "parts.safetensors", folder / "merged" / "parts.safetensors")
        (folder / "merged" / "merged.json").write_text(json.dumps(document), "utf-8")


def link(source: Path, target: Path) -> None:
    """Link a file that another artefact holds, or copy it where links are not possible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _header(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the header of merged weights that ``merged.json`` describes."""
    return header_text({**document["model"], "method": document["method"]})


def load_merged(folder: Path, base: Weights, task: str | None = None) -> Weights:
    """Return the merged model's weights, for a task where they depend on it.

    Args:
        folder: what the merge step wrote.
        base: the pretrained weights.
        task: needed for merged models whose weights depend on the task.

    Raises:
        CheckpointError: the merged model has no weights for this task, or other weights for every image.
    """
    document = json.loads((folder / "merged.json").read_text())
    if document["kind"] == "static":
        return open_weights(folder / "merged.safetensors")
    if document["kind"] == "per_sample":
        raise CheckpointError("The merged model's weights depend on the image; there are none to load by themselves.")
    tasks = document.get("tasks", [])
    if task not in tasks:
        raise CheckpointError(f"The merged model has weights for {', '.join(tasks) or 'no task'}, none for '{task}'.")
    return _rebuild(document["method"])(base, _parts(folder), task)


def load_merged_encoder(
    folder: Path, base: Weights, config: Mapping[str, Any], task: str | None = None
) -> torch.nn.Module:
    """Return the merged model as a module images → features, whatever its weights depend on.

    Args:
        folder: what the merge step wrote.
        base: the pretrained weights.
        config: the backbone's architecture.
        task: needed for merged models whose weights depend on the task.

    Raises:
        CheckpointError: the merged model has no weights for this task, or is damaged.
    """
    document = json.loads((folder / "merged.json").read_text())
    if document["kind"] != "per_sample":
        return load_encoder(config, load_merged(folder, base, task))
    forward = partial(forward_with, build_encoder(config))
    try:
        return _rebuild(document["method"])(base, _parts(folder), forward)
    except (KeyError, AttributeError) as error:
        raise CheckpointError(
            f"parts.safetensors does not hold what '{document['method']}' stores: {error}."
        ) from error


def _parts(folder: Path) -> dict[str, torch.Tensor]:
    parts = open_weights(folder / "parts.safetensors")
    return {name: parts.tensor(name) for name in parts.names}


def _rebuild(method: str) -> Callable[..., Any]:
    """Return the function beside a method's own that makes models of its parts."""
    row = row_of(MERGE_METHODS, method, "merge method")
    if row.yields == "static":
        raise CheckpointError(f"{row.title} makes one model for every input; merged.json and its parts do not agree.")
    return import_module(row.function.partition(":")[0], package=__name__.partition(".")[0]).rebuild


def _models(zoo: Zoo, params: SalienceParams) -> tuple[Weights, dict[str, Weights]]:
    base = zoo.weights("base")
    experts = {name: zoo.weights(name) for name, _ in params.experts}
    for name, weights in experts.items():
        check_same_architecture(base, weights, name)
    return base, experts


def _refuse_not_finite(base: Weights, experts: Mapping[str, Weights], context: MergeContext) -> None:
    """Check every value once per file; the store remembers which files passed."""
    for name, weights in experts.items():

        def check(name: str = name, weights: Weights = weights) -> dict[str, torch.Tensor]:
            check_finite(base, "The base")
            check_finite(weights, f"Expert '{name}'")
            return {"finite": torch.ones(1)}

        context.cached(name, "finite", {}, check)


def remarks(digests: Mapping[str, str], details: Mapping[str, Any]) -> list[str]:
    """Return warnings about a merge that was carried out all the same.

    Args:
        digests: of the weights, by the expert's name and ``base``.
        details: what the method reported.
    """
    owners: dict[str, list[str]] = {}
    for name, digest in digests.items():
        owners.setdefault(digest, []).append(name)
    found = []
    for names in owners.values():
        experts = [name for name in names if name != "base"]
        if experts and "base" in names:
            found.append(f"{_quoted(experts)}: the same weights as the base, so nothing is added. Choose other files.")
        elif len(experts) > 1:
            found.append(f"{_quoted(experts)}: the same weights, which count {len(experts)} times. Keep one of them.")
    for name, measured in details.get("transforms", {}).items():
        if measured.get("kept_layers") == 0:
            found.append(
                f"{TRANSFORMS[name].title} pruned every layer, so the merged model is the base. Lower the pruning "
                "ratio, or choose experts that differ."
            )
    return found


def _quoted(names: list[str]) -> str:
    return f"Expert{'s' if len(names) > 1 else ''} " + ", ".join(f"'{name}'" for name in names)


def _save(
    merged: Merged,
    zoo: Zoo,
    params: MergeParams,
    output: Path,
    tools: StepTools,
    seconds: float,
    more: Sequence[str],
) -> None:
    info = merged.info
    document = {
        "kind": KINDS[type(merged)],
        "method": params.merge.method,
        "needs_task_id": info.needs_task_id,
        "extra_parameters": info.extra_parameters,
        "extra_bits": info.extra_bits,
        "details": info.details,
        "warnings": [*remarks(params.digests, info.details), *more],
        "base": params.digests["base"],
        "model": describe_model(zoo),
    }
    started = time.perf_counter()
    if isinstance(merged, PerTask):
        document["tasks"] = list(merged.tasks)
    if isinstance(merged, Static):
        write_weights(output / "merged.safetensors", merged.weights, None, tools.progress, _header(document))
    else:
        write_weights(output / "parts.safetensors", Memory(dict(merged.parts)))
    document["seconds"] = round(seconds + time.perf_counter() - started, 3)
    (output / "merged.json").write_text(json.dumps(document))
