"""Views on a run that look at single images: what every state says of each, and which belong to no task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from safetensors.numpy import load_file

from ...analysis.accuracy import logits, probabilities
from ...analysis.bias import sample_shift
from ...analysis.outliers import auroc, plane_of
from ...analysis.spread import spread_of
from ...calibration.base import load_calibrator
from ...errors import RecipeError
from ...report import Report, read_report
from ...zoo.folder import Zoo
from .numbers import OutlierPart, outlier_parts

if TYPE_CHECKING:
    from ..steps import StepTools

TOP = 5
SHOWN = 300  # images of a side on the map of prototypes


def predictions(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """The five likeliest classes of every in-domain evaluation image in every state.

    Writes ``predictions.parquet``: task, index, state, rank (from 1), label, probability, and ``shift``, the Euclidean
    distance of the image's feature to the expert's.
    """
    folder, zoo = Path(inputs["bundle"]), Zoo.of(params["sources"])
    report = read_report(folder)
    features = load_file(folder / "features.safetensors")
    rows = pd.read_parquet(folder / "samples.parquet", columns=["task", "index", "split", "state"])
    rows = rows[(rows["state"] == "merged") & (rows["split"] == "evaluate")]
    tasks = [task for task in report.tasks_of("in") if f"expert/{task}/evaluate" in features]
    heads, _ = zoo.heads(tasks)
    frames = []
    for number, task in enumerate(tasks):
        tools.progress(number / len(tasks), task)
        index, expert = rows.loc[rows["task"] == task, "index"].to_numpy(), features[f"expert/{task}/evaluate"]
        for state in report.states():
            found = features.get(f"{state}/{task}/evaluate")
            if found is not None:
                said = logits(found, heads[task].weight.numpy(), heads[task].scale)
                frames.append(_likeliest(said, index, sample_shift(found, expert)).assign(task=task, state=state))
    if not frames:
        raise RecipeError("The experts' tasks have no evaluation images, so there is none to look at.")
    pd.concat(frames, ignore_index=True).to_parquet(output / "predictions.parquet", index=False, compression="zstd")


def _likeliest(said: np.ndarray, index: np.ndarray, shift: np.ndarray) -> pd.DataFrame:
    """A row an image and rank."""
    chances = probabilities(said)
    order = np.argsort(-said, axis=1, kind="stable")[:, :TOP]
    ranks = order.shape[1]
    return pd.DataFrame(
        {
            "index": np.repeat(index, ranks),
            "rank": np.tile(np.arange(1, ranks + 1), len(index)),
            "label": order.ravel(),
            "probability": np.take_along_axis(chances, order, axis=1).ravel(),
            "shift": np.repeat(shift, ranks),
        }
    )


def coverage(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """What calibrators that predict a spread say of the residual, against the residual itself.

    The residual of an image and dimension is z − μ − z_expert; σ is what was predicted for it. On evaluation images.
    Writes ``coverage.json``: state → task → what :func:`engine.analysis.spread.spread_of` finds.
    """
    folder = Path(inputs["bundle"])
    report = read_report(folder)
    features, found = load_file(folder / "features.safetensors"), {}
    for number, (state, part) in enumerate(report.calibrators.items()):
        tools.progress(number / len(report.calibrators), state)
        module = load_calibrator(folder / "calibrators" / f"{state}.safetensors")
        if not hasattr(module, "sigma"):
            continue
        for task in report.tasks_of("in"):
            names = f"{part.on}/{task}/evaluate", f"expert/{task}/evaluate"
            if all(name in features for name in names):
                given, expert = (torch.from_numpy(features[name]) for name in names)
                with torch.no_grad():
                    residual = (module.correct(given, task) - expert).numpy()
                    spread = module.sigma(given, task).numpy()
                found.setdefault(state, {})[task] = spread_of(spread, residual)
    if not found:
        raise RecipeError("No calibrator of this run predicts a spread. Add ProbSurgery to the recipe.")
    (output / "coverage.json").write_text(json.dumps(found))


def outliers(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Distances to class prototypes, of a task's own and of out-of-domain images, and a map of them.

    Writes ``scores.parquet`` (state, task, outside, score), ``map.parquet`` (state, task, kind, class, x, y: prototypes
    and up to 300 images of a side in the plane in which the task's own features spread most) and ``outliers.json``:
    ``auroc`` (state → task → percent) and ``plane`` (state → task → percent of the variance that the plane has).
    """
    folder, zoo = Path(inputs["bundle"]), Zoo.of(params["sources"])
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
    states = [state for state in report.states() if state not in ("expert", "multitask")]
    for number, state in enumerate(states):
        tools.progress(number / len(states), state)
        for task, part in outlier_parts(folder, report, zoo, state).items():
            yield state, task, part


def _places(part: OutlierPart, seed: int) -> tuple[pd.DataFrame, float]:
    """Prototypes and images in the plane of the task's own features."""
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
