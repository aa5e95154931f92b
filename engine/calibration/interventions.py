"""The functions of IntervMerge's Table 7.

Row vectors throughout: h (…, n, k); R, W, W₁, W₂ (…, r, k) act from the right as in h Rᵀ; b (…, r).
"""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

Parts = Mapping[str, Tensor]
Delta = Callable[[Tensor, Parts], Tensor]

MATRICES = ("rotation", "source", "target")


def bias_only(h: Tensor, p: Parts) -> Float[Tensor, "*any 1 k"]:
    """Return Rᵀb: the same shift for every input (LobiReFT)."""
    return p["bias"].unsqueeze(-2) @ p["rotation"]


def constant(h: Tensor, p: Parts) -> Float[Tensor, "*any n k"]:
    """Return Rᵀ(b − Rh): within the subspace of R, replace by a constant (ConsReFT)."""
    return (p["bias"].unsqueeze(-2) - h @ p["rotation"].mT) @ p["rotation"]


def direct(h: Tensor, p: Parts) -> Float[Tensor, "*any n k"]:
    """Return Rᵀ(Wh + b) (DiReFT)."""
    return (h @ p["source"].mT + p["bias"].unsqueeze(-2)) @ p["rotation"]


def low_rank(h: Tensor, p: Parts) -> Float[Tensor, "*any n k"]:
    """Return Rᵀ(Wh + b − Rh) (LoReFT)."""
    return (h @ p["source"].mT + p["bias"].unsqueeze(-2) - h @ p["rotation"].mT) @ p["rotation"]


def unconstrained(h: Tensor, p: Parts) -> Float[Tensor, "*any n k"]:
    """Return W₂ᵀ(W₁h + b₁ − W₂h − b₂), the default (NoReFT).

    Departure: the paper prints one bias; only b₁ − b₂ matters in the result, but Adam moves both, as in the code.
    """
    inside = h @ p["source"].mT + p["bias"].unsqueeze(-2) - h @ p["target"].mT - p["target_bias"].unsqueeze(-2)
    return inside @ p["target"]


def unconstrained_direct(h: Tensor, p: Parts) -> Float[Tensor, "*any n k"]:
    """Return W₂ᵀ(W₁h + b₁), of the code but not of Table 7 (NodiReFT). Departure: the code stores an unused b₂."""
    return (h @ p["source"].mT + p["bias"].unsqueeze(-2)) @ p["target"]


FUNCTIONS: dict[str, Delta] = {
    "lobireft": bias_only,
    "consreft": constant,
    "direft": direct,
    "loreft": low_rank,
    "noreft": unconstrained,
    "nodireft": unconstrained_direct,
}


def orthonormal(rows: Float[Tensor, "*any r k"]) -> Float[Tensor, "*any r k"]:
    """Return the nearby matrix with orthonormal rows: Q of a QR decomposition, signs as before.

    Departure: the code moves R through Householder reflections of a fixed random base (and stores k × k buffers);
    here R is moved by its Euclidean gradient and brought back after every update, so trajectories differ.
    """
    q, r = torch.linalg.qr(rows.mT)
    signs = torch.diagonal(r, dim1=-2, dim2=-1).sign()
    return (q * torch.where(signs == 0, torch.ones_like(signs), signs).unsqueeze(-2)).mT
