"""Accuracy of linearised merges for every coefficient, from one derivative for each expert."""

# ruff: noqa: F722

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..types import Head
from .interpolation import accuracy_and_loss


def combined(
    base: Float[Tensor, "n dim"], changes: Float[Tensor, "k n dim"], coefficients: Sequence[float]
) -> Float[Tensor, "n dim"]:
    """Return features of θ_0 + Σ λ_k τ_k in the tangent space: f(x; θ_0) + Σ λ_k ∇f·τ_k.

    Source: Ortiz-Jimenez et al., NeurIPS 2023, arXiv:2305.12827, Eq. (3).
    """
    return base + torch.einsum("k,knd->nd", torch.as_tensor(coefficients, dtype=base.dtype), changes)


def along(
    base: Float[Tensor, "n dim"],
    changes: Float[Tensor, "k n dim"],
    head: Head,
    labels: Int[Tensor, " n"],
    scalings: Sequence[float],
) -> list[tuple[float, float]]:
    """Return accuracy (percent) and loss (nats) of linearised task addition at each λ.

    Args:
        base: f(x; θ_0).
        changes: ∇f·τ_k of each expert.
        head: of the images' task.
        labels: of the images.
        scalings: values of λ.
    """
    count = len(changes)
    return [accuracy_and_loss(combined(base, changes, [scaling] * count), head, labels) for scaling in scalings]


def without_each(
    base: Float[Tensor, "n dim"],
    changes: Float[Tensor, "k n dim"],
    head: Head,
    labels: Int[Tensor, " n"],
    scaling: float,
) -> list[float]:
    """Return the accuracy (percent) of linearised task addition at λ with each expert left out in turn."""
    count = len(changes)
    kept = [[scaling * (other != left) for other in range(count)] for left in range(count)]
    return [accuracy_and_loss(combined(base, changes, one), head, labels)[0] for one in kept]


def departure(base: Float[Tensor, "n dim"], change: Float[Tensor, "n dim"], expert: Float[Tensor, "n dim"]) -> float:
    """Return ‖f − f_lin‖ / ‖f − f(θ_0)‖ of an expert: how far it is from the linear regime.

    Source: Ortiz-Jimenez et al., NeurIPS 2023, arXiv:2305.12827, §3. Departure: a ratio of norms over all images.
    """
    moved = (expert - base).norm()
    return float((expert - base - change).norm() / moved) if moved > 0 else 0.0
