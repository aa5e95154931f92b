"""The functions of IntervMerge's Table 7, and where in a token and in an image they act.

Row vectors throughout: h (…, n, k); R, W, W₁, W₂ (…, r, k) act from the right as in h Rᵀ; b (…, r).
"""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from ..catalog.calibrators import IntervMergeParams
from ..errors import CalibrationError

Parts = Mapping[str, Tensor]
Delta = Callable[[Tensor, Parts], Tensor]

MATRICES = ("rotation", "source", "target")


def bias_only(h: Tensor, p: Parts) -> Float[Tensor, "*any 1 k"]:
    """Rᵀb: the same shift for every input (LobiReFT)."""
    return p["bias"].unsqueeze(-2) @ p["rotation"]


def constant(h: Tensor, p: Parts) -> Float[Tensor, "*any n k"]:
    """Rᵀ(b − Rh): within the subspace of R, replace by a constant (ConsReFT)."""
    return (p["bias"].unsqueeze(-2) - h @ p["rotation"].mT) @ p["rotation"]


def direct(h: Tensor, p: Parts) -> Float[Tensor, "*any n k"]:
    """Rᵀ(Wh + b) (DiReFT)."""
    return (h @ p["source"].mT + p["bias"].unsqueeze(-2)) @ p["rotation"]


def low_rank(h: Tensor, p: Parts) -> Float[Tensor, "*any n k"]:
    """Rᵀ(Wh + b − Rh) (LoReFT)."""
    return (h @ p["source"].mT + p["bias"].unsqueeze(-2) - h @ p["rotation"].mT) @ p["rotation"]


def unconstrained(h: Tensor, p: Parts) -> Float[Tensor, "*any n k"]:
    """W₂ᵀ(W₁h + b₁ − W₂h − b₂), the default (NoReFT).

    Departure: the paper prints one bias; only b₁ − b₂ matters in the result, but Adam moves both, as in the code.
    """
    inside = h @ p["source"].mT + p["bias"].unsqueeze(-2) - h @ p["target"].mT - p["target_bias"].unsqueeze(-2)
    return inside @ p["target"]


def unconstrained_direct(h: Tensor, p: Parts) -> Float[Tensor, "*any n k"]:
    """W₂ᵀ(W₁h + b₁), of the code but not of Table 7 (NodiReFT). Departure: the code stores an unused b₂."""
    return (h @ p["source"].mT + p["bias"].unsqueeze(-2)) @ p["target"]


FUNCTIONS: dict[str, tuple[tuple[str, ...], Delta]] = {
    "lobireft": (("rotation", "bias"), bias_only),
    "consreft": (("rotation", "bias"), constant),
    "direft": (("rotation", "source", "bias"), direct),
    "loreft": (("rotation", "source", "bias"), low_rank),
    "noreft": (("source", "bias", "target", "target_bias"), unconstrained),
    "nodireft": (("source", "bias", "target"), unconstrained_direct),
}


def orthonormal(rows: Float[Tensor, "*any r k"]) -> Float[Tensor, "*any r k"]:
    """The nearby matrix with orthonormal rows: Q of a QR decomposition, signs as before.

    Departure: the code moves R through Householder reflections of a fixed random base (and stores k × k buffers);
    here R is moved by its Euclidean gradient and brought back after every update, so trajectories differ.
    """
    q, r = torch.linalg.qr(rows.mT)
    signs = torch.diagonal(r, dim1=-2, dim2=-1).sign()
    return (q * torch.where(signs == 0, torch.ones_like(signs), signs).unsqueeze(-2)).mT


def block_numbers(config: IntervMergeParams, blocks: int) -> tuple[int, ...]:
    """Which blocks are changed, ascending.

    Raises:
        CalibrationError: a number that the encoder does not have, or no block at all.

    Source: IntervMerge, Table 3.
    """
    strides = {"all": 1, "every_second": 2, "every_third": 3, "every_fourth": 4}
    if isinstance(config.blocks, str):
        return tuple(range(0, blocks, strides[config.blocks]))
    wrong = [number for number in config.blocks if not 0 <= number < blocks]
    if wrong or not config.blocks:
        raise CalibrationError(
            f"Blocks {list(config.blocks)} were asked for; the encoder has blocks 0 to {blocks - 1}."
        )
    return tuple(sorted(set(config.blocks)))


def token_numbers(position: str, tokens: int) -> tuple[int, ...]:
    """Which tokens are changed; 0 is the class token, the rest are patches in reading order.

    Source: IntervMerge, Table 2. Departure: "middle" is not defined there; it is patch 25 of 49 in the code.
    """
    return {
        "class": (0,),
        "first": (1,),
        "middle": (1 + (tokens - 1) // 2,),
        "last": (tokens - 1,),
        "patches": tuple(range(1, tokens)),
        "all": tuple(range(tokens)),
    }[position]


def segment_starts(config: IntervMergeParams, block: int, width: int) -> tuple[tuple[int, ...], int]:
    """Which dimensions of a token are changed in a block: first dimensions of the slices, and their length k.

    Raises:
        CalibrationError: a slice would leave the token.

    Source: IntervMerge, §3.5 and Table 4. Departure: the code fixes the width at 768; here places are derived from
    it (shifted: [b·m, (b+1)·m) in block b; four: at the start, the end and around the quarters).
    """
    if config.mini == "none":
        return (0,), width
    length = config.mini_dims // 4 if config.mini == "four" else config.mini_dims
    starts = {
        "start": (config.mini_start,),
        "shifted": (block * length,),
        "four": (0, width - length, width // 4 - length // 2, 3 * width // 4 - length // 2),
    }[config.mini]
    if min(starts) < 0 or max(starts) + length > width:
        raise CalibrationError(
            f"A mini-intervention of {config.mini_dims} dimensions ({config.mini}) in block {block} leaves the token, "
            f"which is {width} wide. Use fewer dimensions."
        )
    return starts, length
