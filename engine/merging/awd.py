"""AWD: a redundant vector that all task vectors share is taken out before they are added."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog.optimisation import AwdParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base, flat


def awd(base: Weights, task_vectors: TaskVectors, params: AwdParams, context: Context) -> Static:
    """Make the task vectors of every layer as orthogonal as one common subtraction can, and add what is left.

    Gradient descent from δ = 0 never leaves the span of the task vectors, so δ = Σ_k a_k τ_k is learned by its K
    coefficients, from inner products alone.

    Source: Xiong et al., 2024, arXiv:2411.18729, the objective; a reconstruction.
    Departure: a reconstruction: the authors have published no code, and step size, number of steps and scope are ours.
        Plain gradient descent with a falling step, each layer by itself, lengths measured in mean lengths of the
        layer's task vectors, so that nothing depends on their scale. Experts that did not move in a layer are left out
        of its objective.
    """
    names = task_vectors.names

    def vector(name: str) -> Tensor:
        stack = task_vectors.stack(name)
        rows = flat(stack)
        context.progress(names.index(name) / len(names), f"Disentangling {name}")
        redundant = redundancy((rows @ rows.T).double(), params)
        total = 1 - len(rows) * redundant
        return (total.to(rows.dtype) @ rows).view(stack.shape[1:]).mul_(params.scaling)

    return add_to_base(base, task_vectors, vector)


def redundancy(inner: Tensor, params: AwdParams) -> Tensor:
    """Return coefficients a (K,) of the redundant vector Σ_k a_k τ_k, from inner products (K, K) of task vectors."""
    coefficients = torch.zeros(len(inner), dtype=inner.dtype)
    moved = inner.diagonal() > 0
    if moved.sum() < 2:
        return coefficients
    inner = inner[moved][:, moved]
    inner = inner / inner.diagonal().sqrt().mean().square()
    found = torch.zeros(len(inner), dtype=inner.dtype)
    for step in range(params.steps):
        found -= params.learning_rate * (1 - step / params.steps) * _slope(found, inner, params.penalty)
    coefficients[moved] = found
    return coefficients


def _slope(found: Tensor, inner: Tensor, penalty: float) -> Tensor:
    """Return the objective's gradient in δ, as coefficients of the task vectors."""
    count = len(inner)
    left = torch.eye(count, dtype=inner.dtype) - found  # row i: τ_i − δ in terms of the task vectors
    norms = (left @ inner * left).sum(dim=1).clamp(min=1e-24).sqrt()
    units = left / norms[:, None]
    cosines = units @ inner @ units.T
    signs = cosines.sign().fill_diagonal_(0)
    pulls = signs @ units - (signs * cosines).sum(dim=1, keepdim=True) * units
    slope = -2 * (pulls / norms[:, None]).sum(dim=0) / (count * (count - 1))
    length = (found @ inner @ found).clamp(min=0).sqrt()
    return slope + penalty * found / length if length > 0 else slope
