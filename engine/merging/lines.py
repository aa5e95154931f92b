"""LiNeS: layers scaled by their depth."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog.transforms import LinesParams
from ..errors import MergeError
from ..layouts import block_of
from ..types import Context, Static, TaskVectors, Weights
from .assemble import MergedVector, add_to_base, merged_vector


def lines(base: Weights, task_vectors: TaskVectors, merged: Static, params: LinesParams, context: Context) -> Static:
    """Scale the merged vector by α + β · depth, so that shallow layers keep more of the base.

    Source: Wang et al., ICLR 2025, arXiv:2410.17146, Eq. (3) and §4.2.
    Departure: blocks are found by their name, where the authors' code looks for any dotted number; every tensor
        outside the blocks takes α, as in their code. A network with one block takes α throughout.
    """
    numbers = {name: block for name in task_vectors.names if (block := block_of(name)) is not None}
    if not numbers:
        raise MergeError("LiNeS scales by depth, and these weights have no numbered blocks. Leave it out.")
    depth = max(max(numbers.values()), 1)
    vector = merged_vector(base, task_vectors, merged)
    alpha = _norm_ratio(task_vectors, vector, context) if params.alpha_from_norms else params.alpha

    def scaled(name: str) -> Tensor:
        return vector(name).mul_(alpha + params.beta * numbers.get(name, 0) / depth)

    return add_to_base(base, task_vectors, scaled, merged.info)


def _norm_ratio(task_vectors: TaskVectors, vector: MergedVector, context: Context) -> float:
    """Return (1/K) · ‖Σ_k τ_k‖₁ / ‖merged vector‖₁, which is 1/K for a plain sum."""
    summed = found = 0.0
    for index, name in enumerate(task_vectors.names):
        summed += task_vectors.stack(name).sum(dim=0).abs_().sum(dtype=torch.float64).item()
        found += vector(name).abs().sum(dtype=torch.float64).item()
        context.progress((index + 1) / len(task_vectors.names), f"Norm of {name}")
    return summed / found / len(task_vectors.experts) if found else 0.0
