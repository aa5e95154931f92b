"""Localize-and-Stitch without data."""

from __future__ import annotations

import math

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
    count = sum(math.prod(task_vectors.shape(name)) for name in task_vectors.names)
    largest = max(int(count * params.density), 1)
    found = thresholds_at(task_vectors, count - largest + 1, context)

    def vector(name: str) -> Tensor:
        stack = task_vectors.stack(name)
        chosen = 0
        for row, expert in zip(stack, task_vectors.experts, strict=True):
            mask = row.abs() > found[expert]
            row.mul_(mask)
            chosen = mask.to(stack.dtype) + chosen
        return stack.sum(dim=0).div_(chosen.clamp_(min=1))

    return add_to_base(base, task_vectors, vector)
