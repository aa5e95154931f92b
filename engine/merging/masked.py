"""Models by task from one vector and a bit mask a task, as EMR-Merging and TALL-masks store them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..errors import MergeError
from ..types import Context, Tensors, Weights
from .assemble import Added

VECTOR, MASK, RESCALER = "vector/", "mask/", "rescaler/"


def rebuild(base: Weights, parts: Tensors, task: str) -> Added:
    """The weights of one task: θ_0 + λ_k M_k ∘ τ.

    Args:
        base: the pretrained weights.
        parts: ``vector/LAYER`` tensors, ``mask/TASK/LAYER`` packed bits, and ``rescaler/TASK`` scalars.
        task: one of the tasks of the parts.
    """
    layers = frozenset(name.removeprefix(VECTOR) for name in parts if name.startswith(VECTOR))
    rescaler = float(parts[RESCALER + task])

    def vector(name: str) -> Tensor:
        shared = parts[VECTOR + name]
        return shared * unpack(parts[f"{MASK}{task}/{name}"], shared.shape) * rescaler

    dtype = next((parts[VECTOR + name].dtype for name in layers), torch.float32)
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
