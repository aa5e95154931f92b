"""The last step of an experiment: measure every run, compare, and judge."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ...analysis.accuracy import mean
from ...errors import EngineError, RecipeError
from ...experiments import FILE, Cell, Experiment, ExperimentResult, Point, PointResult, Side, Tuned, judge
from ...experiments.sizes import worded
from ...experiments.verdict import deviation
from ...recipe import LATER, Frozen, Sparse
from ...report import read_report
from ...zoo.folder import Zoo
from ..sources import Sources
from ..steps import INLINED, A, Inputs, StepParams, apart, step
from .sides import RunAt, by_seed, rights_of, side_of, take

if TYPE_CHECKING:
    from ..tools import StepTools


class ZooFacts(Sparse):
    """Name, digest, sizes and kind of the zoo that an experiment is repeated on."""

    name: str
    digest: str
    sizes: dict[str, int] = Field(default_factory=dict)
    kind: Annotated[str, LATER] = "image"  # of its data


class RunFacts(Frozen):
    """The place of a run among those of its point."""

    seed: int
    group: tuple[str, ...] = ()  # experts whose turn it is
    values: tuple[Any, ...] = ()  # of the places that are tuned


class ExperimentParams(StepParams):
    """Parameters of the last step of an experiment."""

    experiment: Experiment
    quick: bool
    zoo: ZooFacts
    failed: dict[str, str]  # point → why it has no run
    runs: dict[str, dict[str, RunFacts]]  # point → run
    splits: dict[str, str]  # point that is tuned → the images that choose
    sources: Sources = apart()


@dataclass(frozen=True)
class RunInputs(Inputs[A]):
    """Artefacts of one run, views on it by name, and its accuracy on the images that are tuned on."""

    run: A
    views: Mapping[str, A] = field(default_factory=dict)
    choice: A | None = None
    others: A | None = None  # its accuracy on other tasks' validation images, and the pretrained model's


@dataclass(frozen=True)
class ExperimentInputs(Inputs[A]):
    """The runs of an experiment by point and place among them."""

    points: Mapping[str, Mapping[str, RunInputs[A]]] = field(default_factory=dict, metadata=INLINED)


@step(
    "experiment", label="Measuring and judging", params=ExperimentParams, inputs=ExperimentInputs, version=8, cost=0.5
)
def experiment(inputs: ExperimentInputs[Path], params: ExperimentParams, output: Path, tools: StepTools) -> None:
    """Write ``experiment.json``: every measure at every point, the findings and the verdict."""
    spec, zoo = params.experiment, params.sources.open()
    points: list[PointResult] = []
    sides: dict[str, dict[str, Side]] = {}
    runs: dict[Path, RunAt] = {}
    asked = [point for point in spec.points if point.quick or not params.quick]
    for number, point in enumerate(asked):
        found = _runs(point, inputs, params)
        runs |= {run.folder: run for run in found}
        failed = params.failed.get(point.name, "")
        try:
            chosen, tuned = choose(point, found)
        except EngineError as error:
            chosen, tuned, failed = [], (), str(error)
        result, sides[point.name] = measured(spec, point, chosen, zoo, failed)
        split = params.splits.get(point.name, "") if tuned else ""
        title = worded(point.title, params.zoo.sizes)
        points.append(result.model_copy(update={"title": title, "tuned": tuned, "split": split}))
        tools.progress((number + 1) / len(asked), title)
    table = {point.name: point.cells for point in points}
    exact = [measure.name for measure in spec.measures if measure.exact]
    checks = [check.model_copy(update={"text": worded(check.text, params.zoo.sizes)}) for check in spec.checks]
    findings, verdict, reason = judge(checks, table, sides, exact)
    reports = [run.report for run in runs.values()]
    scored = [count.evaluate for report in reports for count in report.samples.values()]
    result = ExperimentResult(
        name=spec.name,
        form=spec.digest(),
        measured=spec.measured(),
        measures=spec.taken(),
        quick=params.quick,
        zoo=params.zoo.name,
        zoo_digest=params.zoo.digest,
        kind=params.zoo.kind,
        protocol=reports[0].protocol,
        split_seed=reports[0].split_seed,
        images=(min(scored), max(scored)) if scored else None,
        points=tuple(points),
        findings=findings,
        verdict=verdict,
        reason=reason,
        seconds=round(sum(sum(report.timing_s.values()) for report in reports), 1),
        environment=reports[0].environment,
    )
    (output / FILE).write_text(result.model_dump_json(indent=1, exclude_none=True) + "\n", "utf-8")


def _runs(point: Point, inputs: ExperimentInputs[Path], params: ExperimentParams) -> list[RunAt]:
    found = []
    for name, parts in inputs.points.get(point.name, {}).items():
        facts, choice = params.runs[point.name][name], None
        if parts.choice is not None:
            rows = json.loads((parts.choice / "choice.json").read_text())["accuracy"]
            choice = mean(rows.get(point.state, rows["merged"]).values())
        report = read_report(parts.run)
        if point.peeks and point.state in report.average:
            choice = report.average[point.state].within
        kept = _kept(parts.others / "choice.json") if parts.others is not None else None
        found.append(RunAt(facts.seed, facts.group, parts.run, report, parts.views, choice, facts.values, kept))
    return found


def _kept(file: Path) -> float | None:
    """Return the share of the pretrained model's mean accuracy that a merge leaves."""
    rows = json.loads(file.read_text())["accuracy"]
    merged, pretrained = (mean(rows[state].values()) for state in ("merged", "pretrained"))
    return merged / pretrained if merged is not None and pretrained else None


