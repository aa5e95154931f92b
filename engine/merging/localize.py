"""Localize-and-Stitch without data."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..catalog.sparse import LocalizeParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base
from .ties import thresholds_at


def localize_and_stitch(base: Weights, task_vectors: TaskVectors, params: LocalizeParams, context: Context) -> Static:
    """Keep each expert's largest entries; where several keep the same one, take their mean.

    Source: He et al., TMLR 2025, arXiv:2408.13656, §3 and its dataless variant.
    Departure: as in the authors' code an entry must exceed the n-th largest, so n − 1 are kept.
    """
    masks = largest_entries(task_vectors, params.density, context)
    return add_to_base(base, task_vectors, lambda name: stitched(task_vectors.stack(name), masks(name)))


def largest_entries(task_vectors: TaskVectors, density: float, context: Context) -> Callable[[str], Tensor]:
    """Return a function from a layer to masks (K, *shape) of each expert's largest entries in the whole model."""
    count = sum(math.prod(task_vectors.shape(name)) for name in task_vectors.names)
    found = thresholds_at(task_vectors, count - max(int(count * density), 1) + 1, context)
    limits = [found[expert] for expert in task_vectors.experts]

    def masks(name: str) -> Tensor:
        stack = task_vectors.stack(name)
        return torch.stack([row.abs_() > limit for row, limit in zip(stack, limits, strict=True)])

    return masks


def stitched(stack: Tensor, masks: Tensor) -> Tensor:
    """Return the mean, entry by entry, of the experts (K, *shape) whose masks hold the entry; 0 where none does."""
    return stack.mul_(masks).sum(dim=0).div_(masks.sum(dim=0).clamp_(min=1))
