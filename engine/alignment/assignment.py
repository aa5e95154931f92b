"""Assignments: the order of units that agrees best with another network's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ..errors import AlignmentError


def assign(scores: Tensor) -> Tensor:
    """Return for each row the column that it is paired with, so that the sum of scores is largest.

    Args:
        scores: square (n, n): how well unit i of the fixed network fits unit j of the other.

    Raises:
        AlignmentError: a score is not finite.
    """
    numbers = np.ascontiguousarray(scores.detach().cpu().double().numpy())
    if not np.isfinite(numbers).all():
        raise AlignmentError("Units cannot be matched: scores between them are not finite. Check the weights for NaN.")
    return torch.from_numpy(linear_sum_assignment(numbers, maximize=True)[1])


def score_of(scores: Tensor, order: Tensor) -> float:
    """Return the sum of scores of an order of units."""
    return float(scores[torch.arange(len(order)), order].sum())


def assign_heads(scores: Sequence[Tensor], width: int) -> tuple[list[Tensor], Tensor]:
    """Pair whole heads, and the channels inside them, so that the sum of scores is largest.

    Channels are paired inside every pair of heads, separately for each score matrix; then heads are paired by what
    that gives. The result is the best one there is.

    Args:
        scores: square (heads · width, heads · width), one for each map inside the heads (queries and keys; values).
        width: channels in a head.

    Returns:
        An order of channels for each score matrix, and the order of heads that they have in common.

    Source: Verma & Elbayad, 2024, arXiv:2403.00986, §3.2, for one score matrix.
    """
    count = len(scores[0]) // width
    gains = torch.zeros(count, count, dtype=torch.float64)
    inner: dict[tuple[int, int, int], Tensor] = {}
    for number, whole in enumerate(scores):
        blocks = whole.reshape(count, width, count, width)
        for here in range(count):
            for there in range(count):
                block = blocks[here, :, there]
                inner[number, here, there] = assign(block)
                gains[here, there] += score_of(block, inner[number, here, there])
    heads = assign(gains)
    orders = [
        torch.cat([there * width + inner[number, here, there] for here, there in enumerate(heads.tolist())])
        for number in range(len(scores))
    ]
    return orders, heads
