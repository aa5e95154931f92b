"""DOGE: a shared correction learned outside the space that the tasks share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..catalog.optimisation import AdaMergingParams, DogeLearnedParams, DogeParams
from ..types import Context, Static, TaskVectors, Weights
from .adamerging import combine, learn_coefficients, learned_info
from .assemble import Changed, add_to_base
from .spectra import is_matrix, leading_svd, rank_of, svd
from .ties import magnitude_thresholds


def doge(base: Weights, task_vectors: TaskVectors, params: DogeParams, context: Context) -> Static:
    """Learn one correction for all experts of a layer, orthogonal to their shared directions, and add large entries.

    Source: Wei et al., ICML 2025, arXiv:2501.01230, the data-free variant on task arithmetic.
    Departure: entries are chosen by the size of τ, not of the corrected τ, as in the authors' code; the projected
        gradient passes through Adam, whose own scale leaks out of the subspace, as there. Only matrices inside
        transformer blocks are merged; all other tensors stay the base's.
    """
    names, kept = _block_entries(task_vectors, params.density, context)

    def vector(name: str) -> Tensor:
        stack = task_vectors.stack(name)
        if name not in names or not stack.any():
            return torch.zeros_like(stack[0])
        factors = _factors(stack, params.scaling)
        shared = _shared_basis(task_vectors, name, min(task_vectors.shape(name)) // params.basis_divisor, context)
        report = _reporter(context, names, name, params.steps)
        correction = _correction(stack, factors, shared, params.steps, params.learning_rate, report)
        return (factors * (stack + correction) * kept(stack)).sum(dim=0)

    return add_to_base(base, task_vectors, vector)


def doge_am(base: Weights, task_vectors: TaskVectors, params: DogeLearnedParams, context: Context) -> Static:
    """Correct every expert by itself, keep its large entries, and learn a coefficient for each layer and expert.

    The corrected vectors of all experts are held in memory while coefficients are learned.

    Source: Wei et al., ICML 2025, arXiv:2501.01230, the variant with AdaMerging.
    Departure: as in the authors' code, entries are chosen by the size of τ, not of the corrected τ, and the shared
        basis has min(m, n) / K directions. Coefficients start at η/‖τ‖ and are clamped to [0, 1] unless told otherwise.
    """
    names, kept = _block_entries(task_vectors, params.density, context)
    corrected: dict[str, Tensor] = {}
    initial: list[Tensor] = []
    for name in names:
        stack = task_vectors.stack(name)
        factors = _factors(stack, params.scaling)
        if stack.any():
            width = min(task_vectors.shape(name)) // len(task_vectors.experts)
            shared = _shared_basis(task_vectors, name, width, context)
            report = _reporter(context, names, name, params.correction_steps)
            found = _correction(stack, factors, shared, params.correction_steps, params.correction_rate, report, True)
            stack = (stack + found) * kept(stack)
        corrected[name] = stack
        initial.append(factors.view(-1))
    inside = Changed(task_vectors, lambda name, stack, experts: corrected[name].clone(), together=True, only=names)
    learning = AdaMergingParams(
        granularity="layer",
        steps=params.steps,
        batch_size=params.batch_size,
        learning_rate=params.learning_rate,
        clamp=params.clamp,
    )
    start = torch.stack(initial) if initial else torch.zeros(0, len(task_vectors.experts))
    coefficients, losses = learn_coefficients(base, inside, learning, context, start)
    rows = dict(zip(names, coefficients, strict=True))

    def vector(name: str) -> Tensor:
        if name not in rows:
            return torch.zeros(task_vectors.shape(name), dtype=task_vectors.dtype)
        return combine(rows[name], corrected[name])

    return add_to_base(base, task_vectors, vector, learned_info(inside, coefficients, losses, "layer"))


def _block_entries(
    task_vectors: TaskVectors, density: float, context: Context
) -> tuple[tuple[str, ...], Callable[[Tensor], Tensor]]:
    """Return names of matrices inside blocks, and a function from a stack to masks of each expert's large entries."""
    names = tuple(name for name in task_vectors.names if is_matrix(name, task_vectors.shape(name), "blocks"))
    inside = Changed(task_vectors, lambda name, stack, experts: stack, only=names)
    limits = magnitude_thresholds(inside, density, context)
    bounds = torch.stack([limits[expert] for expert in task_vectors.experts]).view(-1, 1, 1)
    return names, lambda stack: stack.abs() >= bounds


def _factors(stack: Tensor, scaling: float) -> Tensor:
    """Return η/‖τ_k‖ of every expert, (K, 1, 1); 0 where nothing moved."""
    norms = torch.linalg.vector_norm(stack, dim=(1, 2), keepdim=True)
    return torch.where(norms > 0, scaling / norms, 0.0)


def _shared_basis(task_vectors: TaskVectors, name: str, width: int, context: Context) -> Tensor:
    """Return the leading directions (m, width) of the leading directions of all experts."""
    rank = min(task_vectors.shape(name)) // len(task_vectors.experts)
    found = [leading_svd(task_vectors, name, expert, rank, context)[0] for expert in task_vectors.experts]
    joined = torch.cat(found, dim=1)
    left, values, _ = svd(joined, name)
    return left[:, : min(width, rank_of(values, joined.shape))]


def _reporter(context: Context, names: tuple[str, ...], name: str, steps: int) -> Callable[[int], None]:
    return lambda step: context.progress(
        (names.index(name) + step / steps) / len(names), f"Learning a correction, step {step} of {steps}"
    )


def _correction(
    stack: Tensor,
    factors: Tensor,
    shared: Tensor,
    steps: int,
    rate: float,
    report: Callable[[int], None],
    separate: bool = False,
) -> Tensor:
    """Run Adam on Σ_j ‖rowsum(τ_j ∘ (τ_j − Σ_i λ_i (τ_i + δ_i)))‖², the gradient projected off the shared basis.

    Returns one correction for all experts, or with ``separate`` one for each (K, m, n).
    """
    weights = factors if separate else factors.sum(dim=0, keepdim=True)
    correction = torch.zeros((len(weights), *stack.shape[1:]), dtype=stack.dtype)
    optimiser = torch.optim.Adam([correction], lr=rate)
    fixed = (stack * (stack - (factors * stack).sum(dim=0))).sum(dim=2)
    for step in range(steps):
        if step % 25 == 0:
            report(step)
        gap = fixed - (stack * (weights * correction).sum(dim=0)).sum(dim=2)
        gradient = (gap[:, :, None] * stack).sum(dim=0).mul_(-2)
        correction.grad = weights * (gradient - shared @ (shared.T @ gradient))
        optimiser.step()
    return correction.detach() if separate else correction.detach()[0]
