"""Turning merged vectors into models, and models back into merged vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..types import MergeInfo, Static, TaskVectors, Weights

MergedVector = Callable[[str], Tensor]


@dataclass(frozen=True)
class Added:
    """Weights θ_0 + τ, where τ is computed one tensor at a time and only for the layers that have task vectors."""

    base: Weights
    task_vectors: TaskVectors
    vector: MergedVector

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors of the base, in its order."""
        return self.base.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor."""
        return self.base.shape(name)

    def dtype(self, name: str) -> torch.dtype:
        """The compute dtype for layers; the base's for every other tensor."""
        return self.task_vectors.dtype if name in self.task_vectors.names else self.base.dtype(name)

    def tensor(self, name: str) -> Tensor:
        """One merged tensor; tensors without task vectors are the base's."""
        base = self.base.tensor(name)
        if name not in self.task_vectors.names:
            return base
        return self.vector(name).to(self.task_vectors.dtype).add_(base.to(self.task_vectors.dtype))


def add_to_base(
    base: Weights, task_vectors: TaskVectors, vector: MergedVector, info: MergeInfo | None = None
) -> Static:
    """Make a static model of the base plus one vector a layer.

    Args:
        base: the pretrained weights.
        task_vectors: says which tensors are layers.
        vector: maps a layer's name to the merged vector, a fresh tensor of the layer's shape.
        info: what the method wants to report.
    """
    return Static(Added(base, task_vectors, vector), info or MergeInfo())


def merged_vector(base: Weights, task_vectors: TaskVectors, merged: Static) -> MergedVector:
    """The vector a static model adds to the base, one layer at a time."""
    if isinstance(merged.weights, Added):
        return merged.weights.vector
    dtype = task_vectors.dtype
    return lambda name: merged.weights.tensor(name).to(dtype).sub_(base.tensor(name).to(dtype))