def choose(point: Point, runs: Sequence[RunAt]) -> tuple[list[RunAt], tuple[Tuned, ...]]:
    """Return the runs with the values that validation images choose, by means over groups and seeds.

    These are the most accurate in domain; where the point asks what other tasks keep, the last that leave as much.
    Where it peeks, every group and seed has values of its own, which are told by seed.

    Raises:
        RecipeError: no value leaves as much, or there is nothing to compare with.
    """
    if not point.tune or not runs:
        return list(runs), ()
    if point.peeks:
        return _best_of_each(point, runs)
    scores: dict[tuple[Any, ...], list[float]] = {}
    for run in runs:
        found = run.kept if point.keeps else run.choice
        scores.setdefault(run.values, []).append(-math.inf if found is None else found)
    means = {values: math.fsum(every) / len(every) for values, every in scores.items()}
    allowed = [values for values, share in means.items() if share >= point.keeps] if point.keeps else []
    if point.keeps and max(means.values()) == -math.inf:
        raise RecipeError(
            "No value can be chosen by what it leaves out of domain: on validation images there, the pretrained model "
            "has no accuracy above 0 to compare with. Take a zoo with such a task, or choose without `keeps`."
        )
    if point.keeps and not allowed:
        raise RecipeError(
            f"None of the values leaves {100 * point.keeps:g} % of the pretrained model's accuracy out of domain; the "
            f"most is {100 * max(means.values()):.1f} %. Try smaller ones."
        )
    best = allowed[-1] if allowed else max(means, key=means.__getitem__)
    return [run for run in runs if run.values == best], _told(point, runs, best)


def _best_of_each(point: Point, runs: Sequence[RunAt]) -> tuple[list[RunAt], tuple[Tuned, ...]]:
    """Return the best run of every seed and group; a value without chance has one seed, which stands for all."""
    seeds, drawn = by_seed(runs), Counter((run.group, run.values) for run in runs)
    every: dict[tuple[Any, ...], list[RunAt]] = {}
    for run in runs:
        alone = drawn[run.group, run.values] == 1
        for seed in seeds if alone else (run.seed,):
            every.setdefault((seed, run.group), []).append(replace(run, seed=seed))
    best = [max(rivals, key=lambda run: -math.inf if run.choice is None else run.choice) for rivals in every.values()]
    return best, _told(point, runs, list(zip(*(run.values for run in best), strict=True)))


def _told(point: Point, runs: Sequence[RunAt], chosen: Sequence[Any]) -> tuple[Tuned, ...]:
    """Return by place what was tried and what was chosen."""
    tried = zip(*(run.values for run in runs), strict=True)
    return tuple(
        Tuned(place=place, values=tuple(dict.fromkeys(values)), chosen=value)
        for place, values, value in zip(point.tune, tried, chosen, strict=True)
    )


def measured(
    spec: Experiment, point: Point, runs: Sequence[RunAt], zoo: Zoo, failed: str
) -> tuple[PointResult, dict[str, Side]]:
    """Take every measure at one point; a measure that a run does not have is left out.

    Args:
        spec: names the measures.
        point: whose state is looked at.
        runs: what the runs and the views on them left.
        zoo: gives heads.
        failed: why there is nothing, where that is so.

    Returns:
        The result, and by measure the values by image behind it, where there are any.
    """
    cells, sides, reasons = {}, {}, [failed] if failed else []
    rights = rights_of(point, runs) if runs else None
    for measure in spec.measures:
        try:
            taken = take(measure, point, runs, zoo)
        except EngineError as error:
            reasons.append(str(error))
            continue
        if taken is None:
            continue
        average = math.fsum(taken.values) / len(taken.values)
        cells[measure.name] = Cell(values=taken.values, mean=average, sd=deviation(taken.values))
        side = side_of(measure, point, taken, rights)
        if side is not None:
            sides[measure.name] = side
    result = PointResult(
        name=point.name,
        title=point.title,
        state=point.state,
        control=point.control,
        run=runs[0].folder.name if runs else "",
        seeds=tuple(dict.fromkeys(run.seed for run in runs)),
        cells=cells,
        failed=" ".join(dict.fromkeys(reasons)),
        rights=rights,
    )
    return result, sides
