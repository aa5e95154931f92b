"""Analyses of what one run left, by name: (its folder, its report, the zoo, a state, parameters) → a number.

Where a number is a mean over units (images, layers), an analysis returns the units' values by group, such as a task;
the number is the mean over groups of their means.
"""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, ValidationError
from safetensors.numpy import load_file

from ...analysis.accuracy import predictions, scores
from ...analysis.bias import sample_l1, sample_shift
from ...analysis.clusters import neighbours_of_own_class, silhouette
from ...analysis.layers import layers_of
from ...analysis.outliers import placements, prototype_distance, prototypes
from ...calibration import Calibrator
from ...calibration.base import load_calibrator
from ...catalog import CALIBRATORS
from ...errors import EngineError, RecipeError
from ...recipe import Frozen, explain
from ...report import Report
from ...zoo.encoders.heads import ZeroShotHead
from ...zoo.folder import Zoo

Units = dict[str, np.ndarray]  # group → a value a unit
Features = Mapping[str, np.ndarray]


class NoParams(Frozen):
    """Parameters of an analysis that takes none."""


class CurveParams(Frozen):
    """Parameters of the end of a curve."""

    column: str


class DistanceParams(Frozen):
    """Parameters of distances between features."""

    to: str  # the other state
    norm: Literal["l1", "l2"] = "l1"  # the mean over dimensions, or the Euclidean length
    domain: Literal["in", "out"] = "in"


class ClusterParams(Frozen):
    """Parameters of how well features tell classes apart."""

    # Silhouette, −1 to 1, or the percent of an image's ten nearest that are of its class.
    quantity: Literal["silhouette", "neighbours"]
    domain: Literal["in", "out"] = "in"


class LayerParams(Frozen):
    """Parameters of what is kept of layers."""

    components: tuple[str, ...] = Field(min_length=1)


class OutlierParams(Frozen):
    """Parameters of how well images of other tasks are told."""

    pairs: dict[str, str] = Field(default_factory=dict)  # out-of-domain task → in-domain task


def curve_end(folder: Path, report: Report, zoo: Zoo, state: str, params: CurveParams) -> float | None:
    """Return the last value of a calibrator's curve, e.g. accuracy on the images it was fitted to."""
    part = report.calibrators.get(state)
    if part is None or not part.curve:
        return None
    names = ("step", "loss", *part.curve_columns)[-len(part.curve[-1]) :]
    row = dict(zip(names, part.curve[-1], strict=True))
    if params.column not in row:
        raise EngineError(f"The curve has no column '{params.column}'; it has {', '.join(row)}.")
    return row[params.column]


def sigma(folder: Path, report: Report, zoo: Zoo, state: str, params: NoParams) -> float | None:
    """Return the mean predicted standard deviation over images and dimensions, in feature units."""
    table = pd.read_parquet(folder / "samples.parquet", columns=["state", "sigma"])
    values = table.loc[table["state"] == state, "sigma"].dropna()
    return float(values.mean()) if len(values) else None


def distance(folder: Path, report: Report, zoo: Zoo, state: str, params: DistanceParams) -> Units | None:
    """Return every image's distance to another state's features, on the tasks of one domain."""
    features = load_file(folder / "features.safetensors")
    norm = {"l1": sample_l1, "l2": sample_shift}[params.norm]
    found = {}
    for task in report.tasks_of(params.domain):
        names = f"{state}/{task}/evaluate", f"{params.to}/{task}/evaluate"
        if all(name in features for name in names):
            found[task] = norm(*(features[name] for name in names))
    return found or None


def clusters(folder: Path, report: Report, zoo: Zoo, state: str, params: ClusterParams) -> Units | None:
    """Measure for every image how well features tell its class apart, on the tasks of one domain."""
    features = load_file(folder / "features.safetensors")
    tasks = [task for task in report.tasks_of(params.domain) if f"{state}/{task}/evaluate" in features]
    measure = {"silhouette": silhouette, "neighbours": neighbours_of_own_class}[params.quantity]
    labels = _labels(folder, report, tasks)
    return {task: measure(features[f"{state}/{task}/evaluate"], labels[task]) for task in tasks} or None


