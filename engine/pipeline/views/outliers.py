"""Outliers: images of no task told by their distance to class prototypes, and a map of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import RecipeError
from ...recipe import REFERENCE_STATES
from ..steps import step
from ..viewing.base import View, ViewRequest
from ..viewing.on_bundle import OnBundleInputs, OnBundleParams, plan_on_bundle
from ..viewing.opening import scored
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    import pandas as pd

    from ...report import Report
    from ...zoo.folder import Zoo
    from ..run.numbers import OutlierPart
    from ..run.plan import RunSteps
    from ..tools import StepTools

SHOWN = 300  # images of a side on the map of prototypes


class OutliersRequest(ViewRequest):
    """Request to tell out-of-domain images in a run's features."""

    REFUSAL = "The features cannot be looked at"


def plan(run: RunSteps, asked: OutliersRequest) -> str:
    """Plan the view on what the run left.

    Raises:
        RecipeError: the recipe's run has no features.
    """
    return plan_on_bundle(run, outliers)


@step(
    "outliers", label="Measuring distances to class prototypes", params=OnBundleParams, inputs=OnBundleInputs, version=2
)
def outliers(inputs: OnBundleInputs[Path], params: OnBundleParams, output: Path, tools: StepTools) -> None:
    """Measure distances to class prototypes, of a task's own and of out-of-domain images, and a map of them.

    Writes ``scores.parquet`` (state, task, outside, score), ``map.parquet`` (state, task, kind, class, x, y: prototypes
    and up to 300 images of a side in the plane in which the task's own features spread most) and ``outliers.json``:
    ``auroc`` (state → task → percent) and ``plane`` (state → task → percent of the variance that the plane has).
    """
    import pandas as pd

    from ...analysis.outliers import auroc
    from ...report import read_report

    folder, zoo = inputs.bundle, params.sources.open()
    report = read_report(folder)
    scores, maps = [], []
    document: dict[str, Any] = {"auroc": {}, "plane": {}}
    for state, task, part in _parts(folder, report, zoo, tools):
        inside, outside = part.scores()
        document["auroc"].setdefault(state, {})[task] = 100 * auroc(inside, outside)
        for side, values in ((False, inside), (True, outside)):
            scores.append(pd.DataFrame({"state": state, "task": task, "outside": side, "score": values}))
        places, share = _places(part, report.split_seed)
        document["plane"].setdefault(state, {})[task] = 100 * share
        maps.append(places.assign(state=state, task=task))
    if not scores:
        raise RecipeError(
            "There is nothing to tell apart: it takes out-of-domain images, and adaptation images of a task for its "
            "prototypes. Add `domain: out` tasks with data to zoo.yaml, or use another zoo."
        )
    for name, frames in (("scores", scores), ("map", maps)):
        table = pd.concat(frames, ignore_index=True)
        table.to_parquet(output / f"{name}.parquet", index=False, compression="zstd")
    (output / "outliers.json").write_text(json.dumps(document))


def _parts(folder: Path, report: Report, zoo: Zoo, tools: StepTools) -> Iterator[tuple[str, str, OutlierPart]]:
    from ..run.numbers import outlier_parts

    states = [state for state in report.states() if state not in ("expert", *REFERENCE_STATES)]
    for number, state in enumerate(states):
        tools.progress(number / len(states), state)
        for task, part in outlier_parts(folder, report, zoo, state).items():
            yield state, task, part


def _places(part: OutlierPart, seed: int) -> tuple[pd.DataFrame, float]:
    """Place prototypes and images in the plane of the task's own features."""
    import pandas as pd

    from ...analysis.outliers import plane_of

    origin, plane, share = plane_of(part.known, part.centres)
    random = np.random.default_rng(seed)
    frames = []
    for kind, features in (("own", part.inside), ("outside", part.outside), ("prototype", part.centres)):
        if kind != "prototype" and len(features) > SHOWN:
            features = features[np.sort(random.choice(len(features), SHOWN, replace=False))]
        places = (features - origin) @ plane.T
        classes = part.classes if kind == "prototype" else -1
        frames.append(pd.DataFrame({"kind": kind, "class": classes, "x": places[:, 0], "y": places[:, 1]}))
    return pd.concat(frames, ignore_index=True), share


def work(asked: OutliersRequest, sizes: Sizes) -> Work:
    """Return what the distances of all images, of no task too, to every task's prototypes take."""
    return Work(seconds=3 * sizes.scored(asked.recipe))


OUTLIERS = View("outliers", "Outliers", OutliersRequest, plan, work=work, opens=scored)
