"""DOGE: a shared correction learned outside the space that the tasks share."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog.optimisation import DogeParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import Changed, add_to_base
from .spectra import is_matrix, leading_svd, svd
from .ties import magnitude_thresholds


def doge(base: Weights, task_vectors: TaskVectors, params: DogeParams, context: Context) -> Static:
    """Learn one correction for all experts of a layer, orthogonal to their shared directions, and add large entries.

    Source: Wei et al., ICML 2025, arXiv:2501.01230, the data-free variant on task arithmetic.
    Departure: entries are chosen by the size of τ, not of the corrected τ, as in the authors' code; the projected
        gradient passes through Adam, whose own scale leaks out of the subspace, as there. Only matrices inside
        transformer blocks are merged; all other tensors stay the base's.
    """
    names = tuple(name for name in task_vectors.names if is_matrix(name, task_vectors.shape(name), "blocks"))
    inside = Changed(task_vectors, lambda name, stack, experts: stack, only=names)
    limits = magnitude_thresholds(inside, params.density, context)
    bounds = torch.stack([limits[expert] for expert in task_vectors.experts])

    def vector(name: str) -> Tensor:
        stack = task_vectors.stack(name)
        if name not in names or not stack.any():
            return torch.zeros_like(stack[0])
        norms = torch.linalg.vector_norm(stack, dim=(1, 2), keepdim=True)
        factors = torch.where(norms > 0, params.scaling / norms, 0.0)
        shared = _shared_basis(task_vectors, name, params.basis_divisor, context)
        correction = _correction(stack, factors, shared, params, context, names.index(name) / len(names))
        kept = stack.abs() >= bounds.view(-1, 1, 1)
        return (factors * (stack + correction) * kept).sum(dim=0)

    return add_to_base(base, task_vectors, vector)


def _shared_basis(task_vectors: TaskVectors, name: str, divisor: int, context: Context) -> Tensor:
    """Leading directions (m, r / divisor) of the leading directions of all experts."""
    full = min(task_vectors.shape(name))
    rank = full // len(task_vectors.experts)
    found = [leading_svd(task_vectors, name, expert, rank, context)[0] for expert in task_vectors.experts]
    return svd(torch.cat(found, dim=1))[0][:, : full // divisor]


def _correction(
    stack: Tensor, factors: Tensor, shared: Tensor, params: DogeParams, context: Context, fraction: float
) -> Tensor:
    """Adam on Σ_j ‖rowsum(τ_j ∘ (τ_j − Σ_i λ_i τ_i − Σ_i λ_i δ))‖², the gradient projected off the shared basis."""
    correction = torch.zeros_like(stack[0])
    optimiser = torch.optim.Adam([correction], lr=params.learning_rate)
    total = factors.sum()
    fixed = (stack * (stack - (factors * stack).sum(dim=0))).sum(dim=2)
    for step in range(params.steps):
        if step % 25 == 0:
            context.progress(fraction, f"Learning a correction, step {step} of {params.steps}")
        gap = fixed - total * (stack * correction).sum(dim=2)
        gradient = (gap[:, :, None] * stack).sum(dim=0).mul_(-2 * total)
        correction.grad = gradient - shared @ (shared.T @ gradient)
        optimiser.step()
    return correction.detach()
