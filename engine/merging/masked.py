"""Models by task from one vector and a bit mask a task, as EMR-Merging and TALL-masks store them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError, MergeError
from ..types import Context, Tensors, Weights
from .assemble import Added

VECTOR, MASK, RESCALER = "vector/", "mask/", "rescaler/"


def rebuild(base: Weights, parts: Tensors, task: str) -> Added:
    """Return the weights of one task: θ_0 + λ_k M_k ∘ τ.

    Args:
        base: the pretrained weights.
        parts: ``vector/LAYER`` tensors, ``mask/TASK/LAYER`` packed bits, and ``rescaler/TASK`` scalars.
        task: one of the tasks of the parts.

    Raises:
        CheckpointError: parts are missing, or do not fit the base.
    """
    layers = frozenset(name.removeprefix(VECTOR) for name in parts if name.startswith(VECTOR))
    _check(base, parts, layers, task)
    rescaler = float(parts[RESCALER + task])

    def vector(name: str) -> Tensor:
        shared = parts[VECTOR + name]
        return shared * unpack(parts[f"{MASK}{task}/{name}"], shared.shape) * rescaler

    dtype = next((parts[VECTOR + name].dtype for name in layers), torch.float32)
    return Added(base, layers, dtype, vector)


def _check(base: Weights, parts: Tensors, layers: frozenset[str], task: str) -> None:
    """Refuse parts from which no weights can be made, before any are."""
    names = frozenset(base.names)
    rescaler = parts.get(RESCALER + task)
    if rescaler is None or rescaler.numel() != 1:
        raise CheckpointError(f"The merged model's parts hold no single rescaler for task '{task}'.")
    for name in layers:
        vector, mask = parts[VECTOR + name], parts.get(f"{MASK}{task}/{name}")
        if name not in names or base.shape(name) != tuple(vector.shape):
            raise CheckpointError(f"The merged model's {name} of shape {tuple(vector.shape)} is no layer of this base.")
        if mask is None or mask.dtype != torch.uint8 or mask.shape != (-(-vector.numel() // 8),):
            raise CheckpointError(f"The merged model's parts hold no mask of {name} for task '{task}' that fits.")


def distinct_tasks(context: Context) -> tuple[str, ...]:
    """Return the experts' tasks, which must differ for weights that depend on the task.

    Raises:
        MergeError: two experts are of one task.
    """
    if len(set(context.tasks)) != len(context.tasks):
        twice = next(task for task in context.tasks if context.tasks.count(task) > 1)
        raise MergeError(f"Two experts are of task '{twice}'; a merge by task needs one expert a task.")
    return context.tasks


def pack(mask: Tensor) -> Tensor:
    """Pack a boolean tensor into bytes of 8 bits."""
    return torch.from_numpy(np.packbits(mask.reshape(-1).numpy()))


def unpack(bits: Tensor, shape: torch.Size) -> Tensor:
    """Unpack a boolean tensor."""
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=shape.numel()).astype(bool)).view(shape)
