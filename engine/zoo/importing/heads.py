"""Classification heads that people bring: unit rows and a logit scale, found in what was multiplied together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ...errors import CheckpointError
from ...types import Weights
from ...weights import PickledFile
from .sources import open_file

TOLERANCE = 2e-3  # of rows' norms among each other; half-precision heads stay below 1e-3
SCALE_RANGE = (1.5, 1000.0)  # exp(logit scale); CLIP clips it at 100


@dataclass(frozen=True)
class BroughtHead:
    """One task's head."""

    name: str  # in the file; '' where the file holds one head without a name
    rows: Tensor  # (classes, dim), unit norm, float32
    log_scale: float | None  # ln of what the rows were multiplied with; None for rows of unit norm
    bytes: int


def read_brought_heads(path: Path) -> list[BroughtHead]:
    """Read a head (a pickled ClassificationHead, or a file with `weight` and `bias`), or a file of heads by task.

    Raises:
        CheckpointError: no head, a bias, rows whose norms differ (a trained probe), or values that are not finite.
    """
    file = open_file(path)
    if isinstance(file, PickledFile) and file.settings.get("normalize") is False:
        raise CheckpointError(
            f"{path.name} classifies features that are not normalised; a zero-shot head normalises its input."
        )
    names = [name for name in file.names if len(file.shape(name)) == 2]
    weights = [name for name in names if name == "weight" or name.endswith(".weight")]
    biases = [name.removesuffix("weight") + "bias" for name in weights]
    for name in biases:
        _check_bias(file, name, path)
    stored = _stored_scale(file)
    if len(weights) == 1 and len(names) == 1:
        found = _head("", file, weights[0], path)
        return [replace(found, log_scale=found.log_scale or stored)]
    others = [name for name in file.names if name not in (*names, *biases, "logit_scale")]
    if not names or others:
        listed = ", ".join(f"{name:.60}" for name in (others or file.names)[:3])
        raise CheckpointError(
            f"{path.name} is no head: it holds {listed}. A tensor `weight` of shape (classes, dim), or one such tensor "
            "a task, is expected."
        )
    found = [_head(name.removesuffix(".weight"), file, name, path) for name in names]
    return [replace(head, log_scale=head.log_scale or stored) for head in found]


def common_scale(heads: Mapping[str, BroughtHead]) -> float | None:
    """Return the one log scale of a zoo's heads.

    Raises:
        CheckpointError: heads with different scales, which the zoo format cannot hold.
    """
    scales = {task: head.log_scale for task, head in heads.items() if head.log_scale is not None}
    if not scales:
        return None
    low, high = min(scales, key=scales.__getitem__), max(scales, key=scales.__getitem__)
    if scales[high] - scales[low] > TOLERANCE:
        raise CheckpointError(
            f"The heads have different logit scales: exp {scales[low]:.4f} ({low}) and exp {scales[high]:.4f} "
            f"({high}). Take heads that were built from one model."
        )
    return sum(scales.values()) / len(scales)


def _head(name: str, file: Weights, stored: str, path: Path) -> BroughtHead:
    shape = file.shape(stored)
    if shape[0] < 2 or not shape[1]:
        raise CheckpointError(f"{path.name}: the head {stored:.60} has shape {shape}; (classes, dim) is expected.")
    rows = file.tensor(stored).float()
    if not torch.isfinite(rows).all():
        raise CheckpointError(f"{path.name}: the head {stored:.60} holds values that are not finite.")
    norms = rows.norm(dim=1)
    low, high = float(norms.min()), float(norms.max())
    scale = float(norms.double().mean())
    if low <= 0 or (high - low) > TOLERANCE * scale:
        raise CheckpointError(
            f"{path.name}: rows of the head have norms from {low:.4g} to {high:.4g}. A zero-shot head has unit rows "
            "times one logit scale; a trained linear probe cannot be used."
        )
    unit = abs(scale - 1) <= 10 * TOLERANCE
    if not unit and not SCALE_RANGE[0] <= scale <= SCALE_RANGE[1]:
        raise CheckpointError(f"{path.name}: the head's logit scale would be {scale:.4g}; 1.5 to 1000 is plausible.")
    log_scale = None if unit else math.log(scale)
    return BroughtHead(name, torch.nn.functional.normalize(rows, dim=1), log_scale, rows.nbytes)


def _check_bias(file: Weights, name: str, path: Path) -> None:
    if name in file.names and float(file.tensor(name).float().abs().max()) > 1e-6:
        raise CheckpointError(
            f"{path.name}: the head has a bias that is not zero, so it is a trained probe; a zero-shot head has none."
        )


def _stored_scale(file: Weights) -> float | None:
    if "logit_scale" not in file.names or math.prod(file.shape("logit_scale")) != 1:
        return None
    scale = float(file.tensor("logit_scale"))
    return scale if math.isfinite(scale) else None
