"""Matching units by the loss on the path: soft permutations, learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..types import Tensors
from .assignment import assign
from .symmetry import Symmetry

Loss = Callable[[Tensors], Tensor]


def sinkhorn(scores: Tensor, iterations: int = 20, temperature: float = 1.0) -> Tensor:
    """Return a nearly doubly stochastic matrix: columns and rows of exp(scores / temperature) are scaled in turn.

    Args:
        scores: (n, n), or a stack of such.
        iterations: each scales columns, then rows.
        temperature: the smaller, the nearer to a permutation.

    Source: Sinkhorn, 1964; as used by Navon et al., ICML 2024, arXiv:2310.13397.
    """
    logs = scores / temperature
    for _ in range(iterations):
        logs = logs - logs.logsumexp(dim=-2, keepdim=True)
        logs = logs - logs.logsumexp(dim=-1, keepdim=True)
    return logs.exp()


def softly_permuted(tensors: Tensors, symmetry: Symmetry, matrices: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Mix units: along every axis of a group, new = P · old. A permutation matrix reorders them."""
    found = dict(tensors)
    for group, matrix in matrices.items():
        for name, axis in symmetry.groups[group]:
            found[name] = torch.tensordot(matrix, found[name], dims=([1], [axis])).movedim(0, axis)
    return found


def path_loss(fixed: Tensors, moved: Tensors, position: float | Tensor, loss: Loss) -> Tensor:
    """Return L(λ θ_A + (1 − λ) π(θ_B)) at a position λ: 1 is the fixed network.

    Source: Navon et al., ICML 2024, arXiv:2310.13397, Eq. (5): its mean over uniform λ is ℓ_LMC.
    """
    return loss({name: position * tensor + (1 - position) * moved[name] for name, tensor in fixed.items()})


def sinkhorn_matching(
    fixed: Tensors,
    other: Tensors,
    symmetry: Symmetry,
    loss: Loss,
    steps: int = 1000,
    learning_rate: float = 0.05,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Tensor]:
    """Learn the order of units for which the loss on the path to another network is smallest.

    One matrix of scores for each group, made nearly a permutation by :func:`sinkhorn`, follows the gradient of the
    path's loss at a random position; in the end the best assignment counts.

    Args:
        fixed: θ_A.
        other: θ_B, whose units are reordered.
        symmetry: groups without heads; those within heads keep their order.
        loss: maps weights onto a scalar; called once a step, so it may draw a batch.
        steps: of Adam.
        learning_rate: of Adam.
        seed: of positions.
        progress: told the share of steps done.

    Source: the pairwise core of Navon et al., ICML 2024, arXiv:2310.13397, with the updates of Peña et al., CVPR 2023,
        arXiv:2212.12042. Departure: no network predicts the scores, which would need thousands of trained networks;
        they start at agreement of units with themselves.
    """
    within = {group for heads in symmetry.heads for group in heads.groups}
    sizes = {group: size for group, size in symmetry.sizes(other).items() if group not in within}
    like = next(iter(fixed.values()))
    scores = {group: torch.eye(size).to(like).requires_grad_() for group, size in sizes.items()}
    optimizer = torch.optim.Adam(scores.values(), lr=learning_rate)
    positions = torch.rand(steps, generator=torch.Generator().manual_seed(seed))
    for step in range(steps):
        optimizer.zero_grad()
        soft = {group: sinkhorn(matrix) for group, matrix in scores.items()}
        path_loss(fixed, softly_permuted(other, symmetry, soft), float(positions[step]), loss).backward()
        optimizer.step()
        if progress is not None:
            progress((step + 1) / steps)
    return {group: assign(matrix) for group, matrix in scores.items()}
