"""SCE: select by variance, calculate weights from energy, erase what goes against the sum."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog.weighted import SceParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base


def sce(base: Weights, task_vectors: TaskVectors, params: SceParams, context: Context) -> Static:
    """Weight every tensor of the experts by the energy of its most varying entries and add what agrees in sign.

    Source: Wan et al., FuseChat, EMNLP 2025, arXiv:2408.07990, §3.3; fanqiwan/FuseAI.
    Departure: in the authors' program the selection only enters the weights; mergekit also sets entries that are not
        selected to zero. Both are offered. mergekit weights experts equally where the mean squares of a tensor sum to
        less than 1e-6, which most tensors of a fine-tuned model do; only tensors without any change are here.
    """

    def vector(name: str) -> Tensor:
        merged, weights = weighted_entries(task_vectors.stack(name), params)
        total = weights.sum(dim=0)
        return (merged * weights).sum(dim=0).div_(torch.where(total > 0, total, 1.0)).mul_(params.scaling)

    return add_to_base(base, task_vectors, vector)


def weighted_entries(stack: Tensor, params: SceParams) -> tuple[Tensor, Tensor]:
    """Return the entries (K, *shape) that are merged and their weights, 0 where they go against the sum."""
    selected = stack * _most_varying(stack, params.select)
    merged = stack if params.unselected == "merge" else selected
    agreeing = torch.where(merged.sum(dim=0) >= 0, merged > 0, merged < 0)
    return merged, agreeing * _energy(selected).view(-1, *[1] * (stack.ndim - 1))


def _most_varying(stack: Tensor, share: float) -> Tensor:
    """A boolean mask of a layer's shape: the share of its varying entries whose variance over experts is largest."""
    if share >= 1 or not stack.numel():
        return torch.ones_like(stack[0], dtype=torch.bool)
    variance = stack.sort(dim=0).values.var(dim=0, unbiased=False).view(-1)  # alike in any order of experts
    count = int(torch.count_nonzero(variance) * share)
    mask = torch.zeros_like(variance, dtype=torch.bool)
    mask[variance.topk(count).indices] = True
    return mask.view(stack.shape[1:])


def _energy(stack: Tensor) -> Tensor:
    """Each expert's share (K,) of the squared entries of a layer; equal shares where all are zero."""
    squares = stack.square().view(len(stack), -1).mean(dim=1) if stack.numel() else torch.zeros(len(stack))
    total = squares.sum()
    return squares / total if total > 0 else torch.full_like(squares, 1 / len(squares))
