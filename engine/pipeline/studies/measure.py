"""The last step of an experiment: measure every run, compare, and judge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import EngineError
from ...experiments import FILE, Cell, Experiment, ExperimentResult, Measure, Point, PointResult, judge
from ...experiments.places import number_at
from ...experiments.verdict import deviation
from ...recipe import Frozen
from ...report import Report, read_report
from ...zoo.folder import Zoo
from ..run.numbers import ANALYSES
from ..sources import Sources
from ..steps import INLINED, A, Inputs, StepParams, apart, step
from ..views import view_of

if TYPE_CHECKING:
    from ..tools import StepTools


class ZooFacts(Frozen):
    """Name and digest of the zoo that an experiment is repeated on."""

    name: str
    digest: str


class ExperimentParams(StepParams):
    """Parameters of the last step of an experiment."""

    experiment: Experiment
    quick: bool
    zoo: ZooFacts
    failed: dict[str, str]  # point → why it has no run
    sources: Sources = apart()


@dataclass(frozen=True)
class RunInputs(Inputs[A]):
    """Artefacts of one run, and views on it by name."""

    run: A
    views: Mapping[str, A] = field(default_factory=dict)


@dataclass(frozen=True)
class ExperimentInputs(Inputs[A]):
    """The runs of an experiment by point and seed."""

    points: Mapping[str, Mapping[int, RunInputs[A]]] = field(default_factory=dict, metadata=INLINED)


@step(
    "experiment", label="Measuring and judging", params=ExperimentParams, inputs=ExperimentInputs, version=2, cost=0.5
)
def experiment(inputs: ExperimentInputs[Path], params: ExperimentParams, output: Path, tools: StepTools) -> None:
    """Write ``experiment.json``: every measure at every point, the findings and the verdict."""
    spec, zoo = params.experiment, params.sources.open()
    points, reports = [], {}
    asked = [point for point in spec.points if point.quick or not params.quick]
    for number, point in enumerate(asked):
        runs = inputs.points.get(point.name, {})
        reports |= {run.run: read_report(run.run) for run in runs.values()}
        points.append(measured(spec, point, runs, reports, zoo, params.failed.get(point.name, "")))
        tools.progress((number + 1) / len(asked), point.title)
    table = {point.name: point.cells for point in points}
    findings, verdict, reason = judge(spec.checks, table)
    scored = [count.evaluate for report in reports.values() for count in report.samples.values()]
    first = next(iter(reports.values()))
    result = ExperimentResult(
        name=spec.name,
        quick=params.quick,
        zoo=params.zoo.name,
        zoo_digest=params.zoo.digest,
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


def measured(
    spec: Experiment,
    point: Point,
    runs: Mapping[int, RunInputs[Path]],
    reports: Mapping[Path, Report],
    zoo: Zoo,
    failed: str,
) -> PointResult:
    """Take every measure at one point; a measure that a run does not have is left out.

    Args:
        spec: names the measures.
        point: whose state is looked at.
        runs: seed → what the run and the views on it left.
        reports: of the runs, by folder.
        zoo: gives heads.
        failed: why there is nothing, where that is so.
    """
    cells, reasons = {}, [failed] if failed else []
    for measure in spec.measures:
        try:
            values = [value_of(measure, point, run, reports[run.run], zoo) for run in runs.values()]
        except EngineError as error:
            reasons.append(str(error))
            continue
        known = tuple(value for value in values if value is not None and math.isfinite(value))
        if known and len(known) == len(runs):
            mean = math.fsum(known) / len(known)
            cells[measure.name] = Cell(values=known, mean=mean, sd=deviation(known))
    first = next(iter(runs.values()), None)
    return PointResult(
        name=point.name,
        title=point.title,
        state=point.state,
        control=point.control,
        run=first.run.name if first else "",
        seeds=tuple(runs),
        cells=cells,
        failed=" ".join(dict.fromkeys(reasons)),
    )


def value_of(measure: Measure, point: Point, run: RunInputs[Path], report: Report, zoo: Zoo) -> float | None:
    """Take one measure of one run, from its report, a view or what it left; None where the run does not have it.

    Raises:
        EngineError: there is no such analysis or view, or the view's document cannot be read.
    """
    if measure.analysis:
        if measure.analysis not in ANALYSES:
            raise EngineError(f"There is no analysis '{measure.analysis}'; there are {', '.join(ANALYSES)}.")
        return ANALYSES[measure.analysis](run.run, report, zoo, point.state, measure.params)
    place = measure.path.replace("{state}", point.state)
    if measure.view:
        return number_at(view_of(measure.view).read(run.views[measure.view]), place)
    return number_of(report, place)


def number_of(report: Report, place: str) -> float | None:
    """Return a number of a report by its place; of a table of tasks the mean over in-domain tasks that have a value."""
    found: Any = report.model_dump(mode="json", by_alias=True)
    for part in place.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, dict):
        values = [found[task] for task in report.tasks_of("in") if isinstance(found.get(task), int | float)]
        return math.fsum(values) / len(values) if values else None
    return float(found) if isinstance(found, int | float) else None
