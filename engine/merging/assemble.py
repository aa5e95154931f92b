"""Turning merged vectors into models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..types import MergeInfo, Static, TaskVectors, Weights


@dataclass(frozen=True)
class Added:
    """Weights θ_0 + τ, where τ is computed one tensor at a time and only for the layers that have task vectors."""

    base: Weights
    layers: frozenset[str]
    vector: Callable[[str], Tensor]

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors of the base, in its order."""
        return self.base.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor."""
        return self.base.shape(name)

    def tensor(self, name: str) -> Tensor:
        """One merged tensor in the compute dtype of its vector; tensors without task vectors are the base's."""
        base = self.base.tensor(name)
        if name not in self.layers:
            return base
        vector = self.vector(name)
        return vector.add_(base.to(vector.dtype))


def add_to_base(
    base: Weights, task_vectors: TaskVectors, vector: Callable[[str], Tensor], info: MergeInfo | None = None
) -> Static:
    """Make a static model of the base plus one vector a layer.

    Args:
        base: the pretrained weights.
        task_vectors: says which tensors are layers.
        vector: maps a layer's name to the merged vector, a fresh tensor of the layer's shape.
        info: what the method wants to report.
    """
    return Static(Added(base, frozenset(task_vectors.names), vector), info or MergeInfo())
