"""Distances between corrected and expert features, with their gradients written out."""

# ruff: noqa: F722
from __future__ import annotations

from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor

from ..catalog.calibrators import Loss
from ..errors import CalibrationError, nearest

SMOOTH_L1_BETA = 1.0


def distance(name: str, difference: Float[Tensor, "*stack batch dim"]) -> Float[Tensor, "*stack"]:
    """Return the mean distance of corrected to expert features, one number per task of the stack.

    Args:
        name: ``l1``, ``mse`` or ``smooth_l1`` (β = 1), each a mean over images *and* dimensions, or ``l2``, the mean
            Euclidean length.
        difference: corrected − expert, un-normalised feature units.

    Raises:
        CalibrationError: an unknown distance.
    """
    if name == "l1":
        return difference.abs().mean((-2, -1))
    if name == "mse":
        return difference.square().mean((-2, -1))
    if name == "smooth_l1":
        small = difference.abs().clamp(max=SMOOTH_L1_BETA)
        return (small * (difference.abs() - 0.5 * small)).mean((-2, -1)) / SMOOTH_L1_BETA
    if name == "l2":
        return torch.linalg.vector_norm(difference, dim=-1).mean(-1)
    raise CalibrationError(f"There is no distance '{name}'. {nearest(name, get_args(Loss))}")


def distance_and_gradient(
    name: str, difference: Float[Tensor, "stack batch dim"]
) -> tuple[Float[Tensor, " stack"], Float[Tensor, "stack batch dim"]]:
    """Return the value of :func:`distance` and its gradient with respect to the difference.

    Where |x| or ‖x‖ has no derivative (at 0) the gradient is 0, as in automatic differentiation.
    """
    value = distance(name, difference)
    batch, dim = difference.shape[-2:]
    if name == "l1":
        return value, difference.sign().div_(batch * dim)
    if name == "mse":
        return value, difference * (2.0 / (batch * dim))
    if name == "smooth_l1":
        return value, difference.clamp(-SMOOTH_L1_BETA, SMOOTH_L1_BETA).div_(SMOOTH_L1_BETA * batch * dim)
    length = torch.linalg.vector_norm(difference, dim=-1, keepdim=True)
    return value, torch.where(length > 0, difference / length, 0.0).div_(batch)
