"""Views on a run that are computed when somebody asks: requests and the steps that answer them. Light to import."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from ..catalog import CALIBRATORS
from ..errors import RecipeError, StoreError
from ..recipe import Frozen, Recipe, explain

if TYPE_CHECKING:
    from .steps import StepTools

BATCH = 64
NEEDS = {"stitched": "stitching", "linearity": "stitching", "shifted": "shift"}  # analysis → the view that it reads


class DepthRequest(Frozen):
    """Whose blocks are compared with the experts', and on how many images."""

    recipe: Recipe
    images: int = Field(
        200, ge=8, le=2000, title="Images a task", description="At most; drawn from the evaluation images."
    )

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> DepthRequest:
        """Validate a request.

        Raises:
            RecipeError: naming the place at fault.
        """
        return _parsed(cls, document, "The blocks cannot be compared")


class StitchingRequest(DepthRequest):
    """Which run's states are stitched to the experts, and on how many images."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> StitchingRequest:
        """Validate a request.

        Raises:
            RecipeError: naming the place at fault.
        """
        return _parsed(cls, document, "The networks cannot be stitched")


class ShiftRequest(DepthRequest):
    """Which run's states are shown shifted images, and how many of each kind."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> ShiftRequest:
        """Validate a request.

        Raises:
            RecipeError: naming the place at fault.
        """
        return _parsed(cls, document, "The images cannot be shifted")


class FeatureViewRequest(Frozen):
    """What is to be made of a run's features."""

    recipe: Recipe
    part: Literal["outliers", "wrong_task", "predictions", "coverage"] = "outliers"

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> FeatureViewRequest:
        """Validate a request.

        Raises:
            RecipeError: naming the place at fault.
        """
        return _parsed(cls, document, "The features cannot be looked at")


def deep_only(recipe: Recipe) -> Recipe:
    """A recipe without calibrators of the output, so that runs which differ in them share a view of the blocks."""
    deep = tuple(call for call in recipe.calibrators if CALIBRATORS[call.method].deep)
    return recipe.model_copy(update={"calibrators": deep, "seeds": recipe.seeds[:1]})


def read_document(folder: Path, name: str) -> dict[str, Any]:
    """What a view left.

    Raises:
        StoreError: it is not there or damaged.
    """
    try:
        return json.loads((folder / f"{name}.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"What was computed of the run cannot be read ({error}). Compute it again.") from error


def depth(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Compare every state's block outputs with the expert's on one task; writes ``depth.json``.

    Images go through in batches, and of one model beside the expert a vector an image, block and statistic is kept.
    """
    import numpy as np

    from ..analysis.depth import bias_by_block
    from ..calibration.base import load_calibrator
    from ..calibration.stations import block_outputs
    from ..features import choose_device
    from ..recipe import Probe
    from ..zoo.backbone import architecture, load_encoder, preprocessing, to_tensor
    from ..zoo.folder import Zoo
    from ..zoo.splits import select
    from .joint import WEIGHTS, encoder_around
    from .merging import load_merged_encoder

    zoo, task, device = Zoo.of(params["sources"]), params["task"], choose_device()
    config, preprocess = architecture(zoo.folder, zoo.manifest), preprocessing(zoo.folder, zoo.manifest)
    base, merge = zoo.weights("base"), Path(inputs["merge"])
    chosen = select(zoo.data[task], Probe.model_validate(params["probe"]))
    rows = chosen.test[chosen.evaluate_rows]
    if len(rows) > params["images"]:
        picked = np.random.default_rng(params["probe"]["split_seed"]).choice(len(rows), params["images"], replace=False)
        rows = rows[np.sort(picked)]
    images = zoo.data[task].images("test", rows)
    models = {"expert": (lambda: load_encoder(config, zoo.weights(params["expert"])), None)}
    models |= {"pretrained": (lambda: load_encoder(config, base), None)}
    models |= {"merged": (lambda: load_merged_encoder(merge, base, config, task), None)}
    for name, on in params["calibrators"].items():
        folder = Path(inputs[f"calibrator/{name}"])
        around = partial(encoder_around, zoo, folder, on, merge)
        own = (folder / WEIGHTS).is_file()
        models[name] = (around if own else models[on][0], folder / "calibrator.safetensors")
    expert, states = {}, {}
    for number, (state, (encoder, file)) in enumerate(models.items()):
        report = tools.part(number / len(models), (number + 1) / len(models))

        def batches(state: str = state, report: Any = report) -> Any:
            for first in range(0, len(images), BATCH):
                report(first / len(images), f"{task}, {state}")
                yield to_tensor(images[first : first + BATCH], preprocess).to(device)

        module = load_calibrator(file).to(device) if file else None
        outputs = block_outputs(encoder().to(device), batches(), module, task)
        arrays = {name: tensor.numpy() for name, tensor in outputs.items()}
        if state == "expert":
            expert = arrays
        else:
            states[state] = bias_by_block(arrays, expert)
    document = {"states": states, "images": len(rows), "available": chosen.available, "blocks": len(expert["class"])}
    (output / "depth.json").write_text(json.dumps(document))


def depth_table(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Put the tasks together; writes ``depth.json``."""
    tasks = {task: read_document(Path(inputs[task]), "depth") for task in params["tasks"]}
    (output / "depth.json").write_text(json.dumps({"split_seed": params["split_seed"], "tasks": tasks}))


def wrong_task(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Accuracy of every task with every task's calibrator; writes ``wrong_task.json``."""
    from ..report import read_report
    from ..zoo.folder import Zoo
    from .run_analyses import cross_accuracy

    folder, zoo = Path(inputs["bundle"]), Zoo.of(params["sources"])
    report, found = read_report(folder), {}
    for number, state in enumerate(report.calibrators):
        tools.progress(number / len(report.calibrators), state)
        matrix = cross_accuracy(folder, report, zoo, state)
        if matrix is not None:
            found[state] = matrix
    if not found:
        raise RecipeError(
            "No calibrator of this run has a module for each task that corrects features alone. "
            "Add Surgery, or ProbSurgery with a module for each task."
        )
    (output / "wrong_task.json").write_text(json.dumps({"states": found}))


def _parsed(model: Any, document: Mapping[str, Any], what: str) -> Any:
    try:
        return model.model_validate(dict(document))
    except ValidationError as error:
        raise RecipeError(f"{what}: {explain(error, model)}") from error
