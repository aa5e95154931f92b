"""The last step of an experiment: measure every run, compare, and judge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import EngineError
from ...experiments import FILE, Cell, Experiment, ExperimentResult, Measure, Point, PointResult, judge
from ...experiments.verdict import deviation
from ...report import Report, read_report
from ...zoo.folder import Zoo
from ..views.numbers import ANALYSES
from ..views.request import NEEDS

if TYPE_CHECKING:
    from ..steps import StepTools


def experiment(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Write ``experiment.json``: every measure at every point, the findings and the verdict."""
    spec = Experiment.model_validate(params["experiment"])
    zoo = Zoo.of(params["sources"])
    points, reports = [], {}
    asked = [point for point in spec.points if point.quick or not params["quick"]]
    for number, point in enumerate(asked):
        folders = {int(seed): inputs[role] for role, seed, view in _roles(inputs, point.name) if not view}
        views = {
            (inputs[f"{point.name}/{seed}"], view): inputs[role] for role, seed, view in _roles(inputs, point.name)
        }
        reports |= {path: read_report(path) for path in folders.values()}
        failed = params["failed"].get(point.name, "")
        points.append(measured(spec, point, folders, views, reports, zoo, failed))
        tools.progress((number + 1) / len(asked), point.title)
    table = {point.name: point.cells for point in points}
    findings, verdict, reason = judge(spec.checks, table)
    scored = [count.evaluate for report in reports.values() for count in report.samples.values()]
    first = next(iter(reports.values()))
    result = ExperimentResult(
        name=spec.name,
        quick=params["quick"],
        zoo=params["zoo"]["name"],
        zoo_digest=params["zoo"]["digest"],
        protocol=first.protocol,
        split_seed=first.split_seed,
        images=(min(scored), max(scored)) if scored else None,
        points=tuple(points),
        findings=findings,
        verdict=verdict,
        reason=reason,
        seconds=round(sum(sum(report.timing_s.values()) for report in reports.values()), 1),
        environment=first.environment,
    )
    (output / FILE).write_text(result.model_dump_json(indent=1) + "\n", "utf-8")


def _roles(inputs: Mapping[str, Any], point: str) -> list[tuple[str, str, str]]:
    """Roles of a point's inputs, each with its seed and, of a view on the run, its name."""
    parts = [(role, *role.split("/")) for role in inputs]
    return [(role, seed, "".join(view)) for role, name, seed, *view in parts if name == point]


def measured(
    spec: Experiment,
    point: Point,
    folders: Mapping[int, Path],
    views: Mapping[tuple[Path, str], Path],
    reports: Mapping[Path, Report],
    zoo: Zoo,
    failed: str,
) -> PointResult:
    """Every measure at one point; a measure that a run does not have is left out.

    Args:
        spec: names the measures.
        point: whose state is looked at.
        folders: seed → what the run left.
        views: (what the run left, name of a view) → what the view left; the name is empty for the run itself.
        reports: of the runs.
        zoo: gives heads.
        failed: why there is nothing, where that is so.
    """
    cells, reasons = {}, [failed] if failed else []
    for measure in spec.measures:
        try:
            view = NEEDS.get(measure.analysis, "")
            values = [value_of(measure, point, views[path, view], reports[path], zoo) for path in folders.values()]
        except EngineError as error:
            reasons.append(str(error))
            continue
        known = tuple(value for value in values if value is not None and math.isfinite(value))
        if known and len(known) == len(folders):
            mean = math.fsum(known) / len(known)
            cells[measure.name] = Cell(values=known, mean=mean, sd=deviation(known))
    first = next(iter(folders.values()), None)
    return PointResult(
        name=point.name,
        title=point.title,
        state=point.state,
        control=point.control,
        run=first.name if first else "",
        seeds=tuple(folders),
        cells=cells,
        failed=" ".join(dict.fromkeys(reasons)),
    )


def value_of(measure: Measure, point: Point, folder: Path, report: Report, zoo: Zoo) -> float | None:
    """One measure of one run, from its folder or a view's; None where the run does not have it."""
    if measure.analysis:
        if measure.analysis not in ANALYSES:
            raise EngineError(f"There is no analysis '{measure.analysis}'; there are {', '.join(ANALYSES)}.")
        return ANALYSES[measure.analysis](folder, report, zoo, point.state, measure.params)
    return at_path(report, measure.path.replace("{state}", point.state))


def at_path(report: Report, path: str) -> float | None:
    """A number of a report by its path; of a table of tasks the mean over in-domain tasks that have a value."""
    found: Any = report.model_dump(mode="json", by_alias=True)
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, dict):
        values = [found[task] for task in report.tasks_of("in") if isinstance(found.get(task), int | float)]
        return math.fsum(values) / len(values) if values else None
    return float(found) if isinstance(found, int | float) else None
