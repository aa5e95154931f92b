"""Isotropic merging and Subspace Boosting: the spectrum of the merged matrix made flatter."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog.low_rank import IsoCParams, IsoCtsParams, SubspaceBoostingParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base
from .spectra import is_matrix, polar, rank_of, svd


def iso_c(base: Weights, task_vectors: TaskVectors, params: IsoCParams, context: Context) -> Static:
    """Give all singular directions of the summed task matrices their mean singular value.

    Source: Marczak et al., ICML 2025, arXiv:2502.04959, Algorithm 1.
    Departure: tensors that are not matrices take the mean task vector, as in the authors' code; directions with a
        singular value of zero, which are arbitrary, are left out.
    """

    def vector(name: str) -> Tensor:
        stack = task_vectors.stack(name)
        if not is_matrix(name, task_vectors.shape(name), params.matrices):
            return stack.mean(dim=0).mul_(params.scaling)
        left, values, right = _directions(stack.sum(dim=0), name)
        return (left @ right).mul_(values.sum() / max(min(stack.shape[1:]), 1) * params.scaling)

    return add_to_base(base, task_vectors, vector)


def iso_cts(base: Weights, task_vectors: TaskVectors, params: IsoCtsParams, context: Context) -> Static:
    """Fill a part of the isotropic spectrum with directions that single tasks need.

    Source: Marczak et al., ICML 2025, arXiv:2502.04959, Algorithm 2.
    Departure: tensors that are not matrices take the mean task vector, as in the authors' code; directions with a
        singular value of zero, which are arbitrary, are left out. With more experts than free directions every expert
        gets as many as there are.
    """
    experts = len(task_vectors.experts)

    def vector(name: str) -> Tensor:
        stack = task_vectors.stack(name)
        shape = task_vectors.shape(name)
        if not is_matrix(name, shape, params.matrices):
            return stack.mean(dim=0).mul_(params.scaling)
        full = min(shape)
        each = min(round((full - int(full * params.common)) / experts), full // experts)
        left, values, right = _directions(stack.sum(dim=0), name, full - each * experts)
        blocks = [(left, values, right)]
        for matrix in stack:
            rest = matrix - left @ (left.T @ matrix)
            blocks.append(_directions(rest, name, each, rounding=float(matrix.norm())))
        spread = torch.cat([values for _, values, _ in blocks])
        if spread.numel() == 0:
            return torch.zeros(shape, dtype=task_vectors.dtype)
        left = polar(torch.cat([left for left, _, _ in blocks], dim=1))
        right = polar(torch.cat([right for _, _, right in blocks], dim=0))
        return (left @ right).mul_(spread.mean() * params.scaling)

    return add_to_base(base, task_vectors, vector)


def subspace_boosting(
    base: Weights, task_vectors: TaskVectors, params: SubspaceBoostingParams, context: Context
) -> Static:
    """Raise the small singular values of the summed task matrices to a floor.

    Source: Skorobogat et al., 2025, arXiv:2506.16506.
    Departure: written from the description; the authors' code was not compared. Other tensors are summed.
    """

    def vector(name: str) -> Tensor:
        total = task_vectors.stack(name).sum(dim=0)
        if not is_matrix(name, task_vectors.shape(name), params.matrices):
            return total.mul_(params.scaling)
        left, values, right = _directions(total, name)
        if values.numel():
            reached = values.cumsum(0) >= params.share * values.sum() * (1 - 1e-6)
            values = values.clamp(min=values[int(reached.int().argmax())])
        return (left * values @ right).mul_(params.scaling)

    return add_to_base(base, task_vectors, vector)


def _directions(
    matrix: Tensor, name: str, most: int | None = None, rounding: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the singular triples above rounding error, at most some; ``rounding`` is the norm of what was rounded."""
    left, values, right = svd(matrix, name)
    rank = rank_of(values, matrix.shape, rounding)
    rank = rank if most is None else min(rank, most)
    return left[:, :rank], values[:rank], right[:rank]
