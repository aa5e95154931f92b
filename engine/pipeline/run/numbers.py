"""Analyses of what one run left, by name: (its folder, its report, the zoo, a state, parameters) → a number."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from safetensors.numpy import load_file

from ...analysis.accuracy import logits, predictions, top1
from ...analysis.bias import l1, l2
from ...analysis.clusters import neighbours_of_own_class, silhouette
from ...analysis.layers import layers_of
from ...analysis.outliers import auroc, prototype_distance, prototypes
from ...calibration import Calibrator
from ...calibration.base import load_calibrator
from ...catalog import CALIBRATORS
from ...errors import EngineError
from ...report import Report
from ...zoo.encoders.heads import ZeroShotHead
from ...zoo.folder import Zoo

Analysis = Callable[[Path, Report, Zoo, str, Mapping[str, Any]], float | None]
Features = Mapping[str, np.ndarray]


def curve_end(folder: Path, report: Report, zoo: Zoo, state: str, params: Mapping[str, Any]) -> float | None:
    """Return the last value of a calibrator's curve in ``column``, e.g. accuracy on the images it was fitted to."""
    part = report.calibrators.get(state)
    if part is None or not part.curve:
        return None
    names = ("step", "loss", *part.curve_columns)[-len(part.curve[-1]) :]
    row = dict(zip(names, part.curve[-1], strict=True))
    if params["column"] not in row:
        raise EngineError(f"The curve has no column '{params['column']}'; it has {', '.join(row)}.")
    return row[params["column"]]


def curve_best(folder: Path, report: Report, zoo: Zoo, state: str, params: Mapping[str, Any]) -> float | None:
    """Return the largest value of a calibrator's curve in ``column``, as choosing the best evaluation reports."""
    part = report.calibrators.get(state)
    names = part.curve_columns if part else ()
    if params["column"] not in names or not part.curve:
        return None
    values = [row[names.index(params["column"])] for row in part.curve]
    return None if None in values else max(values)


def sigma(folder: Path, report: Report, zoo: Zoo, state: str, params: Mapping[str, Any]) -> float | None:
    """Return the mean predicted standard deviation over images and dimensions, in feature units."""
    table = pd.read_parquet(folder / "samples.parquet", columns=["state", "sigma"])
    values = table.loc[table["state"] == state, "sigma"].dropna()
    return float(values.mean()) if len(values) else None


def distance(folder: Path, report: Report, zoo: Zoo, state: str, params: Mapping[str, Any]) -> float | None:
    """Return the mean over tasks of the distance to another state's features (``to``), on tasks of one ``domain``.

    ``norm``: ``l1``, the mean over images and dimensions, or ``l2``, the mean Euclidean length.
    """
    features = load_file(folder / "features.safetensors")
    norm = {"l1": l1, "l2": l2}[params.get("norm", "l1")]
    found = []
    for task in report.tasks_of(params.get("domain", "in")):
        names = f"{state}/{task}/evaluate", f"{params['to']}/{task}/evaluate"
        if all(name in features for name in names):
            found.append(norm(*(features[name] for name in names)))
    return float(np.mean(found)) if found else None


def clusters(folder: Path, report: Report, zoo: Zoo, state: str, params: Mapping[str, Any]) -> float | None:
    """Measure how well features tell classes apart, mean over the tasks of one ``domain``.

    ``quantity``: ``silhouette`` (−1 to 1), or ``neighbours``, the percent of an image's ten nearest that are of its
    class.
    """
    features = load_file(folder / "features.safetensors")
    tasks = [task for task in report.tasks_of(params.get("domain", "in")) if f"{state}/{task}/evaluate" in features]
    measure = {"silhouette": silhouette, "neighbours": neighbours_of_own_class}[params["quantity"]]
    labels = _labels(folder, report, tasks)
    found = [measure(features[f"{state}/{task}/evaluate"], labels[task]) for task in tasks]
    return float(np.mean(found)) if found else None


def kept_layers(folder: Path, report: Report, zoo: Zoo, state: str, params: Mapping[str, Any]) -> float | None:
    """Return the percent of the layers of some ``components`` that the shared mask keeps at the run's η.

    Source: Zhang et al., 2025, arXiv:2506.09093, appendix B.11, which sorts layers into attention, MLP and other.
    """
    if state != "merged" or report.salience is None:
        return None
    kept = [
        report.salience.shared_mask[layer.column]
        for layer in layers_of(report.salience.layers)
        if layer.component in params["components"]
    ]
    return 100 * float(np.mean(kept)) if kept else None


