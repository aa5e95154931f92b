"""LwPTV: layer-wise pruning of task vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from ..catalog.transforms import LayerPruningParams, LwptvParams
from ..errors import MergeError
from ..masks import lwptv_masks
from ..types import Context, Static, TaskVectors, Weights
from .assemble import COLUMNS, Changed, add_to_base, flat, merged_vector

__all__ = ["absolute_value", "lwptv", "lwptv_masks", "salience", "scale_learned"]


def salience(task_vectors: TaskVectors, context: Context | None = None) -> tuple[tuple[str, ...], np.ndarray]:
    """How far each expert's layer is from the experts' mean.

    Args:
        task_vectors: of K experts.
        context: told how much is done.

    Returns:
        The layers' names and the scores s_k^l = mean |τ_k^l − τ̄^l|, float64 of shape (K, L).

    Source: Zhang et al., 2025, arXiv:2506.09093, Eq. (5).
    Departure: Eq. (5) writes a norm; the text says "absolute average", a scalar, which is followed.
    """

    def score(stack: Tensor) -> Tensor:
        return stack.sub_(stack.mean(dim=0)).abs_()

    return _scores(task_vectors, score, context)


def lwptv(base: Weights, task_vectors: TaskVectors, params: LwptvParams, context: Context) -> Changed:
    """Replace the least salient layers of every expert by the base's, the same layers for all.

    Source: Zhang et al., 2025, arXiv:2506.09093, Algorithm 1; without ``shared`` the ablation of its shared mask.
    Departure: a layer is one parameter tensor; see ``engine.masks`` for η = 0, η = 1 and ties.
    """
    if len(task_vectors.experts) < 2:
        raise MergeError("LwPTV compares experts with each other; choose at least 2, or leave it out.")
    return _pruned(task_vectors, params, salience(task_vectors, context), params.shared)


def absolute_value(base: Weights, task_vectors: TaskVectors, params: LayerPruningParams, context: Context) -> Changed:
    """LwPTV's rival: the same pruning of layers, by the mean magnitude of their task vectors.

    Source: Zhang et al., 2025, arXiv:2506.09093, Table 3.
    Departure: the paper does not say how; the threshold and the shared mask of LwPTV are used.
    """
    return _pruned(task_vectors, params, _scores(task_vectors, Tensor.abs_, context))


def scale_learned(
    base: Weights, task_vectors: TaskVectors, merged: Static, params: LwptvParams, context: Context
) -> Static:
    """Multiply learned layer-wise coefficients by η, because learning on pruned models inflates them.

    Source: Zhang et al., 2025, arXiv:2506.09093, Algorithm 1, layer-wise AdaMerging.
    """
    vector = merged_vector(base, task_vectors, merged)
    return add_to_base(base, task_vectors, lambda name: vector(name).mul_(params.eta), merged.info)


def _scores(
    task_vectors: TaskVectors, score: Callable[[Tensor], Tensor], context: Context | None
) -> tuple[tuple[str, ...], np.ndarray]:
    names = task_vectors.names
    scores = np.zeros((len(task_vectors.experts), len(names)))
    for index, name in enumerate(names):
        stack = flat(task_vectors.stack(name))
        for part in stack.split(COLUMNS, dim=1):
            scores[:, index] += score(part).sum(dim=1).double().numpy() / max(stack.shape[1], 1)
        if context:
            context.progress((index + 1) / len(names), f"Salience of {name}")
    return names, scores


def _pruned(
    task_vectors: TaskVectors,
    params: LayerPruningParams,
    scored: tuple[tuple[str, ...], np.ndarray],
    share: bool = True,
) -> Changed:
    names, scores = scored
    masks, shared = lwptv_masks(scores, params.eta, params.count_frozen)
    pruned = frozenset(name for name, kept in zip(names, shared, strict=True) if not kept)
    details = {"kept_layers": int(shared.sum()), "layers": len(names)}
    if share:
        return Changed(task_vectors, lambda name, stack, experts: stack, pruned=pruned, details=details)
    kept = {
        expert: frozenset(name for name, keep in zip(names, mask, strict=True) if keep)
        for expert, mask in zip(task_vectors.experts, masks, strict=True)
    }

    def prune(name: str, stack: Tensor, experts: Sequence[str]) -> Tensor:
        for row, expert in zip(stack, experts, strict=True):
            if name not in kept[expert]:
                row.zero_()
        return stack

    return Changed(task_vectors, prune, pruned=pruned, details=details)
