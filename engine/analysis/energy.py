"""Energy of inputs in low-rank subspaces: how much of what enters a matrix an update of low rank can see."""

# ruff: noqa: F722

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def input_directions(update: Float[Tensor, "out in"], rank: int) -> Float[Tensor, "rank in"]:
    """Return the orthonormal input directions that an update of a matrix reads most, at most ``rank``.

    There are no more of them than the update's numerical rank in float32, as weights are kept: none of no update.
    """
    _, values, rows = torch.linalg.svd(update.double(), full_matrices=False)
    noise = max(update.shape) * torch.finfo(torch.float32).eps * values.max()
    return rows[values > noise][:rank]


def orthonormal(rows: Float[Tensor, "rank in"]) -> Float[Tensor, "rank in"]:
    """Return an orthonormal basis of the span of some rows."""
    return torch.linalg.qr(rows.double().T).Q.T


def energy_share(directions: Float[Tensor, "rank in"], moment: Float[Tensor, "in in"]) -> float:
    """Return Σ ‖A h‖² / Σ ‖h‖² for inputs h with the uncentred second moment E[h hᵀ], up to a factor.

    Args:
        directions: A, orthonormal rows.
        moment: of the inputs.

    Source: the quantity that Zhang & Zhou, ACL 2025, arXiv:2505.22934, Eq. (6), makes small for other tasks.
        Departure: as a share of all energy, so that layers compare; a random subspace has rank / in.
    """
    moment = moment.double()
    whole = float(moment.diagonal().sum())
    return float(torch.einsum("ri,ij,rj->", directions, moment, directions)) / whole if whole > 0 else 0.0
