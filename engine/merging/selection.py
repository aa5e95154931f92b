"""Exact order statistics of numbers that are streamed, not held."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

SAMPLE = 2**20
SLACK = 0.001  # how far a sample's share may be off beside chance
SLACK_OF_BLOCKS = 0.01  # neighbours are alike, so blocks tell less than as many single numbers
BLOCK = 2**16  # numbers that are compared at once: they stay in the processor's cache

Pieces = Callable[[], Iterable[Tensor]]


def order_statistic(pieces: Pieces, count: int, rank: int, sample: int = SAMPLE) -> Tensor:
    """Return the rank-th smallest of ``count`` numbers, exactly; see :func:`order_statistics`."""
    return order_statistics(lambda: (piece[None] for piece in pieces()), count, rank, sample)[0]


def order_statistics(pieces: Pieces, count: int, rank: int, sample: int = SAMPLE, some: Pieces | None = None) -> Tensor:
    """Return the rank-th smallest number of every row of a wide matrix, exactly.

    A sample brackets the answer; one more pass counts what lies below the bracket and keeps what lies inside. Where
    the bracket misses, a larger sample is drawn, in the end everything, so the answer never depends on luck.

    Args:
        pieces: starts a pass over the matrix, in pieces (K, n) that are not changed; called several times.
        count: how many columns all pieces have together.
        rank: from 1 to ``count``.
        sample: how many numbers of a row are held at first.
        some: a part of the pieces that costs less than a pass over all of them, for the first sample.

    Returns:
        A tensor of shape (K,).
    """
    found: dict[int, Tensor] = {}
    stride = max(1, count // sample)
    rows = range(len(next(iter(pieces()))))
    while stride > 1:
        sampled = _every(pieces(), stride) if some is None else _thinned(some(), sample)
        slack, some = (SLACK, None) if some is None else (SLACK_OF_BLOCKS, None)
        brackets = {row: _Bracket(sampled[row], rank / count, slack) for row in rows if row not in found}
        for piece in pieces():
            for row, bracket in brackets.items():
                bracket.see(piece[row].numpy())
        for row, bracket in brackets.items():
            answer = bracket.answer(rank)
            if answer is not None:
                found[row] = answer
        if len(found) == len(rows):
            return torch.stack([found[row] for row in rows])
        stride //= 8
    return torch.cat(list(pieces()), dim=1).kthvalue(rank, dim=1).values


def _every(pieces: Iterable[Tensor], stride: int) -> Tensor:
    """Return every stride-th column of the whole matrix."""
    chosen, position = [], 0
    for piece in pieces:
        chosen.append(piece[:, -position % stride :: stride].clone())
        position += piece.shape[1]
    return torch.cat(chosen, dim=1)


def _thinned(pieces: Iterable[Tensor], sample: int) -> Tensor:
    """Return about ``sample`` columns of all pieces, evenly spread."""
    whole = torch.cat(list(pieces), dim=1)
    return whole[:, :: max(1, whole.shape[1] // sample)]


class _Bracket:
    """Two values between which a row's quantile very probably lies, and what lies around them."""

    def __init__(self, sample: Tensor, share: float, slack: float) -> None:
        size = len(sample)
        margin = 6 * math.sqrt(size * share * (1 - share)) + slack * size + 1
        first = min(max(0, math.floor(size * share - margin)), size - 1)
        last = min(max(0, math.ceil(size * share + margin)), size - 1)
        self.low, self.high = sample.kthvalue(first + 1).values, sample.kthvalue(last + 1).values
        self._below = self._at_low = self._at_high = 0
        self._inside: list[np.ndarray] = []

    def see(self, numbers: np.ndarray) -> None:
        """Count numbers below the bracket and at its ends; keep those strictly inside."""
        low, high = self.low.numpy(), self.high.numpy()
        for start in range(0, len(numbers), BLOCK):
            block = numbers[start : start + BLOCK]
            smaller = block < low
            near = block[(block <= high) ^ smaller]
            inside = near[(near > low) & (near < high)]
            lowest = np.count_nonzero(near == low)
            self._below += np.count_nonzero(smaller)
            self._at_low += lowest
            self._at_high += len(near) - len(inside) - lowest
            self._inside.append(inside)

    def answer(self, rank: int) -> Tensor | None:
        """Return the rank-th smallest number of all that were seen; None where the bracket missed it."""
        position = rank - self._below
        if position < 1:
            return None
        if position <= self._at_low:
            return self.low
        inside = np.concatenate(self._inside)
        position -= self._at_low
        if position <= len(inside):
            return torch.from_numpy(inside).kthvalue(position).values
        return self.high if position - len(inside) <= self._at_high else None
