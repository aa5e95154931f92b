"""Exact order statistics of numbers that are streamed, not held."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

SAMPLE = 2**19
STEP = 16  # a first look takes every so many pieces
SIGMAS = 4  # standard errors to either side of a guess; a bracket that misses costs another pass
HELD = 2**18  # numbers inside brackets that wait until those equal to an end are taken out

Pieces = Callable[[int], Iterable[Tensor]]


def order_statistics(
    pieces: Pieces, count: int, ranks: Sequence[int], sample: int = SAMPLE, watch: Watch | None = None
) -> Tensor:
    """Return the numbers of given ranks in every row of a wide matrix, exactly.

    Every so many pieces bracket the answers; one pass over all of them counts what lies below a bracket and keeps what
    lies inside. Where a bracket misses, more pieces make the next one, in the end all, so the answer never depends on
    luck.

    Args:
        pieces: starts a pass over the matrix in pieces (K, n) that are not changed, or over every step-th piece.
        count: how many columns all pieces have together.
        ranks: from 1 (the smallest number) to ``count``.
        sample: how many numbers of a row are held at first.
        watch: follows the pass that answers, for the last rank; it has seen nothing where there were too few numbers.

    Returns:
        A tensor of shape (R, K): a row for each rank.
    """
    step = STEP
    while count > sample and step > 1:
        if watch:
            watch.begin()
        blocks = _sampled(pieces(step), max(1, count // (step * sample)))
        if blocks:
            brackets = [_Brackets(blocks, rank / count) for rank in ranks]
            brackets[-1].watch = watch
            for piece in pieces(1):
                for bracket in brackets:
                    bracket.see(piece.numpy())
            answers = [bracket.answers(rank) for bracket, rank in zip(brackets, ranks, strict=True)]
            found = [answer for answer in answers if answer is not None]
            if len(found) == len(ranks):
                return torch.stack(found)
        step //= 4
    if watch:
        watch.begin()
    everything = torch.cat([piece.clone() for piece in pieces(1)], dim=1)
    return torch.stack([everything.kthvalue(rank, dim=1).values for rank in ranks])


def _sampled(pieces: Iterable[Tensor], stride: int) -> list[np.ndarray]:
    """Return every stride-th column of some pieces."""
    return [piece[:, ::stride].numpy().copy() for piece in pieces if piece.shape[1]]


class Watch(Protocol):
    """Is told, in a pass over all numbers, on which side of a bracket they lie."""

    def begin(self) -> None:
        """Forget what was told: a pass begins, or the bracket of the last one missed."""

    def see(self, above: np.ndarray) -> None:
        """Take note of one piece: whether a column has a number above its row's bracket, (n,)."""

    def decide(self, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
        """Take note of numbers inside brackets, by their rows and their columns from the start of the pass.

        Their columns have been seen.
        """


class _Brackets:
    """Hold, for each row, two values between which its quantile very probably lies, and what lies around them."""

    watch: Watch | None = None

    def __init__(self, blocks: Sequence[np.ndarray], share: float) -> None:
        ends = np.array([_bracket(row, share) for row in zip(*blocks, strict=True)])
        self._low, self._high = ends[:, :1], ends[:, 1:]
        self._below = np.zeros(len(ends), dtype=np.int64)
        self._at_low, self._at_high = self._below.copy(), self._below.copy()
        self._inside: list[list[np.ndarray]] = [[] for _ in ends]
        self._near: list[tuple[np.ndarray, np.ndarray, tuple[int, int, int]]] = []
        self._waiting = self._seen = 0
        self._smaller = self._near_mask = np.empty(0, bool)  # reused, since fresh memory costs more than comparing

    def see(self, numbers: np.ndarray) -> None:
        """Count numbers below the brackets, (K, n); take those between and at their ends."""
        if numbers.shape != self._smaller.shape:
            self._smaller, self._near_mask = np.empty(numbers.shape, bool), np.empty(numbers.shape, bool)
        smaller = np.less(numbers, self._low, out=self._smaller)
        near = np.less_equal(numbers, self._high, out=self._near_mask)
        above = ~np.logical_and.reduce(near) if self.watch else None
        near ^= smaller
        self._below += [np.count_nonzero(row) for row in smaller]
        if above is not None:
            self.watch.see(above)
        places = np.flatnonzero(near)  # much faster than choosing by booleans
        self._near.append((places, numbers.reshape(-1)[places], (len(places), numbers.shape[1], self._seen)))
        self._seen += numbers.shape[1]
        self._waiting += len(places)
        if self._waiting > HELD:
            self._sort_out()

    def _sort_out(self) -> None:
        """Count what equals an end and keep the rest, so that many equal numbers take no memory."""
        if not self._near:
            return
        found, numbers, pieces = zip(*self._near, strict=True)
        counts, widths, firsts = np.array(pieces).T
        rows, columns = np.divmod(np.concatenate(found), np.repeat(widths, counts))
        values = np.concatenate(numbers)
        if self.watch:
            self.watch.decide(rows, columns + np.repeat(firsts, counts), values)
        for row, inside in enumerate(self._inside):
            own = values[rows == row]
            lowest, highest = own == self._low[row], own == self._high[row]
            self._at_low[row] += np.count_nonzero(lowest)
            self._at_high[row] += np.count_nonzero(highest & ~lowest)
            inside.append(own[~(lowest | highest)])
        self._near, self._waiting = [], 0

    def answers(self, rank: int) -> Tensor | None:
        """Return the rank-th smallest number of every row that was seen; None where a bracket missed it."""
        self._sort_out()
        found = [self._answer(row, rank - int(self._below[row])) for row in range(len(self._below))]
        return None if any(answer is None for answer in found) else torch.from_numpy(np.array(found))

    def _answer(self, row: int, position: int) -> np.generic | None:
        if position < 1:
            return None
        if position <= self._at_low[row]:
            return self._low[row, 0]
        inside = np.concatenate(self._inside[row])
        position -= int(self._at_low[row])
        if position <= len(inside):
            return np.partition(inside, position - 1)[position - 1]
        return self._high[row, 0] if position - len(inside) <= self._at_high[row] else None


def _bracket(blocks: Sequence[np.ndarray], share: float) -> tuple[np.generic, np.generic]:
    """Return two numbers of a row's sampled blocks around its quantile, as far apart as the blocks disagree about it.

    Numbers of a block are alike, so blocks tell less than as many single numbers. Every so many pieces were taken, so
    how layers differ from each other does no harm: each has its share of the sample. What does is how a block differs
    from the next, and the variance is that of successive differences.

    Source: Wolter, Introduction to Variance Estimation, 2007, Section 8.2, the second estimator for systematic samples.
    """
    sample, sizes = np.concatenate(blocks), np.array([len(block) for block in blocks])
    ordered, size = np.sort(sample), len(sample)
    middle = ordered[min(max(math.ceil(size * share), 1), size) - 1]
    below = np.add.reduceat(sample <= middle, np.cumsum(sizes) - sizes, dtype=np.int64)
    steps = np.diff(below - share * sizes)
    apart = math.sqrt(float(steps @ steps) * len(sizes) / (2 * len(steps))) if len(steps) else size
    margin = SIGMAS * max(apart, math.sqrt(size * share * (1 - share))) + 1
    first, last = math.floor(size * share - margin), math.ceil(size * share + margin)
    return ordered[min(max(0, first), size - 1)], ordered[min(max(0, last), size - 1)]
