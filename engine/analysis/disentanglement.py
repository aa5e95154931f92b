"""Weight disentanglement: does adding one task vector leave what another does on its own images alone?"""

# ruff: noqa: F722

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

Features = Callable[[int, float, float], Tensor]
Distance = Callable[[int, Tensor, Tensor], Tensor]


def disentanglement_error(
    alphas: Sequence[float],
    features: Features,
    distance: Distance,
    progress: Callable[[float], None] = lambda share: None,
) -> Float[Tensor, "g g 2"]:
    """Return both summands of ξ(α_1, α_2) on a grid; ξ is their sum.

    The t-th summand is the mean distance, on images of task t, between the model with α_t τ_t alone and the one with
    α_1 τ_1 + α_2 τ_2.

    Args:
        alphas: the grid, G values.
        features: maps a task (0 or 1), α_1 and α_2 onto features (n, dim) of the task's images under
            θ_0 + α_1 τ_1 + α_2 τ_2. Called G² + 2 G times for each task at most.
        distance: maps a task and two such matrices onto a scalar, such as :func:`disagreement`.
        progress: told the share of the grid that is done.

    Returns:
        Float64 (G, G, 2), α_1 in rows, α_2 in columns.

    Source: Ortiz-Jimenez et al., NeurIPS 2023, arXiv:2305.12827, Eq. (5).
    """
    found = torch.zeros(len(alphas), len(alphas), 2, dtype=torch.float64)
    for task in (0, 1):
        for own, alpha in enumerate(alphas):
            alone = features(task, *_at(task, alpha, 0.0))
            for other, beta in enumerate(alphas):
                both = features(task, *_at(task, alpha, beta)) if beta else alone
                row, column = (own, other) if task == 0 else (other, own)
                found[row, column, task] = distance(task, alone, both)
            progress((task * len(alphas) + own + 1) / (2 * len(alphas)))
    return found


def _at(task: int, own: float, other: float) -> tuple[float, float]:
    return (own, other) if task == 0 else (other, own)


def disagreement(heads: Sequence[Tensor | Callable[[Tensor], Tensor]]) -> Distance:
    """Return the distance that counts images whose prediction differs, as a share.

    Args:
        heads: of both tasks, rows (classes, dim), or what turns features (n, dim) into classes (n,).
    """

    def said(head: Tensor | Callable[[Tensor], Tensor], part: Tensor) -> Tensor:
        return (part @ head.to(part).T).argmax(dim=1) if isinstance(head, Tensor) else head(part)

    def differ(task: int, one: Tensor, two: Tensor) -> Tensor:
        first, second = (said(heads[task], part) for part in (one, two))
        return (first != second).double().mean()

    return differ


def feature_distance(task: int, one: Tensor, two: Tensor) -> Tensor:
    """Return the mean absolute difference of features, which has no ties and sees what predictions hide."""
    return (one - two).abs().double().mean()


def linear_features(
    base: Sequence[Float[Tensor, "n dim"]], changes: Sequence[Sequence[Float[Tensor, "n dim"]]]
) -> Features:
    """Return features of the linearised model on the whole grid, from one derivative for each expert and task.

    Args:
        base: f(x; θ_0) on each task's images.
        changes: ``changes[t][k]``: ∇f(x; θ_0)·τ_k on images of task t.

    Source: Ortiz-Jimenez et al., NeurIPS 2023, arXiv:2305.12827, Eq. (3).
    """
    return lambda task, first, second: base[task] + first * changes[task][0] + second * changes[task][1]
