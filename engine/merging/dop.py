"""DOP: experts are merged one after the other, each pair within the directions that matter to both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..catalog.optimisation import DopParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base
from .spectra import is_matrix, svd

Report = Callable[[float], None]


def dop(base: Weights, task_vectors: TaskVectors, params: DopParams, context: Context) -> Static:
    """Merge the experts one by one; a matrix of each pair is moved until neither side's own directions are disturbed.

    Source: Yuan et al., Continual model merging without data, NeurIPS 2025; FusionBench's implementation.
    Departure: singular values weight the projections, as in the code; the text takes their roots. The attention's
        projections are one matrix in this layout and three in the published one, so that numbers of whole models
        differ. Tensors that are not matrices of transformer blocks are averaged pair by pair, so that earlier experts
        fade, as there. Where a loss is 0 its gradient is left as it is.
    """
    names = [name for name in task_vectors.names if is_matrix(name, task_vectors.shape(name), "blocks")]
    rounds = max(len(task_vectors.experts) - 1, 1)

    def vector(name: str) -> Tensor:
        first, *others = task_vectors.experts
        merged = task_vectors.vector(name, first)
        for round_, expert in enumerate(others):
            added = task_vectors.vector(name, expert)
            if name not in names:
                merged.add_(added).mul_(0.5)
                continue
            done = (names.index(name) + round_ / rounds) / len(names)

            def report(part: float, done: float = done, expert: str = expert) -> None:
                context.progress(done + part / rounds / len(names), f"Adding {expert} to {name}")

            merged = merge_pair(merged, added, params, report, name)
        return merged

    return add_to_base(base, task_vectors, vector)


@dataclass(frozen=True)
class _Side:
    """One of the two models: its matrix, and the weights of its own left and right directions."""

    vector: Tensor
    left: Tensor  # U S² Uᵀ (m, m)
    right: Tensor  # V S² Vᵀ (n, n)

    @classmethod
    def of(cls, vector: Tensor, params: DopParams, name: str) -> _Side:
        left, values, right = svd(vector, name)
        total = values.sum()
        kept = int(torch.searchsorted(values.cumsum(0) / total, params.energy)) if total > 0 else 0
        outer, inner = left[:, :kept] * values[:kept], right[:kept] * values[:kept, None]
        use_left, use_right = params.directions != "right", params.directions != "left"
        return cls(vector, outer @ outer.T * use_left, inner.T @ inner * use_right)

    def loss_and_gradient(self, merged: Tensor) -> tuple[float, Tensor]:
        """Return ‖S Uᵀ(τ − τ_i)‖² + ‖(τ − τ_i) V S‖² and its gradient in τ."""
        gap = merged - self.vector
        half = self.left @ gap + gap @ self.right
        return (gap * half).sum().item(), half.mul_(2)


def merge_pair(
    first: Tensor, second: Tensor, params: DopParams, report: Report = lambda part: None, name: str = "a task matrix"
) -> Tensor:
    """Return a matrix between two task matrices (m, n), a fresh tensor.

    Args:
        first: of the model merged so far.
        second: of the expert that is added.
        params: of the method.
        report: told the share of steps that is done; may raise ``Cancelled``.
        name: of the layer, for errors.
    """
    sides = [_Side.of(vector, params, name) for vector in (first, second)]
    merged = (first + second) / 2
    optimiser = torch.optim.Adam([merged], lr=params.learning_rate)
    share = params.stability
    for step in range(params.steps):
        if step % 25 == 0:
            report(step / params.steps)
        (loss, slope), (other_loss, other_slope) = (side.loss_and_gradient(merged) for side in sides)
        if params.balance == "adaptive":
            found = least_norm_share(slope / (loss or 1.0), other_slope / (other_loss or 1.0))
            share = params.smoothing * share + (1 - params.smoothing) * found
        merged.grad = slope.mul_(share).add_(other_slope, alpha=1 - share)
        optimiser.step()
    return merged.detach()


def least_norm_share(first: Tensor, second: Tensor) -> float:
    """Return the share γ in [0.001, 0.999] that makes γ a + (1 − γ) b shortest.

    Source: Sener & Koltun, NeurIPS 2018, arXiv:1810.04650, Algorithm 1, with the bounds of their code.
    """
    own, mixed, other = ((a * b).sum().item() for a, b in ((first, first), (first, second), (second, second)))
    if mixed >= own:
        return 0.999
    if mixed >= other:
        return 0.001
    return (other - mixed) / (own + other - 2 * mixed)
