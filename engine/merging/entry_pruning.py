"""Transforms that prune single entries of task vectors by a score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ..catalog.transforms import EntryPruningParams
from ..errors import MergeError
from ..types import Context, TaskVectors, Weights
from .assemble import Changed, all_pieces, pieces
from .selection import order_statistics
from .sums import Sums

OPEN = 2**22  # scores near a limit that are held until it is known


def pwptv(base: Weights, task_vectors: TaskVectors, params: EntryPruningParams, context: Context) -> Changed:
    """Apply LwPTV by parameters: prune the entries that differ least from the experts' mean.

    Source: Zhang et al., 2025, arXiv:2506.09093, Table 3.
    Departure: the paper gives no rule; LwPTV's threshold is applied to all entries of an expert.
    """
    if len(task_vectors.experts) < 2:
        raise MergeError("PwPTV compares experts with each other; choose at least 2, or leave it out.")
    return _pruned(task_vectors, params, _salient, context)


def magnitude(base: Weights, task_vectors: TaskVectors, params: EntryPruningParams, context: Context) -> Changed:
    """Prune the smallest entries of every task vector.

    Source: the control of Zhang et al., 2025, arXiv:2506.09093, Table 3; Han et al., NeurIPS 2015.
    Departure: the paper gives no rule; LwPTV's threshold is applied to all entries of an expert.
    """
    return _pruned(task_vectors, params, lambda stack, total: stack.abs_(), context)


def _salient(stack: Tensor, total: Tensor) -> Tensor:
    """|τ_k − τ̄| of entries (K, …), in place, from the sum of their rows."""
    return stack.sub_(total.div(len(stack))).abs_()


def _pruned(
    task_vectors: TaskVectors, params: EntryPruningParams, score: Callable[[Tensor, Tensor], Tensor], context: Context
) -> Changed:
    """Prune what has low scores; ``score`` overwrites entries (K, …), of which it also gets the sum."""
    count = sum(math.prod(task_vectors.shape(name)) for name in task_vectors.names)
    index = math.floor(count * params.eta + 1e-9)
    if params.eta <= 0:
        return Changed(task_vectors, lambda name, stack, experts: stack)
    if index >= count:
        return Changed(task_vectors, lambda name, stack, experts: stack, pruned=frozenset(task_vectors.names))

    def report(fraction: float, layer: str) -> None:
        context.progress(fraction, f"Scoring entries of {layer}")

    columns, sums = (_Columns(count), Sums(task_vectors.dtype)) if params.shared else (None, None)

    def scores(step: int) -> Iterable[Tensor]:
        if step == 1 and sums:
            return (score(piece, total) for piece, total in _summed(task_vectors, sums, report))
        return (score(piece, piece.sum(dim=0)) for piece in all_pieces(task_vectors, step, report))

    # numpy compares and reduces booleans an order of magnitude faster
    bounds = order_statistics(scores, count, [index + 1], watch=columns)[0].numpy()

    def kept(stack: Tensor, total: Tensor) -> np.ndarray:
        """Return the entries that stay; overwrites them."""
        above = np.greater(score(stack, total).numpy(), bounds.reshape(-1, *[1] * (stack.dim() - 1)))
        return np.asarray(np.logical_or.reduce(above) if params.shared else above)

    def prune(name: str, stack: Tensor, experts: Sequence[str]) -> Tensor:
        return stack.mul_(torch.from_numpy(kept(stack.clone(), stack.sum(dim=0))))

    def summed(stack: Tensor) -> Tensor:
        total = stack.sum(dim=0)
        return torch.from_numpy(np.multiply(total.numpy(), kept(stack, total)))

    if not params.shared:
        return Changed(task_vectors, prune, together=True, elementwise=True)
    totals = _pruned_sums(task_vectors, sums, columns.settled(bounds))
    return Changed(task_vectors, prune, together=True, elementwise=True, totals=totals, summed=summed)


class _Columns:
    """Tells from the pass that finds the limits which columns have a score above one, so that no second is needed."""

    def __init__(self, count: int) -> None:
        self._kept = np.empty(count, bool)
        self.begin()

    def begin(self) -> None:
        """Forget what was seen."""
        self._seen, self._held = 0, 0
        self._open: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # scores that may be above: row, column, value

    def see(self, above: np.ndarray) -> None:
        """Take note of a piece's columns."""
        first, self._seen = self._seen, self._seen + len(above)
        self._kept[first : self._seen] = above

    def decide(self, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
        """Take note of the scores that decide about columns that are still open."""
        if self._held > OPEN:
            return
        undecided = np.flatnonzero(~self._kept[columns])
        self._open.append((rows[undecided], columns[undecided], values[undecided]))
        self._held += len(undecided)

    def settled(self, limits: np.ndarray) -> np.ndarray | None:
        """Return whether each column has a score above its row's limit; None where that is not known of all."""
        if self._seen < len(self._kept) or self._held > OPEN:
            return None
        for rows, columns, values in self._open:
            self._kept[columns[values > limits[rows]]] = True
        return self._kept


def _summed(
    task_vectors: TaskVectors, sums: Sums, report: Callable[[float, str], None]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return all pieces (K, n) with the sums of their rows, which are kept as far as there is room."""
    sums.clear()
    for index, name in enumerate(task_vectors.names):
        report(index / len(task_vectors.names), name)
        kept, first = sums.of(name, task_vectors.shape(name)), 0
        for piece in pieces(task_vectors, name):
            last = first + piece.shape[1]
            yield piece, torch.sum(piece, dim=0, out=None if kept is None else kept.view(-1)[first:last])
            first = last


def _pruned_sums(task_vectors: TaskVectors, sums: Sums, columns: np.ndarray | None) -> dict[str, Tensor]:
    """Return the sums of the columns that stay, by layer; none where columns are not known."""
    if columns is None:
        return {}
    first = 0
    for name in task_vectors.names:
        last = first + math.prod(task_vectors.shape(name))
        if name in sums.kept:
            entries = sums.kept[name].view(-1).numpy()
            np.multiply(entries, columns[first:last], out=entries)
        first = last
    return sums.kept
