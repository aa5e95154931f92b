"""Findings of a comparison, and their distance from what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..types import Tensors

DTYPES = {"float64": torch.float64, "float32": torch.float32}


@dataclass(frozen=True)
class Tolerance:
    """Two numbers agree where |got − want| ≤ atol + rtol · |want|."""

    rtol: float
    atol: float


@dataclass(frozen=True)
class Found:
    """The engine's value for an entry, and the entry's own.

    ``precision`` names another row of the entry's tolerances where the reference itself computed in that precision.
    ``note`` says which part of an entry is not compared, and why.
    """

    got: Mapping[str, Any]
    want: Mapping[str, Any]
    precision: str = ""
    note: str = ""


Check = Callable[[Any, str, str], Found]
"""Maps a folder of references, an entry's name and a precision onto what was found."""


@dataclass(frozen=True)
class Measured:
    """The largest error of an entry and the largest share of its tolerance that an error takes (above 1: a miss)."""

    error: float
    share: float
    where: str

    @property
    def within(self) -> bool:
        """Return whether everything is within its tolerance."""
        return self.share <= 1


def measure(got: Mapping[str, Any], want: Mapping[str, Any], tolerance: Tolerance) -> Measured:
    """Compare tensors, arrays, lists or numbers by name; a missing name or another shape is an infinite error."""
    if set(got) != set(want):
        odd = sorted(set(got) ^ set(want))
        return Measured(math.inf, math.inf, f"{len(odd)} names differ, such as {odd[0]}")
    worst = Measured(0.0, 0.0, "")
    for name, expected in want.items():
        found = _compare(as_tensor(got[name]), as_tensor(expected), tolerance, name)
        worst = Measured(
            max(worst.error, found.error),
            max(worst.share, found.share),
            found.where if found.share > worst.share else worst.where,
        )
    return worst


def as_tensor(value: Any) -> Tensor:
    """Return a float64 tensor; a tensor with one entry counts as a scalar."""
    tensor = value.detach().double() if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    return tensor.reshape(()) if tensor.numel() == 1 else tensor


def _compare(got: Tensor, want: Tensor, tolerance: Tolerance, name: str) -> Measured:
    if got.shape != want.shape:
        return Measured(math.inf, math.inf, f"{name} has shape {tuple(got.shape)}, expected {tuple(want.shape)}")
    if not want.numel():
        return Measured(0.0, 0.0, name)
    error = (got - want).abs()
    if not error.isfinite().all():
        return Measured(math.inf, math.inf, f"{name} is not finite")
    allowed = tolerance.atol + tolerance.rtol * want.abs()
    share = torch.where(error > 0, error / allowed, 0.0)
    return Measured(error.max().item(), share.max().item(), name)


def stacked_by_task(tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors named ``task0/LAYER``, ``task1/LAYER`` … as stacks (K, *shape) by layer."""
    layers = [name.removeprefix("task0/") for name in tensors if name.startswith("task0/")]
    count = sum(name.endswith("/" + layers[0]) for name in tensors) if layers else 0
    return {layer: torch.stack([tensors[f"task{k}/{layer}"] for k in range(count)]) for layer in layers}
