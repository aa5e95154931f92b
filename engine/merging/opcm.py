"""OPCM: experts merged one after the other, each projected off what is there already."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog.low_rank import OpcmParams
from ..types import Context, MergeInfo, Static, TaskVectors, Weights
from .assemble import add_to_base
from .spectra import is_matrix, svd


def opcm(base: Weights, task_vectors: TaskVectors, params: OpcmParams, context: Context) -> Static:
    """Merge experts in sequence, removing from each what lies in the leading directions of the merge so far.

    The merged vector is kept at the mean norm of the experts' task vectors. Holds one model in memory.

    Source: Tang et al., 2025, arXiv:2501.09522.
    Departure: experts are taken in the order given; the reference shuffles them. The reference builds complete
        square bases; the same projection is written with the thin decomposition. With α = 1 all directions are
        protected, where the reference's search for a larger sum finds none and protects nothing.
    """
    first, *rest = task_vectors.experts
    merged = {name: task_vectors.vector(name, first) for name in task_vectors.names}
    norms, factor, factors = [_norm(merged)], 1.0, [1.0]
    for done, expert in enumerate(rest):
        norms.append(0.0)
        for index, name in enumerate(task_vectors.names):
            context.progress((done + index / len(task_vectors.names)) / len(rest), f"Projecting {expert}, {name}")
            vector = task_vectors.vector(name, expert)
            norms[-1] += vector.square().sum(dtype=torch.float64).item()
            if is_matrix(name, vector.shape, "blocks"):
                vector = _project(vector, merged[name], params.alpha, name)
            merged[name].mul_(factor).add_(vector)
        norms[-1] **= 0.5
        target, length = sum(norms) / len(norms), _norm(merged)
        factor = length / target if target and length else 1.0
        factors.append(factor)
        for tensor in merged.values():
            tensor.div_(factor)
    info = MergeInfo(details={"factor": factors})
    return add_to_base(base, task_vectors, lambda name: merged[name].clone(), info)


def _project(vector: Tensor, merged: Tensor, alpha: float, name: str) -> Tensor:
    """Remove the leading block and the whole diagonal of a task matrix in the singular basis of the merge."""
    left, values, right = svd(merged, name)
    if not values.any():
        return vector
    above = values.cumsum(0) / values.sum() > alpha
    leading = int(above.int().argmax()) if alpha < 1 and above.any() else len(values)
    core = left.T @ vector @ right.T
    removed = torch.zeros_like(core)
    removed[:leading, :leading] = core[:leading, :leading]
    removed.diagonal().copy_(core.diagonal())
    return vector - left @ removed @ right


def _norm(tensors: dict[str, Tensor]) -> float:
    return sum(tensor.square().sum(dtype=torch.float64).item() for tensor in tensors.values()) ** 0.5
