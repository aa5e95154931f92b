"""Base and task vectors that are held in memory, for methods that read all of them at every step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..types import TaskVectors, Weights
from .files import Memory

SHARE = 0.5  # of the accelerator's free memory that they may take; the rest is for what is computed
SMALL = 2**28  # bytes that they may take on a CPU, where memory belongs to others too


@dataclass(frozen=True)
class HeldVectors:
    """Task vectors (K, *shape) that lie on a device, by layer."""

    stacks: dict[str, Tensor]
    experts: tuple[str, ...]
    dtype: torch.dtype

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the layers."""
        return tuple(self.stacks)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one layer."""
        return tuple(self.stacks[name].shape[1:])

    def vector(self, name: str, expert: str) -> Tensor:
        """Return a copy of τ of one expert for one layer."""
        return self.stacks[name][self.experts.index(expert)].clone()

    def stack(self, name: str) -> Tensor:
        """Return a copy of τ of all experts for one layer: (K, *shape)."""
        return self.stacks[name].clone()


def on_device(
    base: Weights, task_vectors: TaskVectors, device: torch.device, beside: int = 0
) -> tuple[Weights, TaskVectors]:
    """Return base and task vectors as the device holds them.

    Where they would take more than half of a CUDA device's free memory, on a CPU more than 256 MiB, and on any other
    device they are returned as they are: read anew whenever they are asked for.

    Args:
        base: the pretrained weights.
        task_vectors: of the experts, maybe changed by transforms.
        device: where the method computes.
        beside: what else the method keeps there throughout, in tensors of all layers' size.
    """
    entries = sum(math.prod(task_vectors.shape(name)) for name in task_vectors.names)
    needed = (len(task_vectors.experts) + 1 + beside) * entries * task_vectors.dtype.itemsize
    room = SMALL if device.type == "cpu" else 0
    if device.type == "cuda":
        room = SHARE * torch.cuda.mem_get_info(device)[0]
    return (base, task_vectors) if needed > room else held(base, task_vectors, device)


def held(base: Weights, task_vectors: TaskVectors, device: torch.device) -> tuple[Memory, HeldVectors]:
    """Copy base and task vectors to a device; see :func:`on_device`."""
    stacks = {name: task_vectors.stack(name).to(device) for name in task_vectors.names}
    weights = Memory({name: base.tensor(name).to(device) for name in base.names})
    return weights, HeldVectors(stacks, task_vectors.experts, task_vectors.dtype)
