"""Judging again what was measured: words and checks of an experiment may change while its numbers stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..analysis.paired import Difference
from ..errors import RecipeError
from .result import ExperimentResult, Finding, PointResult
from .rights import Side, accuracy_side
from .sizes import worded
from .spec import Check, Experiment
from .verdict import Sides, Table, compare, conclude, outcome_of


def judge_again(spec: Experiment, result: ExperimentResult, sizes: Mapping[str, int]) -> ExperimentResult:
    """Judge a result by the checks and in the words that its experiment has now; nothing is measured.

    Intervals of accuracies are drawn from the images that were right. Of other numbers the file holds no values by
    image: a check that compares the same two numbers as an earlier one has that one's interval.

    Args:
        spec: the experiment as it is now.
        result: what was measured at its points.
        sizes: of the zoo's encoder, for titles and texts, see :mod:`.sizes`.

    Raises:
        RecipeError: the experiment measures something else now, or a check needs what the file does not hold.
        StoreError: the correctness of images is damaged.
    """
    if result.name != spec.name or result.measured != spec.measured():
        raise RecipeError(
            f"This result of '{result.name}' was not measured with the base, points, measures and seeds that "
            f"'{spec.name}' has now, so it cannot be judged again. Run the experiment."
        )
    seeds = {point.rights.seeds for point in result.points if point.rights is not None}
    if result.sets > 1 and not seeds <= {1, result.sets}:
        raise RecipeError(
            f"This result pools {result.sets} sets of experts with several seeds each, which the file does not tell "
            "apart. Run the experiment again."
        )
    points = tuple(_worded(spec, point, sizes) for point in result.points)
    checks = [check.model_copy(update={"text": worded(check.text, sizes)}) for check in spec.checks]
    exact = [measure.name for measure in spec.measures if measure.exact]
    table = {point.name: point.cells for point in points}
    sides = {point.name: _sides(spec, point) for point in points}
    found = [_compared(check, table, sides, exact, result.findings) for check in checks]
    findings, verdict, reason = conclude(checks, found)
    told = {"form": spec.digest(), "points": points, "findings": findings, "verdict": verdict, "reason": reason}
    return result.model_copy(update=told)


def _worded(spec: Experiment, point: PointResult, sizes: Mapping[str, int]) -> PointResult:
    """Return a point as it is called now."""
    now = next(entry for entry in spec.points if entry.name == point.name)
    return point.model_copy(update={"title": worded(now.title, sizes), "control": now.control})


def _sides(spec: Experiment, point: PointResult) -> dict[str, Side]:
    """Return the values by image of every measure that is an accuracy of the report."""
    found = {}
    for measure in spec.measures:
        cell, place = point.cells.get(measure.name), measure.path.replace("{state}", point.state)
        if cell is None or point.rights is None or not place or measure.view:
            continue
        side = accuracy_side(point.rights, place, cell.mean)
        if side is not None:
            found[measure.name] = side
    return found


def _compared(check: Check, table: Table, sides: Sides, exact: Sequence[str], earlier: Sequence[Finding]) -> Finding:
    """Compare two points, by an earlier finding's interval where the file has none of their values by image.

    Raises:
        RecipeError: no earlier check compared them.
    """
    found = compare(check, table, sides, exact)
    if found.basis in ("images", "count", "points") or found.outcome == "not measured":
        return found
    same = [other for other in earlier if (other.left, other.right) == (found.left, found.right)]
    if len({(other.low, other.high, other.basis) for other in same}) != 1:
        raise RecipeError(
            f"'{check.text}' compares numbers whose values by image are not kept with the result. "
            "Run the experiment again."
        )
    if same[0].basis != "images":
        return found
    kept = Difference(found.difference, same[0].low, same[0].high, 0, 1)
    told = {"outcome": outcome_of(check, kept), "low": kept.low, "high": kept.high, "basis": "images"}
    return found.model_copy(update=told)
