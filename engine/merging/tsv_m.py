"""Task Singular Vectors Merging."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog.low_rank import TsvMergeParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base
from .spectra import is_matrix, leading_svd, polar


def tsv_m(base: Weights, task_vectors: TaskVectors, params: TsvMergeParams, context: Context) -> Static:
    """Keep each expert's leading singular vectors, decorrelate them across experts, and add them up.

    Source: Gargiulo et al., CVPR 2025, arXiv:2412.00081, Algorithm 1.
    Departure: tensors that are not matrices take the mean task vector, as in the authors' code; with more experts
        than a matrix has ranks, that matrix stays the base's. Directions with a singular value of zero, which are
        arbitrary, are left out (low-rank experts); the code lets them turn the others.
    """

    def vector(name: str) -> Tensor:
        shape = task_vectors.shape(name)
        if not is_matrix(name, shape, params.matrices):
            return task_vectors.stack(name).mean(dim=0).mul_(params.scaling)
        rank = min(shape) // len(task_vectors.experts)
        if rank == 0:
            return torch.zeros(shape, dtype=task_vectors.dtype)
        triples = [leading_svd(task_vectors, name, expert, rank, context) for expert in task_vectors.experts]
        if not any(values.numel() for _, values, _ in triples):
            return torch.zeros(shape, dtype=task_vectors.dtype)
        left = polar(torch.cat([left for left, _, _ in triples], dim=1))
        values = torch.cat([values for _, values, _ in triples])
        right = polar(torch.cat([right for _, _, right in triples], dim=0))
        return (left * values @ right).mul_(params.scaling)

    return add_to_base(base, task_vectors, vector)