def kept_layers(folder: Path, report: Report, zoo: Zoo, state: str, params: LayerParams) -> Units | None:
    """Return 100 for layers that the shared mask keeps at the run's η and 0 for others, of some components.

    Source: Zhang et al., 2025, arXiv:2506.09093, appendix B.11, which sorts layers into attention, MLP and other.
    """
    if state != "merged" or report.salience is None:
        return None
    kept = [
        report.salience.shared_mask[layer.column]
        for layer in layers_of(report.salience.layers)
        if layer.component in params.components
    ]
    return {", ".join(params.components): 100.0 * np.array(kept)} if kept else None


def wrong_task(folder: Path, report: Report, zoo: Zoo, state: str, params: NoParams) -> Units | None:
    """Return 100 for images that are classified rightly with the calibrator of the task after theirs, else 0."""
    swapped = _Swapped.of(folder, report, zoo, state, shared=True)
    if swapped is None:
        return None
    following = dict(zip(swapped.tasks, [*swapped.tasks[1:], swapped.tasks[0]], strict=True))
    return {task: 100.0 * swapped.right(task, other) for task, other in following.items()}


def cross_accuracy(
    folder: Path, report: Report, zoo: Zoo, state: str, *, shared: bool = False
) -> dict[str, Any] | None:
    """Return the accuracy of every in-domain task with the module of every task.

    Args:
        folder: what the run left.
        report: of the run.
        zoo: gives the heads.
        state: a calibrator.
        shared: whether one module for all tasks counts as a module of each.

    Returns:
        ``tasks``, ``accuracy`` (a row a task of images, a column a task of modules; percent) and ``uncorrected`` (by
        task); None where the calibrator cannot correct features alone or has no module by task.
    """
    swapped = _Swapped.of(folder, report, zoo, state, shared=shared)
    if swapped is None:
        return None
    tasks = swapped.tasks
    matrix = [[100 * float(np.mean(swapped.right(task, other))) for other in tasks] for task in tasks]
    plain = [100 * float(np.mean(swapped.right(task, None))) for task in tasks]
    return {"tasks": tasks, "accuracy": matrix, "uncorrected": plain}


@dataclass(frozen=True)
class _Swapped:
    """Features of a calibrator's tasks, to be corrected with any task's module."""

    module: Calibrator
    features: Features  # by task
    heads: Mapping[str, ZeroShotHead]
    labels: Features

    @classmethod
    def of(cls, folder: Path, report: Report, zoo: Zoo, state: str, *, shared: bool) -> _Swapped | None:
        """Read them; None where the calibrator cannot correct features alone, or has no module by task."""
        module = _calibrator(folder, report, state)
        if module is None or (module.shared and not shared):
            return None
        found, on = load_file(folder / "features.safetensors"), report.calibrators[state].on
        tasks = [task for task in report.tasks_of("in") if f"merged/{task}/evaluate" in found and task in module.tasks]
        features = {task: found[f"{on}/{task}/evaluate"] for task in tasks}
        return cls(module, features, zoo.heads(tasks)[0], _labels(folder, report, tasks))

    @property
    def tasks(self) -> list[str]:
        return list(self.features)

    def right(self, task: str, other: str | None) -> Bool[np.ndarray, " n"]:
        """Return which images of a task are classified rightly with another task's module; None: uncorrected."""
        given = self.features[task]
        given = given if other is None else _correct(self.module, given, other)
        return _predict(given, self.heads[task]) == self.labels[task]


