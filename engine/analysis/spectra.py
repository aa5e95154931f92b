"""Numbers that sum a singular spectrum up. Free of torch."""

from __future__ import annotations

import numpy as np


def effective_rank(values: np.ndarray) -> float:
    """Return exp of the entropy of σ / Σσ: the count of equal singular values as spread out; 0 of a zero matrix.

    Source: Roy & Vetterli, EUSIPCO 2007.
    """
    values = np.asarray(values, dtype=np.float64)
    total = values.sum()
    if total <= 0:
        return 0.0
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def energy_rank(values: np.ndarray, share: float = 0.9) -> int:
    """Return the fewest leading singular values (descending) whose squares hold a share of all squares."""
    squares = np.square(np.asarray(values, dtype=np.float64))
    if squares.sum() <= 0:
        return 0
    return int(np.searchsorted(np.cumsum(squares), share * squares.sum() * (1 - 1e-12)) + 1)


def stable_rank(values: np.ndarray) -> float:
    """Return ‖M‖_F² / σ₁², at most the rank and not moved by small singular values; 0 of a zero matrix."""
    squares = np.square(np.asarray(values, dtype=np.float64))
    return float(squares.sum() / squares[0]) if squares.size and squares[0] > 0 else 0.0
