"""TALL-masks and Consensus Merging: which entries of the summed vector serve which task."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog.sparse import ConsensusParams, TallParams
from ..types import Context, MergeInfo, PerTask, Static, TaskVectors, Weights
from .assemble import add_to_base
from .masked import MASK, RESCALER, VECTOR, distinct_tasks, pack, rebuild


def consensus(base: Weights, task_vectors: TaskVectors, params: ConsensusParams, context: Context) -> Static:
    """Keep the entries of the summed task vectors that serve at least a few tasks.

    Source: Wang et al., ICML 2024, arXiv:2405.07813, Eq. (5).
    Departure: the authors choose λ_t for every task by validation accuracy; here it is one parameter.
    """

    def vector(name: str) -> Tensor:
        stack = task_vectors.stack(name)
        summed = stack.sum(dim=0)
        agreeing = tall_masks(stack, summed, params.mask_strictness).sum(dim=0)
        return summed.mul_(agreeing >= params.agreeing).mul_(params.scaling)

    return add_to_base(base, task_vectors, vector)


def tall(base: Weights, task_vectors: TaskVectors, params: TallParams, context: Context) -> PerTask:
    """Keep, for each task, the entries of the summed task vectors that serve it.

    Source: Wang et al., ICML 2024, arXiv:2405.07813, Eq. (4).
    Departure: the authors choose λ_t for every task by validation accuracy; here it is one parameter.
    """
    tasks = distinct_tasks(context)
    parts: dict[str, Tensor] = {RESCALER + task: torch.ones(1, dtype=task_vectors.dtype) for task in tasks}
    entries = 0
    for index, name in enumerate(task_vectors.names):
        stack = task_vectors.stack(name)
        summed = stack.sum(dim=0)
        entries += summed.numel()
        parts[VECTOR + name] = summed
        for task, mask in zip(tasks, tall_masks(stack, summed, params.mask_strictness), strict=True):
            parts[f"{MASK}{task}/{name}"] = pack(mask)
        context.progress((index + 1) / len(task_vectors.names), f"Localising {name}")
    info = MergeInfo(needs_task_id=True, extra_bits=entries * len(tasks))
    return PerTask(parts, rebuild, tasks, info)


def tall_masks(stack: Tensor, summed: Tensor, strictness: float) -> Tensor:
    """Return the entries of (K, *shape) with |τ_k| > λ |Σ_j τ_j − τ_k|: they outweigh what the other tasks add."""
    return stack.abs() > (summed - stack).abs_().mul_(strictness)
