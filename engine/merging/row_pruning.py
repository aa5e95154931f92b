"""Model Breadcrumbs and DELLA: entries chosen by their rank within a row or a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog.sparse import BreadcrumbsParams, DellaParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base, in_columns
from .chance import bernoulli
from .ties import disjoint_merge


def breadcrumbs(base: Weights, task_vectors: TaskVectors, params: BreadcrumbsParams, context: Context) -> Static:
    """Drop the largest and the smallest entries of every task vector and add what is left.

    Source: Davari & Belilovsky, ECCV 2024, arXiv:2312.06795, §3.
    Departure: the paper masks layers, the authors' code the rows of the last dimension, which is the default here;
        ``scope: tensor`` masks whole tensors as mergekit does, without its fault of zeroing small tensors.
    """

    def vector(name: str) -> Tensor:
        total = torch.zeros(task_vectors.shape(name), dtype=task_vectors.dtype)
        for expert in task_vectors.experts:
            total += middle(task_vectors.vector(name, expert), params)
        return total.mul_(params.scaling)

    return add_to_base(base, task_vectors, vector)


def della(base: Weights, task_vectors: TaskVectors, params: DellaParams, context: Context) -> Static:
    """Drop entries at random, small ones more often, then elect signs and merge.

    Source: Deep et al., 2024, arXiv:2406.11617, §3 (MAGPRUNE).
    Departure: an entry that is kept is divided by its own probability, as in the authors' code; mergekit matches L1
        norms instead. Tensors of more than two dimensions are ranked by their first dimension.
    """

    def vector(name: str) -> Tensor:
        stack = dropped_at_random(task_vectors, name, params, context)
        merged = in_columns(stack, lambda part: disjoint_merge(part, "mean", lambda: 1.0)) if params.elect else None
        return (stack.sum(dim=0) if merged is None else merged).mul_(params.scaling)

    return add_to_base(base, task_vectors, vector)


def dropped_at_random(task_vectors: TaskVectors, name: str, params: DellaParams, context: Context) -> Tensor:
    """Return the experts' task vectors (K, *shape) of a layer with the entries that chance keeps, rescaled if asked."""
    stack = task_vectors.stack(name)
    for row, expert in zip(stack, task_vectors.experts, strict=True):
        keep = keep_probabilities(row, params.density, params.epsilon)
        row.mul_(bernoulli(keep, tuple(row.shape), context.seed, "della", expert, name))
        if params.rescale:
            row.div_(keep)
    return stack


def keep_probabilities(vector: Tensor, density: float, epsilon: float) -> Tensor:
    """Return probabilities that grow linearly with the rank of an entry's magnitude in its row, around the density."""
    if vector.numel() == 0:
        return torch.full_like(vector, density)
    rows = vector.reshape(len(vector), -1) if vector.dim() > 1 else vector.reshape(1, -1)
    length = rows.shape[1]
    if length == 1:
        return torch.full_like(vector, density)
    order = rows.abs().argsort(dim=1, stable=True)
    rising = torch.linspace(density - epsilon, density + epsilon, length, dtype=vector.dtype)
    return torch.empty_like(rows).scatter_(1, order, rising.expand_as(rows)).view(vector.shape)


def middle(vector: Tensor, params: BreadcrumbsParams) -> Tensor:
    """Return a task vector with only the entries below the largest and above the smallest of each row."""
    if vector.dim() == 0 or vector.numel() == 0:
        return vector
    rows = vector.view(-1, vector.shape[-1]) if params.scope == "row" else vector.view(1, -1)
    length = rows.shape[1]
    kept = int(length * params.beta)
    top = int(length * params.gamma)
    if params.scope == "tensor":
        top = min(top, length - kept)
    last = length - top
    chosen = rows.abs().argsort(dim=1)[:, max(last - kept, 0) : last]
    return torch.zeros_like(rows).scatter_(1, chosen, rows.gather(1, chosen)).view(vector.shape)