def outlier_auroc(folder: Path, report: Report, zoo: Zoo, state: str, params: OutlierParams) -> Units | None:
    """Return what every image adds to the AUROC of telling out-of-domain images by the nearest prototype.

    The number is the mean over in-domain tasks; an out-of-domain image counts with its mean over the tasks. With
    ``pairs`` (out-of-domain task → in-domain task) it is the mean over these pairs instead, of which each in-domain
    task has one at most.

    Source: DeLong et al., Biometrics 44 (1988), pp. 837–845: an AUROC varies as the means of its placement values do.
    """
    near = {task: other for other, task in params.pairs.items()}
    there = outlier_parts(folder, report, zoo, state, near)
    found = {task: placements(*part.scores()) for task, part in there.items()}
    if not found or len(found) < len(near):
        return None
    if near:  # each pair has its own outliers, so that nothing is averaged over tasks
        mean = float(np.mean([inside.mean() for inside, _ in found.values()]))
        units = {}
        for task, (inside, outside) in found.items():
            units[task] = 100 * (mean + 2 * (inside - inside.mean()))
            units[near[task]] = 100 * (mean + 2 * (outside - outside.mean()))
        return units
    parts = len(found) + 1
    whole = float(np.mean([inside.mean() for inside, _ in found.values()]))
    units = {task: 100 * (whole + parts / len(found) * (inside - inside.mean())) for task, (inside, _) in found.items()}
    outside = np.mean([values for _, values in found.values()], axis=0)
    return {**units, "out of domain": 100 * (whole + parts * (outside - outside.mean()))}


@dataclass(frozen=True)
class OutlierPart:
    """Features that out-of-domain images are told by on one task, in one state."""

    known: Float[np.ndarray, "n dim"]  # the task's adaptation images
    inside: Float[np.ndarray, "m dim"]  # its evaluation images
    outside: Float[np.ndarray, "o dim"]  # images of out-of-domain tasks
    centres: Float[np.ndarray, "k dim"]  # prototypes
    classes: Int[np.ndarray, " k"]  # whose prototypes they are

    def scores(self) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " o"]]:
        """Return distances to the nearest prototype, of the task's own and of out-of-domain images."""
        return prototype_distance(self.inside, self.centres), prototype_distance(self.outside, self.centres)


def outlier_parts(
    folder: Path, report: Report, zoo: Zoo, state: str, near: Mapping[str, str] = MappingProxyType({})
) -> dict[str, OutlierPart]:
    """Return features and prototypes by in-domain task; empty where there is nothing to tell.

    Where ``near`` names an out-of-domain task for some in-domain ones, those alone are there, each with that one's
    images.

    Prototypes are the means of a task's adaptation features by predicted class (nothing here sees a label); the score
    of an image is its Euclidean distance to the nearest prototype. Out-of-domain images are corrected by the task's
    own calibrator, as they would be when they came with its images.

    Source: Wei et al., ICML 2025, appendix B.5. Departure: the distance is not named there; Euclidean on corrected
    features.
    """
    features = load_file(folder / "features.safetensors")
    module = _calibrator(folder, report, state)
    on = report.calibrators[state].on if state in report.calibrators else state
    outside = {
        task: features[f"{on}/{task}/evaluate"]
        for task in report.tasks_of("out")
        if f"{on}/{task}/evaluate" in features and (not near or task in near.values())
    }
    tasks = [
        task
        for task in report.tasks_of("in")
        if f"{on}/{task}/adapt" in features and (not near or near.get(task) in outside)
    ]
    if not outside or not tasks or (state in report.calibrators and module is None):
        return {}
    heads, _ = zoo.heads(tasks)
    found = {}
    for task in tasks:
        foreign = outside[near[task]] if near else np.concatenate(list(outside.values()))
        known, inside, others = (
            matrix if module is None else _correct(module, matrix, task)
            for matrix in (features[f"{on}/{task}/adapt"], features[f"{on}/{task}/evaluate"], foreign)
        )
        said = _predict(known, heads[task])
        found[task] = OutlierPart(known, inside, others, prototypes(known, said), np.unique(said))
    return found


def kept_coefficient(folder: Path, report: Report, zoo: Zoo, state: str, params: NoParams) -> float | None:
    """Return the mean learned coefficient over experts and the layers that are left of a run's task vectors.

    Behind a transform a layer that was dropped keeps the coefficient with which that of every expert began. Without one
    the layers are those that LwPTV keeps at its default η. As learned: LwPTV multiplies by η afterwards, which is not
    counted. None where nothing was learned.

    Source: Zhang et al., 2025, arXiv:2506.09093, appendix B.1 and Figure 8, which shows the sum over experts by layer.
    """
    details, salience = report.merged.details, report.salience
    layers = tuple(details.get("layers") or ())
    if state != "merged" or salience is None or not layers or layers != salience.layers:
        return None
    values = np.array(list(details["coefficients"].values()), dtype=float)
    kept = (values != values[0]).any(axis=0) if report.recipe.transforms else np.array(salience.shared_mask)
    return float(values[:, kept].mean()) if kept.any() else None


