"""From numbers to a verdict: clause by clause, with every control that does as well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import ndtri, stdtrit

from ..analysis.paired import CONFIDENCE, Difference, Values, interval_of
from .result import Basis, Cell, Finding, Outcome, Verdict
from .rights import Side
from .spec import Check

Table = Mapping[str, Mapping[str, Cell]]  # point → measure → values
Sides = Mapping[str, Mapping[str, Side]]  # the same as means over images, where they are
CLAUSE: dict[Outcome, Verdict] = {
    "seen": "seen here",
    "opposite seen": "opposite seen here",
    "no difference": "no difference here",
    "undecided": "undecided here",
    "not measured": "undecided here",
}
NAMED = 3  # controls that the sentence on a claim names; each clause names all of its own
GOOD: tuple[Verdict, ...] = ("holds here", "seen here", "seen, and a control does as well")


def judge(
    checks: Sequence[Check], table: Table, sides: Sides, exact: Sequence[str] = ()
) -> tuple[tuple[Finding, ...], Verdict, str]:
    """Judge every check and draw the conclusion.

    A clause is *seen* when its comparison is. It *holds* when besides at least one objection to it was seen to fail and
    none does as well; objections that do are all named. An objection that is not decided supports nothing. Clauses that
    are asked here are judged, and the verdict on the claim is without them.

    Args:
        checks: clauses and objections.
        table: numbers by point and measure.
        sides: the same as values by image, where there are any.
        exact: measures that are counts.

    Returns:
        Findings in the order of the checks, the verdict on the claim, and why in one sentence.
    """
    return conclude(checks, [compare(check, table, sides, exact) for check in checks])


def conclude(checks: Sequence[Check], found: Sequence[Finding]) -> tuple[tuple[Finding, ...], Verdict, str]:
    """Draw the conclusion from the outcome of every check, see :func:`judge`."""
    findings = []
    for check, finding in zip(checks, found, strict=True):
        if check.control:
            findings.append(finding)
            continue
        rivals = [
            (objection, other)
            for objection, other in zip(checks, found, strict=True)
            if objection.control and (not objection.explains or check.name in objection.explains)
        ]
        explained = tuple(objection.text for objection, other in rivals if other.outcome == "seen")
        verdict = CLAUSE[finding.outcome]
        if finding.outcome == "seen" and explained:
            verdict = "seen, and a control does as well"
        elif finding.outcome == "seen" and any(_failed(other, finding) for _, other in rivals):
            verdict = "holds here"
        named = explained if finding.outcome == "seen" else ()
        findings.append(finding.model_copy(update={"verdict": verdict, "explained_by": named}))
    clauses, asked = (
        [finding for check, finding in zip(checks, findings, strict=True) if not check.control and check.asked == ours]
        for ours in (False, True)
    )
    return tuple(findings), _overall(clauses), _because(clauses, asked)


def _failed(objection: Finding, clause: Finding) -> bool:
    """Return whether an objection came out the other way, and is another comparison than the clause itself.

    It is the same one, seen from the other side, where the objection's point chose the very settings of the clause's.
    """
    if objection.outcome != "opposite seen":
        return False
    ours, theirs = ((found.difference, found.low, found.high) for found in (clause, objection))
    if None in ours or None in theirs:
        return True
    turned = (-theirs[0], -theirs[2], -theirs[1])
    return not any(np.allclose(ours, other, rtol=0, atol=1e-4) for other in (theirs, turned))


def compare(check: Check, table: Table, sides: Sides, exact: Sequence[str] = ()) -> Finding:
    """Compare two points by one measure: by image where both have the same images, else over seeds."""
    if check.correlates:
        return correlation(check, table)
    names = (check.left, check.measure), (check.right, check.right_measure or check.measure)
    left, right = (table.get(point, {}).get(measure) for point, measure in names)
    if left is None or right is None:
        return Finding(text=check.text, outcome="not measured", control=check.control)
    difference = left.mean - right.mean
    found: Difference | None = None
    basis: Basis = ""
    both = [sides.get(point, {}).get(measure) for point, measure in names]
    if both[0] is not None and both[1] is not None:
        answers = both[0].right and both[1].right
        found, basis = interval_of(paired_parts(*both), mean=difference, right=answers), both[0].units
    elif check.measure in exact:
        found, basis = Difference(difference, difference, difference, 0, 1), "count"
    else:
        found = over_seeds(left, right)
        basis = "seeds" if found else ""
    return Finding(
        text=check.text,
        outcome=outcome_of(check, found),
        left=left.mean,
        right=right.mean,
        difference=difference,
        sd=spread(left, right),
        control=check.control,
        low=found.low if found else None,
        high=found.high if found else None,
        basis=basis,
    )


def correlation(check: Check, table: Table) -> Finding:
    """Return whether two measures rise or fall with each other over points, by Pearson's correlation.

    Points stand for methods, of which there are few: the interval is Fisher's over them. Points without one of the
    measures are left out.

    Source: Fisher, Metron 1 (1921), pp. 3–32: atanh r is nearly normal with variance 1 / (n − 3).
    """
    rows = [table.get(point, {}) for point in check.over]
    cells = [(row.get(check.measure), row.get(check.right_measure)) for row in rows]
    known = [(left.mean, right.mean) for left, right in cells if left is not None and right is not None]
    spreads = [len(set(column)) for column in zip(*known, strict=True)]
    if len(known) < 4 or 1 in spreads:
        return Finding(text=check.text, outcome="not measured", control=check.control)
    value = float(np.corrcoef(np.array(known).T)[0, 1])
    half = float(ndtri((1 + CONFIDENCE) / 2)) / math.sqrt(len(known) - 3)
    centre = math.atanh(max(min(value, 1 - 1e-12), -1 + 1e-12))
    found = Difference(value, math.tanh(centre - half), math.tanh(centre + half), 0, 1)
    return Finding(
        text=check.text,
        outcome=outcome_of(check, found),
        difference=value,
        control=check.control,
        low=found.low,
        high=found.high,
        basis="points",
    )


def paired_parts(left: Side, right: Side) -> dict[str, Values]:
    """Return differences of both sides unit by unit; where they have other units, the units of both, unpaired.

    The mean over the parts of their means is the difference. One side without chance stands for all seeds; of sides
    with other numbers of seeds the first ones are taken.
    """
    names = list(left.parts)
    counts = {len(part) for side in (left, right) for part in side.parts.values()} - {1}
    seeds = min(counts, default=1)

    def seeded(part: Values) -> Values:
        return np.broadcast_to(part, (seeds, part.shape[1])) if len(part) == 1 else part[:seeds]

    same = set(names) == set(right.parts) and all(
        left.parts[name].shape[1] == right.parts[name].shape[1] for name in names
    )
    if same:
        return {name: seeded(left.parts[name]) - seeded(right.parts[name]) for name in names}
    total = len(left.parts) + len(right.parts)
    return {
        f"{sign:+d} {name}": sign * total / len(side.parts) * seeded(part)
        for sign, side in ((1, left), (-1, right))
        for name, part in side.parts.items()
    }


def over_seeds(left: Cell, right: Cell) -> Difference | None:
    """Return the difference with Student's interval over training seeds; None where only one seed is known.

    It says nothing of the images: where they can be resampled, they are.
    """
    values = _by_seed(left, right)
    if values is None:
        return None
    mean, sd = left.mean - right.mean, deviation(values) or 0.0
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * sd / math.sqrt(len(values))
    return Difference(mean, mean - half, mean + half, 0, len(values))


def outcome_of(check: Check, found: Difference | None, margin: float | None = None) -> Outcome:
    """Return what an interval allows to say of a check's statement.

    ``above``, ``below`` and correlations are seen where the interval leaves 0 out on their side; ``near`` where all of
    it is within the margin; ``above_or_near`` where none of it is further below than the margin.
    """
    if found is None:
        return "undecided"
    margin = check.margin if margin is None else margin
    low, high = (bound - check.plus for bound in found.bounds)
    if check.relation == "near":
        if -margin <= low and high <= margin:
            return "seen"
        return "opposite seen" if low > margin or high < -margin else "undecided"
    if check.relation == "above_or_near":
        if low >= -margin:
            return "seen"
        return "opposite seen" if high < 0 else "undecided"
    if check.relation in ("below", "falls_with"):
        low, high = -high, -low
    return Difference((low + high) / 2, low, high, found.images, found.seeds).outcome(margin)


def spread(left: Cell, right: Cell) -> float | None:
    """Return the standard deviation of the difference over seeds; None where neither side varies with them."""
    values = _by_seed(left, right)
    return deviation(values) if values is not None else None


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None of a single value."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _by_seed(left: Cell, right: Cell) -> list[float] | None:
    """Pair the seeds of both sides, one value standing for all where nothing depends on them."""
    counts = {len(left.values), len(right.values)} - {1}
    if not counts:
        return None
    seeds = min(counts)
    ours, theirs = (cell.values * seeds if len(cell.values) == 1 else cell.values[:seeds] for cell in (left, right))
    return [a - b for a, b in zip(ours, theirs, strict=True)]


def _overall(clauses: Sequence[Finding]) -> Verdict:
    found = {finding.verdict for finding in clauses if finding.outcome != "not measured"}
    if not found:
        return "not judged"
    if len(found) == 1:
        return next(iter(found))
    if found <= set(GOOD):
        return GOOD[max(GOOD.index(verdict) for verdict in found)]
    return "differs by clause"


def _because(clauses: Sequence[Finding], asked: Sequence[Finding]) -> str:
    if not clauses:
        return "The experiment shows numbers and claims nothing."
    if all(finding.outcome == "not measured" for finding in clauses):
        return "Nothing that the claim comes down to was measured here."
    seen, ours = (sum(finding.outcome == "seen" for finding in part) for part in (clauses, asked))
    judged = [finding for finding in clauses if finding.outcome != "not measured"]
    explained = dict.fromkeys(text for finding in clauses for text in finding.explained_by)
    said = [f"{seen} of {len(judged)} clauses seen." if len(judged) > 1 else judged[0].text]
    said += [f"Not measured: {len(clauses) - len(judged)}."] if len(clauses) > len(judged) else []
    said += [f"Asked here: {ours} of {len(asked)} seen."] if asked else []
    first, more = list(explained)[:NAMED], len(explained) - NAMED
    said += ["As well:", *first] if first else []
    said += [f"And {more} more control{'s' if more > 1 else ''}."] if more > 0 else []
    return " ".join(said)
