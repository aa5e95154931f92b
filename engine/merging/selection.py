"""Exact order statistics of numbers that are streamed, not held."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

SAMPLE = 2**20
BLOCK = 2**16  # numbers that are compared at once: they stay in the processor's cache


def order_statistic(values: Callable[[], Iterable[Tensor]], count: int, rank: int, sample: int = SAMPLE) -> Tensor:
    """The rank-th smallest of ``count`` numbers, exactly.

    A sample brackets the answer; one more pass counts what lies below the bracket and keeps what lies inside. If the
    bracket misses, a larger sample is drawn, in the end everything, so the answer never depends on luck.

    Args:
        values: starts a pass over the numbers, in flat pieces that must not be changed; called several times.
        count: how many numbers there are.
        rank: from 1 to ``count``.
        sample: how many numbers are held at first.

    Returns:
        A 0-d tensor.
    """
    stride = max(1, count // sample)
    while stride > 1:
        low, high = _bracket(_every(values(), stride), rank / count)
        below, at_low, at_high, inside = _count(values(), low, high)
        position = rank - below
        if 0 < position <= at_low:
            return low
        if 0 < position - at_low <= len(inside):
            return inside.kthvalue(position - at_low).values
        if 0 < position - at_low - len(inside) <= at_high:
            return high
        stride //= 8
    return torch.cat(list(values())).kthvalue(rank).values


def _every(pieces: Iterable[Tensor], stride: int) -> Tensor:
    """Every stride-th number of the whole stream."""
    chosen, position = [], 0
    for piece in pieces:
        chosen.append(piece[-position % stride :: stride].clone())
        position += len(piece)
    return torch.cat(chosen)


def _bracket(sample: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Two sample values between which the share-quantile of everything very probably lies."""
    size = len(sample)
    margin = 6 * math.sqrt(size * share * (1 - share)) + 0.001 * size + 1
    first = min(max(0, math.floor(size * share - margin)), size - 1)
    last = min(max(0, math.ceil(size * share + margin)), size - 1)
    return sample.kthvalue(first + 1).values, sample.kthvalue(last + 1).values


def _count(pieces: Iterable[Tensor], low: Tensor, high: Tensor) -> tuple[int, int, int, Tensor]:
    """How many numbers are below, at the low end and at the high end of a bracket, and those strictly inside."""
    below = at_low = at_high = 0
    kept = []
    first, last = low.numpy(), high.numpy()
    for piece in pieces:
        numbers = piece.numpy()
        for start in range(0, len(numbers), BLOCK):
            block = numbers[start : start + BLOCK]
            smaller = block < first
            below += np.count_nonzero(smaller)
            near = block[(block <= last) ^ smaller]
            inside = near[(near > first) & (near < last)]
            kept.append(inside)
            lowest = np.count_nonzero(near == first)
            at_low += lowest
            at_high += len(near) - len(inside) - lowest
    return below, at_low, at_high, torch.from_numpy(np.concatenate(kept))
