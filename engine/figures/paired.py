"""Differences of accuracies with their intervals, paired by image, as tables and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import pandas as pd

from ..analysis.paired import MARGIN, Difference, Outcome, paired_difference
from ..analysis.samples import correctness

SAYS: dict[Outcome, str] = {
    "seen": "higher",
    "opposite seen": "lower",
    "no difference": f"no difference (within ± {MARGIN:g})",
    "undecided": "undecided",
}
COLUMNS = ("name", "difference", "low", "high", "says", "tasks", "images", "seeds")


def difference_table(
    compared: Mapping[str, tuple[Sequence[pd.DataFrame], str]],
    reference: tuple[Sequence[pd.DataFrame], str],
    tasks: Sequence[str],
) -> pd.DataFrame:
    """Return one row for each side that can be paired with the reference, image by image.

    Args:
        compared: name → tables of samples, one a training seed, and the state in them.
        reference: the same of what is subtracted.
        tasks: in-domain tasks whose answers are right or wrong, over which the mean is taken; those that a side lacks,
            or has other images of, are left out for all, so that every row is over the same.

    Returns:
        Columns ``COLUMNS``; percentage points, 95 % intervals; no seeds where several gave the same answers, as of a
        merge that draws nothing.
    """
    sides = {name: correctness(*side) for name, side in compared.items()}
    base = correctness(*reference)
    common = reduce(
        lambda left, right: [task for task in left if task in right and right[task].index.equals(base[task].index)],
        sides.values(),
        [task for task in tasks if task in base],
    )
    rows = []
    for name, side in sides.items() if common else ():
        ours, theirs = ({task: found[task].to_numpy().T for task in common} for found in (side, base))
        if len({len(matrix) for matrix in (*ours.values(), *theirs.values())} | {1}) <= 2:
            alike = all((matrix == matrix[0]).all() for matrix in (*ours.values(), *theirs.values()))
            rows.append(_row(name, paired_difference(ours, theirs), len(common), alike))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(name: str, found: Difference, tasks: int, alike: bool) -> tuple[object, ...]:
    seeds = 0 if alike and found.seeds > 1 else found.seeds
    return (name, found.mean, found.low, found.high, SAYS[found.outcome()], tasks, found.images, seeds)
