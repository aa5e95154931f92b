"""Views on weights: requests, the steps that answer them, and how their results are read. Free of torch at import."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field
from safetensors.numpy import load_file, save_file

from ...errors import MergeError, RecipeError, StoreError
from ...recipe import Recipe, Request

if TYPE_CHECKING:
    from ...types import Weights
    from ...zoo.folder import Zoo
    from ..steps import StepTools

Part = Literal["geometry", "spectra"]
PRETRAINED, MERGED = "pretrained", "merged"
BESIDE = ("geometry.safetensors", "geometry.json")


class WeightsRequest(Request):
    """What is to be measured of a recipe's experts and of their merge."""

    REFUSAL = "The weights cannot be measured"

    recipe: Recipe
    part: Part = "geometry"


class InterpolationRequest(Request):
    """Which two models a path leads between, and where it is looked at."""

    REFUSAL = "The path cannot be computed"

    recipe: Recipe
    start: str = PRETRAINED
    end: str = MERGED
    points: int = Field(11, ge=3, le=101, title="Points", description="Models on the path, both ends included.")
    images: int = Field(
        200, ge=2, le=100_000, title="Images a task", description="At most; drawn evenly over classes, as in a run."
    )

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> InterpolationRequest:
        """Validate a request.

        Raises:
            RecipeError: naming the place at fault.
        """
        request = super().parse(document)
        if request.start == request.end:
            raise RecipeError(f"The path starts and ends at '{request.start}'. Choose two different models.")
        return request

    @property
    def alphas(self) -> list[float]:
        """Positions on the path, from 0 to 1."""
        return [number / (self.points - 1) for number in range(self.points)]


def merge_only(recipe: Recipe) -> Recipe:
    """A recipe without what does not touch weights, so that runs with other calibrators share a view."""
    return recipe.model_copy(update={"calibrators": (), "seeds": recipe.seeds[:1]})


@dataclass(frozen=True, eq=False)
class Measured:
    """What a view on weights left: names and arrays."""

    document: dict[str, Any]
    arrays: dict[str, np.ndarray]


def read_view(folder: Path, name: str) -> Measured:
    """Read ``geometry``, ``kept`` or ``spectra`` from a view's folder.

    Raises:
        StoreError: it is not there or damaged.
    """
    try:
        document = json.loads((folder / f"{name}.json").read_text("utf-8"))
        return Measured(document, load_file(folder / f"{name}.safetensors"))
    except (OSError, ValueError) as error:
        raise StoreError(f"What was measured of the weights cannot be read ({error}). Measure it again.") from error


