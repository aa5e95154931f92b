"""Judging again what was measured: words and checks of an experiment may change while its numbers stay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..analysis.paired import Difference
from ..errors import RecipeError
from .result import Cell, ExperimentResult, Finding, PointResult
from .rights import OF_TASK, Side, accuracy_side, task_accuracy
from .sizes import worded
from .spec import Check, Experiment, Measure
from .verdict import Sides, Table, compare, conclude, deviation, outcome_of


def judge_again(spec: Experiment, result: ExperimentResult, sizes: Mapping[str, int]) -> ExperimentResult:
    """Judge a result by the checks and in the words that its experiment has now; nothing is measured.

    Intervals of accuracies are drawn from the images that were right, and so are accuracies of tasks that nobody had
    asked for. Of other numbers the file holds no values by image: a check that compares the same two numbers as an
    earlier one, from either side, has that one's interval.

    Args:
        spec: the experiment as it is now.
        result: what was measured at its points.
        sizes: of the zoo's encoder, for titles and texts, see :mod:`.sizes`.

    Raises:
        RecipeError: the experiment has other points now, or a measure or check needs what the file does not hold.
        StoreError: the correctness of images is damaged.
    """
    if result.name != spec.name or result.measured != spec.measured():
        raise RecipeError(
            f"This result of '{result.name}' was not measured with the base, points and seeds that '{spec.name}' has "
            "now, so it cannot be judged again. Run the experiment."
        )
    seeds = {point.rights.seeds for point in result.points if point.rights is not None}
    if result.sets > 1 and not seeds <= {1, result.sets}:
        raise RecipeError(
            f"This result pools {result.sets} sets of experts with several seeds each, which the file does not tell "
            "apart. Run the experiment again."
        )
    points = tuple(_now(spec, point, result.measures, sizes) for point in result.points)
    checks = [check.model_copy(update={"text": worded(check.text, sizes)}) for check in spec.checks]
    exact = [measure.name for measure in spec.measures if measure.exact]
    table = {point.name: point.cells for point in points}
    sides = {point.name: _sides(spec, point) for point in points}
    found = [_compared(check, table, sides, exact, result.findings) for check in checks]
    findings, verdict, reason = conclude(checks, found)
    told = {"form": spec.digest(), "measures": spec.taken(), "points": points}
    return result.model_copy(update={**told, "findings": findings, "verdict": verdict, "reason": reason})


def _now(spec: Experiment, point: PointResult, kept: Mapping[str, str], sizes: Mapping[str, int]) -> PointResult:
    """Return a point as it is called now, with the measures that there are now.

    Raises:
        RecipeError: the file does not hold one of them.
    """
    now = next(entry for entry in spec.points if entry.name == point.name)
    cells = {}
    for measure in spec.measures:
        same = kept.get(measure.name) == measure.digest()
        cell = point.cells.get(measure.name) if same else _cell(measure, point)
        if cell is not None:
            cells[measure.name] = cell
    return point.model_copy(update={"title": worded(now.title, sizes), "control": now.control, "cells": cells})


def _cell(measure: Measure, point: PointResult) -> Cell | None:
    """Return the accuracy of a task at a point from its images; None where it has none.

    Raises:
        RecipeError: the measure is another number.
    """
    place = _place(measure, point)
    if not OF_TASK.match(place):
        raise RecipeError(
            f"The result does not hold '{measure.title}' as it is measured now. Run the experiment again."
        )
    values = task_accuracy(point.rights, place, point.state) if point.rights is not None else None
    return Cell(values=values, mean=math.fsum(values) / len(values), sd=deviation(values)) if values else None


def _place(measure: Measure, point: PointResult) -> str:
    """Return where a measure of a report is read; nothing for one of a view or an analysis."""
    return "" if measure.view else measure.path.replace("{state}", point.state)


def _sides(spec: Experiment, point: PointResult) -> dict[str, Side]:
    """Return the values by image of every measure that is an accuracy of the report."""
    found = {}
    for measure in spec.measures:
        cell = point.cells.get(measure.name)
        if cell is not None and point.rights is not None:
            found[measure.name] = accuracy_side(point.rights, _place(measure, point), point.state, cell.mean)
    return {name: side for name, side in found.items() if side is not None}


def _compared(check: Check, table: Table, sides: Sides, exact: Sequence[str], earlier: Sequence[Finding]) -> Finding:
    """Compare two points, by an earlier finding's interval where the file has none of their values by image.

    Raises:
        RecipeError: no earlier check compared them.
    """
    found = compare(check, table, sides, exact)
    if found.basis in ("images", "count", "points") or found.outcome == "not measured":
        return found
    same = [other for seen in earlier for other in (seen, _turned(seen)) if _numbers(other) == _numbers(found)]
    if len({(other.low, other.high, other.basis) for other in same}) != 1:
        raise RecipeError(
            f"'{check.text}' compares numbers whose values by image are not kept with the result. "
            "Run the experiment again."
        )
    if same[0].basis not in ("images", "groups"):
        return found
    kept = Difference(found.difference, same[0].low, same[0].high, 0, 1)
    told = {"outcome": outcome_of(check, kept), "low": kept.low, "high": kept.high, "basis": same[0].basis}
    return found.model_copy(update=told)


def _numbers(finding: Finding) -> tuple[float | None, float | None]:
    return finding.left, finding.right


def _turned(finding: Finding) -> Finding:
    """Return a finding seen from its right side; one without sides or an interval as it is."""
    if None in (finding.left, finding.right, finding.low, finding.high):
        return finding
    told = {"left": finding.right, "right": finding.left, "low": -finding.high, "high": -finding.low}
    return finding.model_copy(update=told)