def wrong_task(folder: Path, report: Report, zoo: Zoo, state: str, params: Mapping[str, Any]) -> float | None:
    """Return the in-domain accuracy when every task is corrected by the calibrator of the task after it."""
    found = cross_accuracy(folder, report, zoo, state, shared=True)
    if found is None:
        return None
    tasks, matrix = found["tasks"], found["accuracy"]
    return float(np.mean([matrix[row][(row + 1) % len(tasks)] for row in range(len(tasks))]))


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
    module = _calibrator(folder, report, state)
    if module is None or (module.shared and not shared):
        return None
    features = load_file(folder / "features.safetensors")
    tasks = [task for task in report.tasks_of("in") if f"merged/{task}/evaluate" in features and task in module.tasks]
    heads, _ = zoo.heads(tasks)
    labels = _labels(folder, report, tasks)
    on = report.calibrators[state].on
    matrix, plain = [], []
    for task in tasks:
        given = features[f"{on}/{task}/evaluate"]
        plain.append(top1(_predict(given, heads[task]), labels[task]))
        matrix.append([top1(_predict(_correct(module, given, other), heads[task]), labels[task]) for other in tasks])
    return {"tasks": tasks, "accuracy": matrix, "uncorrected": plain}


def outlier_auroc(folder: Path, report: Report, zoo: Zoo, state: str, params: Mapping[str, Any]) -> float | None:
    """Return the mean AUROC over in-domain tasks of telling out-of-domain images by the nearest prototype."""
    found = [100 * auroc(*part.scores()) for part in outlier_parts(folder, report, zoo, state).values()]
    return float(np.mean(found)) if found else None


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


def outlier_parts(folder: Path, report: Report, zoo: Zoo, state: str) -> dict[str, OutlierPart]:
    """Return features and prototypes by in-domain task; empty where there is nothing to tell.

    Prototypes are the means of a task's adaptation features by predicted class (nothing here sees a label); the score
    of an image is its Euclidean distance to the nearest prototype. Out-of-domain images are corrected by the task's
    own calibrator, as they would be when they came with its images.

    Source: Wei et al., ICML 2025, appendix B.5. Departure: the distance is not named there; Euclidean on corrected
    features.
    """
    features = load_file(folder / "features.safetensors")
    module = _calibrator(folder, report, state)
    on = report.calibrators[state].on if state in report.calibrators else state
    outside = [
        features[f"{on}/{task}/evaluate"] for task in report.tasks_of("out") if f"{on}/{task}/evaluate" in features
    ]
    tasks = [task for task in report.tasks_of("in") if f"{on}/{task}/adapt" in features]
    if not outside or not tasks or (state in report.calibrators and module is None):
        return {}
    heads, _ = zoo.heads(tasks)
    found = {}
    for task in tasks:
        known, inside, others = (
            matrix if module is None else _correct(module, matrix, task)
            for matrix in (features[f"{on}/{task}/adapt"], features[f"{on}/{task}/evaluate"], np.concatenate(outside))
        )
        said = _predict(known, heads[task])
        found[task] = OutlierPart(known, inside, others, prototypes(known, said), np.unique(said))
    return found


def kept_coefficient(folder: Path, report: Report, zoo: Zoo, state: str, params: Mapping[str, Any]) -> float | None:
    """Return the mean learned coefficient over experts and the layers that LwPTV keeps at the run's η or its default.

    As learned: LwPTV multiplies by η afterwards, which is not counted.

    Source: Zhang et al., 2025, arXiv:2506.09093, appendix B.1 and Figure 8, which shows the sum over experts by layer.
    """
    details, salience = report.merged.details, report.salience
    layers = tuple(details.get("layers") or ())
    if state != "merged" or salience is None or not layers or layers != salience.layers:
        return None
    values = np.array(list(details["coefficients"].values()), dtype=float)
    return float(values[:, list(salience.shared_mask)].mean())


ANALYSES: dict[str, Analysis] = {
    "kept_coefficient": kept_coefficient,
    "kept_layers": kept_layers,
    "clusters": clusters,
    "curve_best": curve_best,
    "curve_end": curve_end,
    "sigma": sigma,
    "distance": distance,
    "wrong_task": wrong_task,
    "outlier_auroc": outlier_auroc,
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
    return predictions(logits(features, head.weight.numpy(), head.scale))


def _labels(folder: Path, report: Report, tasks: list[str]) -> dict[str, np.ndarray]:
    """Return labels of the evaluation images, in the order of their features."""
    table = pd.read_parquet(folder / "samples.parquet", columns=["task", "state", "label", "split"])
    chosen = table[(table["state"] == "merged") & (table["split"] == "evaluate")]
    return {task: rows["label"].to_numpy() for task, rows in chosen.groupby("task") if task in tasks}
