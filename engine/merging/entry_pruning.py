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
from .assemble import Changed, pieces
from .selection import order_statistics

SAMPLED, SPARED = 1024, 16  # entries of a block, and one block in so many, that a first guess looks at


def pwptv(base: Weights, task_vectors: TaskVectors, params: EntryPruningParams, context: Context) -> Changed:
    """LwPTV by parameters: prune the entries that differ least from the experts' mean.

    Source: Zhang et al., 2025, arXiv:2506.09093, Table 3.
    Departure: the paper gives no rule; LwPTV's threshold is applied to all entries of an expert.
    """
    if len(task_vectors.experts) < 2:
        raise MergeError("PwPTV compares experts with each other; choose at least 2, or leave it out.")
    return _pruned(task_vectors, params, lambda stack: (stack - stack.mean(dim=0)).abs_(), context)


def magnitude(base: Weights, task_vectors: TaskVectors, params: EntryPruningParams, context: Context) -> Changed:
    """Prune the smallest entries of every task vector.

    Source: the control of Zhang et al., 2025, arXiv:2506.09093, Table 3; Han et al., NeurIPS 2015.
    Departure: the paper gives no rule; LwPTV's threshold is applied to all entries of an expert.
    """
    return _pruned(task_vectors, params, Tensor.abs, context)


def _pruned(
    task_vectors: TaskVectors, params: EntryPruningParams, score: Callable[[Tensor], Tensor], context: Context
) -> Changed:
    count = sum(math.prod(task_vectors.shape(name)) for name in task_vectors.names)
    index = math.floor(count * params.eta + 1e-9)
    if params.eta <= 0:
        return Changed(task_vectors, lambda name, stack, experts: stack)
    if index >= count:
        return Changed(task_vectors, lambda name, stack, experts: stack, pruned=frozenset(task_vectors.names))

    def scores() -> Iterable[Tensor]:
        for place, name in enumerate(task_vectors.names):
            context.progress(place / len(task_vectors.names), f"Scoring entries of {name}")
            for piece in pieces(task_vectors, name):
                yield score(piece)

    def some() -> Iterable[Tensor]:
        """A sample of them, without reading the rest: blocks of a grid that runs on from layer to layer."""
        before = 0
        for name in task_vectors.names:
            for piece in pieces(task_vectors, name, SAMPLED, SPARED, -before % SPARED):
                yield score(piece).clone()
            before += -(-math.prod(task_vectors.shape(name)) // SAMPLED)

    # numpy compares and reduces booleans an order of magnitude faster
    bounds = order_statistics(scores, count, index + 1, some=some).numpy()

    def prune(name: str, stack: Tensor, experts: Sequence[str]) -> Tensor:
        kept = np.greater(score(stack).numpy(), bounds.reshape(-1, *[1] * (stack.dim() - 1)))
        return stack.mul_(torch.from_numpy(np.asarray(np.logical_or.reduce(kept) if params.shared else kept)))

    return Changed(task_vectors, prune, together=True, elementwise=True)
