"""LwPTV: layer-wise pruning of task vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..catalog.transforms import LayerMaskParams, LayerPruningParams, LwptvParams
from ..errors import MergeError
from ..masks import lwptv_masks
from ..types import Context, Static, TaskVectors, Weights
from .assemble import COLUMNS, Changed, add_to_base, merged_vector, pieces
from .sums import Sums

__all__ = ["absolute_value", "lwptv", "lwptv_masks", "salience", "scale_learned"]


def salience(task_vectors: TaskVectors, context: Context | None = None) -> tuple[tuple[str, ...], np.ndarray]:
    """Measure how far each expert's layer is from the experts' mean.

    Args:
        task_vectors: of K experts.
        context: told how much is done.

    Returns:
        The layers' names and the scores s_k^l = mean |τ_k^l − τ̄^l|, float64 of shape (K, L).

    Source: Zhang et al., 2025, arXiv:2506.09093, Eq. (5).
    Departure: Eq. (5) writes a norm; the text says "absolute average", a scalar, which is followed.
    """
    return _scores(task_vectors, _salient, context)


def lwptv(base: Weights, task_vectors: TaskVectors, params: LwptvParams, context: Context) -> Changed:
    """Replace the least salient layers of every expert by the base's, the same layers for all.

    Source: Zhang et al., 2025, arXiv:2506.09093, Algorithm 1; without ``shared`` the ablation of its shared mask.
    Departure: a layer is one parameter tensor. η = 0 keeps every layer and η = 1 none, where the printed algorithm
        prunes one and fails; ``engine.masks`` says what happens to ties.
    """
    if len(task_vectors.experts) < 2:
        raise MergeError("LwPTV compares experts with each other; choose at least 2, or leave it out.")
    sums = Sums(task_vectors.dtype) if params.shared else None
    scored = _scores(task_vectors, _salient, context, sums)
    return _pruned(task_vectors, params, scored, params.shared, sums.kept if sums else None)


def absolute_value(base: Weights, task_vectors: TaskVectors, params: LayerMaskParams, context: Context) -> Changed:
    """Replace the layers with the smallest task vectors on average by the base's, with LwPTV's rule.

    Source: Zhang et al., 2025, arXiv:2506.09093, Table 3.
    Departure: the paper does not say how layers are chosen; the threshold and, unless ``shared`` is off, the shared
        mask of LwPTV are used.
    """
    scored = _scores(task_vectors, lambda stack, total: stack.abs_(), context)
    return _pruned(task_vectors, params, scored, params.shared)


def scale_learned(
    base: Weights, task_vectors: TaskVectors, merged: Static, params: LwptvParams, context: Context
) -> Static:
    """Multiply learned layer-wise coefficients by η, because learning on pruned models inflates them.

    With ``rescale`` off the merge stays as it was learned: the ablation "without scaling" of Figure 4.

    Source: Zhang et al., 2025, arXiv:2506.09093, Algorithm 1, layer-wise AdaMerging.
    """
    if not params.rescale:
        return merged
    vector = merged_vector(base, task_vectors, merged)
    return add_to_base(base, task_vectors, lambda name: vector(name).mul_(params.eta), merged.info)


def _salient(stack: Tensor, total: Tensor) -> Tensor:
    """|τ_k − τ̄| of entries (K, n), in place, from the sum of their rows."""
    return stack.sub_(total, alpha=1 / len(stack)).abs_()


def _scores(
    task_vectors: TaskVectors,
    score: Callable[[Tensor, Tensor], Tensor],
    context: Context | None,
    sums: Sums | None = None,
) -> tuple[tuple[str, ...], np.ndarray]:
    """Mean scores of every layer; ``sums`` keeps those of task vectors, as far as there is room."""
    names, dtype = task_vectors.names, task_vectors.dtype
    scores = np.zeros((len(task_vectors.experts), len(names)))
    passing = torch.empty(COLUMNS, dtype=dtype)
    for index, name in enumerate(names):
        size, first = math.prod(task_vectors.shape(name)), 0
        kept = sums.of(name, task_vectors.shape(name)) if sums else None
        found = [torch.zeros(len(scores), dtype=dtype)]
        for part in pieces(task_vectors, name):
            count = part.shape[1]
            target = passing[:count] if kept is None else kept.view(-1)[first : first + count]
            found.append(score(part, torch.sum(part, dim=0, out=target)).sum(dim=1))
            first += count
        scores[:, index] = torch.stack(found).sum(dim=0, dtype=torch.float64).numpy() / max(size, 1)
        if context:
            context.progress((index + 1) / len(names), f"Salience of {name}")
    return names, scores


def _pruned(
    task_vectors: TaskVectors,
    params: LayerPruningParams,
    scored: tuple[tuple[str, ...], np.ndarray],
    share: bool = True,
    totals: dict[str, Tensor] | None = None,
) -> Changed:
    """Task vectors without the layers of low scores; ``totals`` are sums of the experts' own task vectors."""
    names, scores = scored
    masks, shared = lwptv_masks(scores, params.eta, params.count_frozen)
    pruned = frozenset(name for name, kept in zip(names, shared, strict=True) if not kept)
    details = {"kept_layers": int(shared.sum()), "layers": len(names)}
    if share:
        known = {name: total for name, total in (totals or {}).items() if name not in pruned}
        return Changed(
            task_vectors,
            lambda name, stack, experts: stack,
            pruned=pruned,
            details=details,
            elementwise=True,
            totals=known,
        )
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
