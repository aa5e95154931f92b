"""Numbers of a point with the values by image behind them, so that differences can be paired and resampled."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel
from safetensors.numpy import load_file

from ...analysis.bias import BY_IMAGE
from ...errors import RecipeError, nearest
from ...experiments import Experiment, Measure, Point, Rights, Side, accuracy_side
from ...experiments.places import number_at
from ...report import Averages, Report
from ...zoo.folder import Zoo
from ..run.numbers import ANALYSES, Units
from ..viewing.by_image import values_at
from ..views import view_of

GROUPS = "groups of experts"  # the units of a view that takes them in turn
BIAS = re.compile(r"^bias\.\{state\}\.(?P<kind>[a-z0-9]+)$")


@dataclass(frozen=True)
class RunAt:
    """A finished run of a point."""

    seed: int
    group: tuple[str, ...]  # experts whose turn it is
    folder: Path
    report: Report
    views: Mapping[str, Path] = field(default_factory=dict)
    choice: float | None = None  # its accuracy on the images that are tuned on
    values: tuple[Any, ...] = ()  # of the places that are tuned
    kept: float | None = None  # share of the pretrained model's accuracy on validation images of other tasks


@dataclass(frozen=True)
class Taken:
    """A measure taken at a point."""

    values: tuple[float, ...]  # one a seed
    units: tuple[Units | None, ...] = ()  # one a seed: values by image, where there are some


def check_measures(spec: Experiment) -> None:
    """Refuse measures that no run could have, before hours are spent.

    Raises:
        RecipeError: there is no such analysis, it takes other parameters, or a report has no such place.
    """
    for measure in spec.measures:
        try:
            if measure.analysis and measure.analysis not in ANALYSES:
                raise RecipeError(f"There is no analysis '{measure.analysis}'. {nearest(measure.analysis, ANALYSES)}")
            if measure.analysis:
                ANALYSES[measure.analysis].parse(measure.params)
            elif not measure.view:
                _check_place(measure.path)
        except RecipeError as error:
            raise RecipeError(f"{spec.name}, {measure.title}: {error}") from error


def _check_place(path: str) -> None:
    """Refuse a place whose beginning, or whose kind of average, no report has."""
    first, *rest = path.split(".")
    asked: list[tuple[str, type[BaseModel]]] = [(first, Report)]
    asked += [(kind, Averages) for kind in rest[1:2] if first == "average"]
    for name, model in asked:
        known = [field.alias or own for own, field in model.model_fields.items()]
        if name not in known:
            raise RecipeError(f"A report has nothing at '{path}'. {nearest(name, known)}")


def by_seed(runs: Sequence[RunAt]) -> dict[int, list[RunAt]]:
    """Return runs by training seed: one for every group of experts, in order."""
    found: dict[int, list[RunAt]] = {}
    for run in runs:
        found.setdefault(run.seed, []).append(run)
    return found


def take(measure: Measure, point: Point, runs: Sequence[RunAt], zoo: Zoo) -> Taken | None:
    """Take a measure of every seed, the mean over groups of experts; None where a run does not have it.

    Raises:
        EngineError: there is no such analysis or view, or its document cannot be read.
    """
    values, units = [], []
    for parts in by_seed(runs).values():
        found = [value_of(measure, point, run, zoo) for run in parts]
        if any(value is None or not math.isfinite(value) for value, _ in found):
            return None
        values.append(math.fsum(value for value, _ in found) / len(found))
        if measure.view and len(found) > 1:  # no values by image: groups of experts are the units
            units.append({GROUPS: np.array([value for value, _ in found])})
            continue
        images = [by_image for _, by_image in found]
        whole = {
            (f"{group}#{'+'.join(run.group)}" if run.group else group): entries
            for run, by_image in zip(parts, images, strict=True)
            for group, entries in (by_image or {}).items()
        }
        units.append(whole if None not in images else None)
    return Taken(tuple(values), tuple(units)) if values else None


def value_of(measure: Measure, point: Point, run: RunAt, zoo: Zoo) -> tuple[float | None, Units | None]:
    """Take one measure of one run, from its report, a view or what it left, with the values by image behind it.

    Raises:
        EngineError: there is no such analysis or view, or the view's document cannot be read.
    """
    if measure.analysis:
        found = ANALYSES[measure.analysis](run.folder, run.report, zoo, point.state, measure.params)
        if isinstance(found, dict):
            return math.fsum(float(values.mean()) for values in found.values()) / len(found), found
        return found, None
    place = measure.path.replace("{state}", point.state)
    if measure.view:
        document = view_of(measure.view).read(run.views[measure.view])
        return number_at(document, place), values_at(document, place)
    match = BIAS.match(measure.path)
    by_image = _distances(run, point.state, match["kind"]) if match and match["kind"] in BY_IMAGE else None
    return number_of(run.report, place), by_image


def number_of(report: Report, place: str) -> float | None:
    """Return a number of a report by its place; of a table of tasks the mean over in-domain tasks that have a value."""
    found: Any = report.model_dump(mode="json", by_alias=True)
    for part in place.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, dict):
        values = [found[task] for task in report.tasks_of("in") if isinstance(found.get(task), int | float)]
        return math.fsum(values) / len(values) if values else None
    return float(found) if isinstance(found, int | float) else None


def rights_of(point: Point, runs: Sequence[RunAt]) -> Rights | None:
    """Return which evaluation images a point's state classifies rightly, seed by seed; None where nothing is scored."""
    inside: dict[str, list[np.ndarray]] = {}
    outside: dict[str, list[np.ndarray]] = {}
    seeds = by_seed(runs)
    for parts in seeds.values():
        for number, run in enumerate(parts):
            for task, right in _right(run, point.state).items():
                domain = run.report.tasks[task].domain
                name = task if len(parts) == 1 else f"{task}#{number}"
                if domain != "shifted":
                    (inside if domain == "in" else outside).setdefault(name, []).append(right)
    whole = [{name: rows for name, rows in side.items() if len(rows) == len(seeds)} for side in (inside, outside)]
    if not any(whole):
        return None
    probe = runs[0].report.recipe.probe
    images = f"{probe.protocol}, {probe.samples_per_task} of a task, split {probe.split_seed}"
    stacked = [{name: np.stack(rows) for name, rows in side.items()} for side in whole]
    return Rights.of(stacked[0], stacked[1], images)


