"""EMR-Merging: elect, mask and rescale. One unified vector; a mask and a scalar for each task."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..catalog import NoParams
from ..errors import MergeError
from ..types import Context, MergeInfo, PerTask, TaskVectors, Tensors, Weights
from .assemble import Added, flat

UNIFIED, MASK, RESCALER = "unified/", "mask/", "rescaler/"


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
        agrees = stack * sign > 0
        unified = (stack * sign).clamp_(min=0).amax(dim=0).mul_(sign)
        parts[UNIFIED + name] = unified
        for task, mask in zip(tasks, agrees, strict=True):
            parts[f"{MASK}{task}/{name}"] = pack(mask)
        entries += unified.numel()
        if unified.numel():
            wanted += flat(stack).abs().mean(dim=1).double()
            found += flat(agrees * unified).abs().mean(dim=1).double()
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


def rebuild(base: Weights, parts: Tensors, task: str) -> Added:
    """The weights of one task: θ_0 + λ_k M_k ∘ τ_uni.

    Args:
        base: the pretrained weights.
        parts: what :func:`emr` stored.
        task: one of the tasks it was made for.
    """
    layers = frozenset(name.removeprefix(UNIFIED) for name in parts if name.startswith(UNIFIED))
    # Stored scalars multiply in the vectors' own precision.
    rescaler = float(parts[RESCALER + task])

    def vector(name: str) -> Tensor:
        unified = parts[UNIFIED + name]
        return unified * unpack(parts[f"{MASK}{task}/{name}"], unified.shape) * rescaler

    dtype = next((parts[UNIFIED + name].dtype for name in layers), torch.float32)
    return Added(base, layers, dtype, vector)


def distinct_tasks(context: Context) -> tuple[str, ...]:
    """The experts' tasks, which must differ for weights that depend on the task.

    Raises:
        MergeError: two experts are of one task.
    """
    if len(set(context.tasks)) != len(context.tasks):
        twice = next(task for task in context.tasks if context.tasks.count(task) > 1)
        raise MergeError(f"Two experts are of task '{twice}'; a merge by task needs one expert a task.")
    return context.tasks


def pack(mask: Tensor) -> Tensor:
    """A boolean tensor as bytes of 8 bits."""
    return torch.from_numpy(np.packbits(mask.reshape(-1).numpy()))


def unpack(bits: Tensor, shape: torch.Size) -> Tensor:
    """The boolean tensor that was packed."""
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=shape.numel()).astype(bool)).view(shape)
