"""KnOTS: task matrices aligned in one shared basis before they are merged."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..catalog.low_rank import KnotsParams
from ..types import Context, Static, TaskVectors, Weights
from .apply import Uncached
from .assemble import Changed, add_to_base
from .spectra import is_matrix, svd
from .ties import merge_trimmed


def knots(base: Weights, task_vectors: TaskVectors, params: KnotsParams, context: Context) -> Static:
    """Merge the coordinates of all experts in the singular basis of their concatenation.

    Source: Stoica et al., ICLR 2025, arXiv:2410.19735, §4.
    Departure: made for low-rank adapters, where every other tensor stays the base's; complete task matrices are aligned
        here, and ``merge_others`` averages the other tensors. Coordinates ΣVᵀ are computed as UᵀT when they are read,
        so that only the bases U are held.
    """
    names = tuple(name for name in task_vectors.names if is_matrix(name, task_vectors.shape(name), params.matrices))
    bases = {}
    for index, name in enumerate(names):
        context.progress(index / len(names), f"Aligning {name}")
        left, values, _ = svd(torch.cat(list(task_vectors.stack(name)), dim=1), name)
        bases[name] = left[:, values > params.smallest].contiguous()
    aligned = _Aligned(task_vectors, lambda name, stack, experts: bases[name].T @ stack, only=names, bases=bases)
    how = params.merge.removeprefix("ties_")
    # Coordinates depend on all experts, so that nothing of theirs is kept for one.
    merge = merge_trimmed(aligned, params.density, how, Uncached(context)) if params.merge != "sum" else None

    def vector(name: str) -> Tensor:
        if name in bases:
            coordinates = merge(name) if merge else aligned.stack(name).sum(dim=0)
            return (bases[name] @ coordinates).mul_(params.scaling)
        if params.merge_others:
            return task_vectors.stack(name).mean(dim=0).mul_(params.scaling)
        return torch.zeros(task_vectors.shape(name), dtype=task_vectors.dtype)

    return add_to_base(base, task_vectors, vector)


@dataclass(frozen=True)
class _Aligned(Changed):
    """Coordinates of task matrices, (r, n) for a matrix (m, n) with r directions in its basis."""

    bases: dict[str, Tensor] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.bases[name].shape[1], self.inner.shape(name)[1]