def side_of(measure: Measure, point: Point, taken: Taken, rights: Rights | None) -> Side | None:
    """Return a measure's values by image, of accuracies from which images were right; None where it has none."""
    mean = math.fsum(taken.values) / len(taken.values)
    if measure.path and not measure.view and rights is not None:
        side = accuracy_side(rights, measure.path.replace("{state}", point.state), point.state, mean)
        if side is not None:
            return side
    if not taken.units or any(units is None for units in taken.units):
        return None
    images = rights.images if rights else ""
    first = taken.units[0] or {}
    names = [name for name in first if all(name in (units or {}) for units in taken.units)]
    parts = {f"{name} of {images}": np.stack([(u or {})[name] for u in taken.units]) for name in names}
    return Side(mean, parts, "groups" if names == [GROUPS] else "images")


def _right(run: RunAt, state: str) -> dict[str, np.ndarray]:
    """Read which evaluation images are right, by task, in the order of their features."""
    file = run.folder / "samples.parquet"
    if not file.is_file():
        return {}
    table = pd.read_parquet(file, columns=["task", "state", "split", "label", "prediction"])
    rows = table[(table["state"] == state) & (table["split"] == "evaluate")]
    right = rows["prediction"] == rows["label"]
    tasks = run.report.tasks
    return {
        task: right[part.index].to_numpy()
        for task, part in rows.groupby("task", sort=False)
        if not tasks[str(task)].graded
    }


def _distances(run: RunAt, state: str, kind: str) -> Units | None:
    """Return every image's distance to the expert's feature, by in-domain task."""
    file = run.folder / "features.safetensors"
    if not file.is_file():
        return None
    features, found = load_file(file), {}
    for task in run.report.tasks_of("in"):
        names = f"{state}/{task}/evaluate", f"expert/{task}/evaluate"
        if all(name in features for name in names):
            found[task] = BY_IMAGE[kind](*(features[name] for name in names))
    return found or None
