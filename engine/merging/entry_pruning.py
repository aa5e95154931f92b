"""Transforms that prune single entries of task vectors by a score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..catalog.transforms import EntryPruningParams
from ..errors import MergeError
from ..types import Context, TaskVectors, Weights
from .assemble import Changed, all_pieces
from .selection import order_statistics


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

    def scores(step: int) -> Iterable[Tensor]:
        return (score(piece, piece.sum(dim=0)) for piece in all_pieces(task_vectors, step, report))

    # numpy compares and reduces booleans an order of magnitude faster
    bounds = order_statistics(scores, count, [index + 1])[0].numpy()

    def kept(stack: Tensor, total: Tensor) -> np.ndarray:
        """Return the entries that stay; overwrites them."""
        above = np.greater(score(stack, total).numpy(), bounds.reshape(-1, *[1] * (stack.dim() - 1)))
        return np.asarray(np.logical_or.reduce(above) if params.shared else above)

    def prune(name: str, stack: Tensor, experts: Sequence[str]) -> Tensor:
        return stack.mul_(torch.from_numpy(kept(stack.clone(), stack.sum(dim=0))))

    def summed(stack: Tensor) -> Tensor:
        total = stack.sum(dim=0)
        return torch.from_numpy(np.multiply(total.numpy(), kept(stack, total)))

    return Changed(task_vectors, prune, together=True, elementwise=True, summed=summed if params.shared else None)
