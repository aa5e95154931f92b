"""AWD: a redundant vector that all task vectors share is taken out before they are added."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog.optimisation import AwdParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base, flat

SPANNED = 1e-6  # least energy of a direction, in shares of the strongest's; below lies rounding
SQUARE = 1e-9  # least cosine of remainders that are not orthogonal
LEFT = 1e-9  # least length of a remainder, in mean lengths of the layer's task vectors


def awd(base: Weights, task_vectors: TaskVectors, params: AwdParams, context: Context) -> Static:
    """Make the task vectors of every layer as orthogonal as one common subtraction can, and add what is left.

    Gradient descent from δ = 0 never leaves the span of the task vectors, so δ = Σ_k a_k τ_k is learned in that
    span, from inner products alone.

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
    """Return coefficients a (K,) of the redundant vector Σ_k a_k τ_k, from inner products (K, K) of task vectors.

    The descent runs in an orthonormal basis of the task vectors' span: in coefficients of vectors that depend on each
    other, steps that cancel in the sum would grow without bound.
    """
    coefficients = torch.zeros(len(inner), dtype=inner.dtype)
    moved = inner.diagonal() > 0
    if moved.sum() < 2:
        return coefficients
    inner = inner[moved][:, moved]
    energies, directions = torch.linalg.eigh(inner / inner.diagonal().sqrt().mean().square())
    spanned = energies > SPANNED * energies[-1]
    lengths, directions = energies[spanned].sqrt(), directions[:, spanned]
    vectors = directions * lengths  # (K, rank): the task vectors in the basis
    found = torch.zeros_like(lengths)
    for step in range(params.steps):
        found -= params.learning_rate * (1 - step / params.steps) * _slope(found, vectors, params.penalty)
    coefficients[moved] = directions @ (found / lengths)
    return coefficients


def _slope(found: Tensor, vectors: Tensor, penalty: float) -> Tensor:
    """Return the objective's gradient in δ (rank,); a remainder of no length has no angle and does not pull."""
    count = len(vectors)
    left = vectors - found
    norms = left.norm(dim=1, keepdim=True)
    there = norms > LEFT
    units = torch.where(there, left / norms, 0)
    cosines = units @ units.T
    signs = torch.where(cosines.abs() > SQUARE, cosines.sign(), 0).fill_diagonal_(0)
    pulls = signs @ units - (signs * cosines).sum(dim=1, keepdim=True) * units
    slope = -2 * torch.where(there, pulls / norms, 0).sum(dim=0) / (count * (count - 1))
    length = found.norm()
    return slope + penalty * found / length if length > 0 else slope
