"""Views on a run that are computed when somebody asks: requests and the steps that answer them. Light to import."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ...catalog import CALIBRATORS
from ...errors import RecipeError, StoreError
from ...recipe import Recipe, Request

if TYPE_CHECKING:
    from ..steps import StepTools

NEEDS = {"stitched": "stitching", "linearity": "stitching", "shifted": "shift"}  # analysis → the view that it reads


class ImagesRequest(Request):
    """Which run is looked at, and on how many images."""

    recipe: Recipe
    images: int = Field(
        200, ge=8, le=2000, title="Images a task", description="At most; drawn from the evaluation images."
    )


class DepthRequest(ImagesRequest):
    """Whose blocks are compared with the experts'."""

    REFUSAL = "The blocks cannot be compared"


class StitchingRequest(ImagesRequest):
    """Which run's states are stitched to the experts."""

    REFUSAL = "The networks cannot be stitched"


class ShiftRequest(ImagesRequest):
    """Which run's states are shown shifted images."""

    REFUSAL = "The images cannot be shifted"


class FeatureViewRequest(Request):
    """What is to be made of a run's features."""

    REFUSAL = "The features cannot be looked at"

    recipe: Recipe
    part: Literal["outliers", "wrong_task", "predictions", "coverage"] = "outliers"


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


def wrong_task(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Accuracy of every task with every task's calibrator; writes ``wrong_task.json``."""
    from ...report import read_report
    from ...zoo.folder import Zoo
    from .numbers import cross_accuracy

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
