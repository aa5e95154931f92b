"""Encoders whose weights depend on the image: what methods that route have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..types import Context, Forward, TaskVectors, Tensors, Weights
from ..zoo.encoders.attention import plain_attention

VECTOR, EXPERTS, ROUTER = "vector/", "experts/", "router/"
CHUNK = 2**25  # entries of weights that are made for single images at once


class RoutedEncoder(nn.Module):
    """Images (b, 3, h, w) → features (b, dim), each image through weights of its own."""

    def __init__(self, tensors: Tensors, forward: Forward) -> None:
        """Hold tensors as the module's state, so that they move with it, and the encoder's structure."""
        super().__init__()
        self._slots = {name: f"t{number}" for number, name in enumerate(tensors)}
        for name, tensor in tensors.items():
            self.register_buffer(self._slots[name], tensor, persistent=False)
        self.encode = forward

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors, where the module is now."""
        return {name: getattr(self, slot) for name, slot in self._slots.items()}

    @abstractmethod
    def weights_of(self, image: Tensor) -> dict[str, Tensor]:
        """Return the weights that one image (3, h, w) is encoded with, by canonical name."""


def per_image(function: Callable[..., Tensor], entries: int, *batches: Tensor) -> Tensor:
    """Apply a function of single images to batches, several images at a time.

    Args:
        function: maps one row of every batch onto a result; makes about ``entries`` numbers of weights on the way.
        entries: how many; bounds the memory that is used at once.
        batches: tensors of the same length.
    """
    chunk = max(1, CHUNK // max(1, entries))
    with plain_attention():
        return torch.vmap(function, chunk_size=chunk)(*batches)


def shared_weights(base: Weights, vectors: Mapping[str, Tensor], device: torch.device | None = None) -> Tensors:
    """Add vectors of some layers to θ_0; other tensors are the base's, floating-point ones in the same dtype."""
    dtype = next((vector.dtype for vector in vectors.values()), torch.float32)
    weights = {}
    for name in base.names:
        tensor = base.tensor(name)
        if tensor.is_floating_point():
            tensor = tensor.to(dtype)
        weights[name] = (tensor + vectors[name] if name in vectors else tensor).to(device)
    return weights


def by_name(task_vectors: TaskVectors) -> list[int]:
    """Return positions of the experts in the order of their names, so that chance does not depend on their order."""
    return sorted(range(len(task_vectors.experts)), key=task_vectors.experts.__getitem__)


def generator_of(context: Context) -> torch.Generator:
    """Return the random generator of a run's router."""
    return torch.Generator().manual_seed(context.seed)


def tensors_under(parts: Tensors, prefix: str) -> dict[str, Any]:
    """Return the stored tensors whose names start so, without the prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in parts.items() if name.startswith(prefix)}
