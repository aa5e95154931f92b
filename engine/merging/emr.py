"""EMR-Merging: elect, mask and rescale. One unified vector; a mask and a scalar for each task."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog import NoParams
from ..types import Context, MergeInfo, PerTask, TaskVectors, Weights
from .masked import MASK, RESCALER, VECTOR, distinct_tasks, pack, rebuild


def emr(base: Weights, task_vectors: TaskVectors, params: NoParams, context: Context) -> PerTask:
    """Keep the largest agreeing entry of all experts, and for each task a mask and a rescaler.

    Source: Huang et al., NeurIPS 2024, arXiv:2405.17461, Algorithm 1.
    Departure: the paper defines the rescaler by global L1 sums; the authors' code sums the means of the tensors, so
        that small tensors weigh as much as large ones. The code is followed. A zero sum elects a negative sign.
    """
    tasks = distinct_tasks(context)
    parts: dict[str, Tensor] = {}
    wanted = torch.zeros(len(tasks), dtype=torch.float64)
    found = torch.zeros_like(wanted)
    entries = 0
    for index, name in enumerate(task_vectors.names):
        stack = task_vectors.stack(name)
        sign = torch.where(stack.sum(dim=0) > 0, 1.0, -1.0).to(stack.dtype)
        aligned = stack.mul_(sign)
        largest = aligned.amax(dim=0).clamp_(min=0)
        entries += largest.numel()
        for row, (task, vector) in enumerate(zip(tasks, aligned, strict=True)):
            mask = vector > 0
            parts[f"{MASK}{task}/{name}"] = pack(mask)
            wanted[row] += vector.abs().sum().item() / max(vector.numel(), 1)
            found[row] += (largest * mask).sum().item() / max(vector.numel(), 1)
        parts[VECTOR + name] = largest.mul_(sign)
        context.progress((index + 1) / len(task_vectors.names), f"Electing {name}")
    for task, rescaler in zip(tasks, torch.where(found > 0, wanted / found, 0.0), strict=True):
        parts[RESCALER + task] = rescaler.reshape(1)
    info = MergeInfo(
        needs_task_id=True,
        extra_parameters=len(tasks),
        extra_bits=entries * len(tasks),
        details={"rescaler": {task: float(parts[RESCALER + task]) for task in tasks}},
    )
    return PerTask(parts, rebuild, tasks, info)
