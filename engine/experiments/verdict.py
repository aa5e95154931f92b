"""From numbers to a verdict: whether a claim holds on this zoo, and whether a control does as well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .result import Cell, Finding, Outcome, Verdict
from .spec import Check

Table = Mapping[str, Mapping[str, Cell]]  # point → measure → values
STANDARD_ERRORS = 2.0  # a difference within so many of its standard errors is none


def judge(checks: Sequence[Check], table: Table) -> tuple[tuple[Finding, ...], Verdict, str]:
    """Judge every check and draw the conclusion.

    The claim holds when all its checks do; a control that comes out as "yes" is another explanation for it.

    Returns:
        Findings in the order of the checks, the verdict, and why in one sentence.
    """
    findings = tuple(compare(check, table) for check in checks)
    claims = [finding for finding in findings if not finding.control]
    outcomes = [finding.outcome for finding in claims]
    if not claims:
        return findings, "cannot be judged on this zoo", "The experiment shows numbers and claims nothing."
    if "no" in outcomes:
        return findings, "does not hold here", _first(claims, "no", "Not found")
    if "missing" in outcomes:
        return findings, "cannot be judged on this zoo", _first(claims, "missing", "Not measured")
    if "unclear" in outcomes:
        return findings, "cannot be judged on this zoo", _first(claims, "unclear", "No clear difference")
    rivals = [finding for finding in findings if finding.control and finding.outcome == "yes"]
    if rivals:
        return findings, "explained by a control", rivals[0].text
    return findings, "holds", "Every comparison came out as claimed" + _beaten(findings)


def compare(check: Check, table: Table) -> Finding:
    """Compare two points by one measure, seeds paired where both have the same number of them."""
    left = table.get(check.left, {}).get(check.measure)
    right = table.get(check.right, {}).get(check.right_measure or check.measure)
    if left is None or right is None:
        return Finding(text=check.text, outcome="missing", control=check.control)
    difference = left.mean - right.mean - check.plus
    sd = spread(left, right)
    noise = max(check.margin, STANDARD_ERRORS * sd / math.sqrt(len(left.values)) if sd is not None else 0.0)
    return Finding(
        text=check.text,
        outcome=_outcome(check, difference, noise),
        left=left.mean,
        right=right.mean,
        difference=difference,
        sd=sd,
        control=check.control,
    )


def spread(left: Cell, right: Cell) -> float | None:
    """Return the standard deviation of the difference over seeds; None where neither side varies with them."""
    if len(left.values) == len(right.values) > 1:
        return deviation([a - b for a, b in zip(left.values, right.values, strict=True)])
    found = [cell.sd for cell in (left, right) if cell.sd is not None]
    return math.sqrt(sum(sd**2 for sd in found)) if found else None


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None of a single value."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _outcome(check: Check, difference: float, noise: float) -> Outcome:
    if check.relation == "near":
        return "yes" if abs(difference) <= noise else "no"
    if check.relation == "above_or_near":
        return "yes" if difference >= -noise else "no"
    signed = difference if check.relation == "above" else -difference
    if abs(difference) <= noise:
        return "unclear"
    return "yes" if signed > 0 else "no"


def _first(findings: Sequence[Finding], outcome: Outcome, words: str) -> str:
    found = next(finding for finding in findings if finding.outcome == outcome)
    return f"{words}: {found.text}"


def _beaten(findings: Sequence[Finding]) -> str:
    controls = sum(finding.control for finding in findings)
    return f", and none of {controls} controls does as well." if controls else "."