def geometry(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Measure the experts' task vectors; writes ``geometry.safetensors`` and ``geometry.json``."""
    from ...analysis.weights import geometry as measure
    from ...weights import LazyTaskVectors

    base, experts = _models(params)
    vectors = LazyTaskVectors(base, experts)
    save_file(measure(base, vectors, tools.progress).arrays(), output / "geometry.safetensors")
    _write(output, "geometry", vectors.names, vectors.experts)


def kept(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Compare the merged vector with the experts'; writes ``kept.*`` and the experts' geometry beside it."""
    import torch

    from ...analysis.weights import kept as compare
    from ...weights import LazyTaskVectors

    base, experts = _models(params)
    vectors = LazyTaskVectors(base, experts)
    merged = {expert: _merged(params, Path(inputs["merge"]), base, expert) for expert in experts}

    def vector(name: str, expert: str) -> torch.Tensor:
        return merged[expert].tensor(name).float().sub_(base.tensor(name).float())

    save_file(compare(vectors, vector, tools.progress).arrays(), output / "kept.safetensors")
    _write(output, "kept", vectors.names, vectors.experts)
    for name in BESIDE:
        (output / name).write_bytes((Path(inputs["geometry"]) / name).read_bytes())


def spectra(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Singular values of every matrix of every expert's task vector, and of the merged one; ``spectra.*``.

    An array is called ``MODEL/LAYER``; a merge with weights of its own for each task has no merged spectrum.
    """
    from ...analysis.weights import singular_values
    from ...weights import LazyTaskVectors

    base, experts = _models(params)
    vectors = LazyTaskVectors(base, experts)
    static = _kind(Path(inputs["merge"])) == "static"
    merged = _merged(params, Path(inputs["merge"]), base, next(iter(experts))) if static else None
    matrices = [name for name in vectors.names if len(vectors.shape(name)) == 2]
    models = [*experts, *([MERGED] if merged else [])]
    arrays = {}
    for number, (name, model) in enumerate((name, model) for name in matrices for model in models):
        tools.progress(number / (len(matrices) * len(models)), f"Spectrum of {name}")
        if model == MERGED:
            matrix = merged.tensor(name).float().sub_(base.tensor(name).float())
        else:
            matrix = vectors.vector(name, model)
        arrays[f"{model}/{name}"] = singular_values(matrix)
    if not arrays:
        raise MergeError("The zoo's models have no matrices, so there are no spectra.")
    save_file(arrays, output / "spectra.safetensors")
    _write(output, "spectra", matrices, models)


def path(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """One task's accuracy and loss along the straight path between two models; writes ``path.json``.

    Every model on the path sees the same evaluation images.
    """
    import torch

    from ...analysis.interpolation import Between, accuracy_and_loss, barrier
    from ...features import choose_device, encode
    from ...recipe import Probe
    from ...zoo.encoders.backbone import architecture, load_encoder, preprocessing
    from ...zoo.folder import Zoo
    from ...zoo.images.splits import select

    zoo, task, alphas = Zoo.of(params["sources"]), params["task"], params["alphas"]
    merge = Path(inputs["merge"]) if "merge" in inputs else None
    start, end = (_model(zoo, params[side], merge) for side in ("start", "end"))
    config, device = architecture(zoo.folder, zoo.manifest), choose_device()
    preprocess = preprocessing(zoo.folder, zoo.manifest)
    heads, warnings = zoo.heads([task])
    chosen = select(zoo.data[task], Probe.model_validate(params["probe"]))
    rows = chosen.test[chosen.evaluate_rows]
    images, labels = zoo.data[task].images("test", rows), zoo.data[task].labels("test")[rows]
    values = []
    for place, alpha in enumerate(alphas):
        tools.progress(place / len(alphas), f"{task}, model {place + 1} of {len(alphas)}")
        encoder = load_encoder(config, Between(start, end, alpha))
        features = encode(encoder, images, preprocess, device, lambda *_: tools.check())
        values.append(accuracy_and_loss(features, heads[task], torch.as_tensor(labels).long()))
    accuracy, loss = (list(column) for column in zip(*values, strict=True))
    document = {"accuracy": accuracy, "loss": loss, "barrier": barrier(alphas, loss), "warnings": warnings}
    document |= {"images": len(rows), "available": chosen.available}
    (output / "path.json").write_text(json.dumps(document))


def interpolation(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Put the paths of all tasks together; writes ``interpolation.json``."""
    tasks = {task: json.loads((Path(inputs[task]) / "path.json").read_text("utf-8")) for task in params["tasks"]}
    document = {name: params[name] for name in ("start", "end", "alphas", "split_seed")}
    (output / "interpolation.json").write_text(json.dumps({**document, "tasks": tasks}))


def _models(params: Mapping[str, Any]) -> tuple[Weights, dict[str, Weights]]:
    from ...weights import check_same_architecture
    from ...zoo.folder import Zoo

    zoo = Zoo.of(params["sources"])
    base = zoo.weights("base")
    experts = {name: zoo.weights(name) for name in params["experts"]}
    for name, weights in experts.items():
        check_same_architecture(base, weights, name)
    return base, experts


def _merged(params: Mapping[str, Any], folder: Path, base: Weights, expert: str) -> Weights:
    """The merged weights for an expert's task.

    Raises:
        MergeError: the merge depends on each single image, so there is no one merged vector.
    """
    from ..run.merging import load_merged

    kind = _kind(folder)
    if kind not in ("static", "per_task"):
        raise MergeError(
            "This merge makes other weights for every image, so there is no merged vector to look at. "
            "Choose a run with a static merge or one by task."
        )
    return load_merged(folder, base, params["tasks"][expert] if kind == "per_task" else None)


def _model(zoo: Zoo, name: str, merge: Path | None) -> Weights:
    if name != MERGED:
        return zoo.weights("base" if name == PRETRAINED else name)
    if merge is None or _kind(merge) != "static":
        raise MergeError(
            "This merge has no single merged model: its weights depend on the task or the image. "
            "Choose another end of the path, or a run with a static merge."
        )
    from ..run.merging import load_merged

    return load_merged(merge, zoo.weights("base"))


def _kind(folder: Path) -> str:
    return json.loads((folder / "merged.json").read_text("utf-8"))["kind"]


def _write(output: Path, name: str, layers: Any, models: Any) -> None:
    (output / f"{name}.json").write_text(json.dumps({"layers": list(layers), "models": list(models)}))
