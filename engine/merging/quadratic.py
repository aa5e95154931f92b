"""Methods that minimise a quadratic distance to all experts: the closed form, and WUDI's few steps towards it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog.optimisation import ClosedFormParams, WudiParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base
from .spectra import is_matrix


def closed_form(base: Weights, task_vectors: TaskVectors, params: ClosedFormParams, context: Context) -> Static:
    """Solve for the vector whose action on every expert's own directions differs least from the expert's.

    Source: minimiser of Σ_k w_k (‖(τ − τ_k)τ_kᵀ‖² + ω‖τ − τ_k‖²), w_k = 1/‖τ_k‖², the objective of WUDI-Merging
        (Cheng et al., ICML 2025, arXiv:2503.08099) with a ridge; the same linear system as RegMean's.
    Departure: tensors that are not matrices take the mean task vector.
    """

    def vector(name: str) -> Tensor:
        stack = task_vectors.stack(name)
        if not is_matrix(name, task_vectors.shape(name)):
            return stack.mean(dim=0)
        moved = _moved(stack).double()
        if len(moved) == 0:
            return torch.zeros(task_vectors.shape(name), dtype=task_vectors.dtype)
        squares = moved.square().sum(dim=(1, 2))
        ridge = params.omega * squares.mean() / moved.shape[2] if params.relative else params.omega
        identity = torch.eye(moved.shape[2], dtype=torch.float64)
        grams = ((moved.mT @ moved).add_(identity * ridge)).div_(squares[:, None, None])
        return solve(moved, grams).to(task_vectors.dtype)

    return add_to_base(base, task_vectors, vector)


def wudi(base: Weights, task_vectors: TaskVectors, params: WudiParams, context: Context) -> Static:
    """Take a few Adam steps from the sum of task vectors towards the least interference.

    The number of steps is part of the method: the exact minimiser does worse.

    Source: Cheng et al., ICML 2025, arXiv:2503.08099, Algorithm 1; nathanielyvo/WUDI-Merging.
    Departure: the gradient is written out (one matrix product a step, whatever the number of experts).
        ``matrices: blocks`` follows the authors, who leave all other tensors at the base; ``all`` follows FusionBench,
        which takes every matrix and the mean of other tensors.
    """
    names = [name for name in task_vectors.names if is_matrix(name, task_vectors.shape(name), params.matrices)]

    def vector(name: str) -> Tensor:
        stack = task_vectors.stack(name)
        if name not in names:
            return stack.mean(dim=0) if params.matrices == "all" else torch.zeros_like(stack[0])
        moved = _moved(stack)
        merged = stack.sum(dim=0)
        if len(moved) == 0:
            return merged
        grams = (moved.mT @ moved).div_(moved.square().sum(dim=(1, 2))[:, None, None])
        curvature, pull = grams.sum(dim=0), (moved @ grams).sum(dim=0)
        optimiser = torch.optim.Adam([merged], lr=params.learning_rate)
        for step in range(params.steps):
            if step % 25 == 0:
                context.progress((names.index(name) + step / params.steps) / len(names), f"Minimising in {name}")
            merged.grad = (merged @ curvature).sub_(pull).mul_(2)
            optimiser.step()
        return merged.detach()

    return add_to_base(base, task_vectors, vector)


def solve(stack: Tensor, grams: Tensor) -> Tensor:
    """Solve X Σ_k G_k = Σ_k T_k G_k for X, with T (K, m, n) and symmetric positive definite ΣG, G (K, n, n)."""
    factor = torch.linalg.cholesky(grams.sum(dim=0))
    return torch.cholesky_solve((stack @ grams).sum(dim=0).mT, factor).mT.contiguous()


def _moved(stack: Tensor) -> Tensor:
    """Return the experts whose matrix differs from the base's."""
    return stack[stack.abs().amax(dim=(1, 2)) > 0] if stack.numel() else stack[:0]
