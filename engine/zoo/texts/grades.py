"""Numbers as answers: grades that stand for them, and a regression's head as one that says the nearest grade.

Free of torch at import. A number y lies nearest to the grade v with the greatest v·y − v²/2, which is affine in the
feature where y is, so that whatever reads classes reads grades.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

MOST = 101  # grades of a regression's head; they round to a hundredth of the range


def grades_between(low: float, high: float, most: int = MOST) -> tuple[float, ...]:
    """Return grades in the finest of the steps 1, 2, 5 times a power of ten that needs no more than ``most``.

    Raises:
        DataError: the numbers are all the same, or not finite.
    """
    if not math.isfinite(high - low) or low >= high:
        raise DataError(f"Numbers from {low:g} to {high:g} give no scale to be graded on.")
    exponent = math.floor(math.log10((high - low) / most))
    while True:
        for factor in (1, 2, 5):
            step = factor * 10.0**exponent
            first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
            if last - first + 1 <= most:
                return tuple(round(place * step, max(0, -exponent)) for place in range(first, last + 1))
        exponent += 1


def nearest(labels: Sequence[Any], grades: Sequence[float], origin: str) -> np.ndarray:
    """Return the place of the nearest grade for each number (n,).

    Raises:
        DataError: a label is no number, or lies outside the grades.
    """
    values = as_numbers(labels)
    if values is None:
        strange = str(next(label for label in labels if as_numbers([label]) is None))
        known = f"from {grades[0]:g} to {grades[-1]:g}"
        raise DataError(f"{origin} has the label {strange!r:.40}, which is no number; numbers {known} are expected.")
    scale = np.asarray(grades)
    slack = (scale[1:] - scale[:-1]).max()
    if (outside := (values < scale[0] - slack) | (values > scale[-1] + slack)).any():
        raise DataError(
            f"{origin} has the label {values[outside][0]:g}, and grades from {grades[0]:g} to {grades[-1]:g}. Correct "
            "the label, or list `grades` that reach it."
        )
    return np.abs(values[:, None] - scale[None]).argmin(axis=1)


def as_numbers(labels: Iterable[Any]) -> np.ndarray | None:
    """Return labels as finite numbers (n,), None where one is none."""
    try:
        found = np.array([float("nan") if isinstance(label, bool) else float(label) for label in labels])
    except (TypeError, ValueError, OverflowError):
        return None
    return found if np.isfinite(found).all() else None


def graded_head(weight: Tensor, bias: Tensor, grades: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return rows (grades, inner) and bias (grades,) whose greatest score is the grade nearest to weight · z + bias.

    Args:
        weight: of the regression's last layer, (1, inner).
        bias: (1,).
        grades: rising.
    """
    import torch

    scale = torch.tensor(grades, dtype=torch.float64)
    return (scale[:, None] * weight.double()).float(), (scale * bias.double() - scale**2 / 2).float()


def number_head(weight: Tensor, bias: Tensor, grades: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return the regression's last layer that :func:`graded_head` was made of: (1, inner) and (1,)."""
    place = max(range(len(grades)), key=lambda number: abs(grades[number]))
    grade = grades[place]
    return (weight[place : place + 1].double() / grade).float(), (
        (bias[place : place + 1].double() + grade**2 / 2) / grade
    ).float()