def normalised(folder: Path, report: Report, zoo: Zoo, state: str, params: NoParams) -> Units | None:
    """Return 100 / (accuracy of the task's expert) for each evaluation image that the state classifies rightly, else 0.

    The mean over tasks of their means is the normalised accuracy in percent. Experts are evaluated as the run evaluates
    its merge. None where an expert is never right.

    Source: Ortiz-Jimenez et al., NeurIPS 2023, arXiv:2305.12827, Section 2.
    """
    file = folder / "samples.parquet"
    if not file.is_file():
        return None
    table = pd.read_parquet(file, columns=["task", "state", "split", "label", "prediction"])
    table["right"] = table["prediction"] == table["label"]
    tasks = [task for task in report.tasks_of("in") if not report.tasks[task].graded]
    scored = table[(table["split"] == "evaluate") & table["task"].isin(tasks)]
    right = {
        who: dict(list(scored[scored["state"] == who].groupby("task", sort=False)["right"]))
        for who in (state, "expert")
    }
    experts = {task: float(rows.mean()) for task, rows in right["expert"].items()}
    if not right[state] or not all(experts.get(task) for task in right[state]):
        return None
    return {task: 100 * rows.to_numpy(dtype=float) / experts[task] for task, rows in right[state].items()}


@dataclass(frozen=True)
class Analysis:
    """An analysis with what its parameters may be."""

    function: Callable[..., float | Units | None]
    params: type[Frozen]

    def parse(self, given: Mapping[str, Any]) -> Frozen:
        """Return parameters as the function takes them.

        Raises:
            RecipeError: one is missing, unknown or of another kind.
        """
        try:
            return self.params.model_validate(dict(given))
        except ValidationError as error:
            raise RecipeError(explain(error, self.params)) from error

    def __call__(
        self, folder: Path, report: Report, zoo: Zoo, state: str, params: Mapping[str, Any]
    ) -> float | Units | None:
        """Carry it out."""
        return self.function(folder, report, zoo, state, self.parse(params))


ANALYSES: dict[str, Analysis] = {
    "kept_coefficient": Analysis(kept_coefficient, NoParams),
    "kept_layers": Analysis(kept_layers, LayerParams),
    "clusters": Analysis(clusters, ClusterParams),
    "normalised": Analysis(normalised, NoParams),
    "curve_end": Analysis(curve_end, CurveParams),
    "sigma": Analysis(sigma, NoParams),
    "distance": Analysis(distance, DistanceParams),
    "wrong_task": Analysis(wrong_task, NoParams),
    "outlier_auroc": Analysis(outlier_auroc, OutlierParams),
}


def _calibrator(folder: Path, report: Report, state: str) -> Calibrator | None:
    """Return a calibrator that corrects features alone; None for other states and calibrators inside the encoder."""
    if state not in report.calibrators or CALIBRATORS[report.calibrators[state].method].deep:
        return None
    return load_calibrator(folder / "calibrators" / f"{state}.safetensors")


def _correct(module: Calibrator, features: np.ndarray, task: str) -> np.ndarray:
    with torch.no_grad():
        return module.correct(torch.from_numpy(np.ascontiguousarray(features)), task).numpy()


def _predict(features: np.ndarray, head: ZeroShotHead) -> np.ndarray:
    return predictions(scores(features, head))


def _labels(folder: Path, report: Report, tasks: list[str]) -> dict[str, np.ndarray]:
    """Return labels of the evaluation images, in the order of their features, whichever state has them."""
    table = pd.read_parquet(folder / "samples.parquet", columns=["task", "state", "label", "split"])
    chosen = table[(table["state"] == "pretrained") & (table["split"] == "evaluate")]
    return {task: rows["label"].to_numpy() for task, rows in chosen.groupby("task") if task in tasks}
