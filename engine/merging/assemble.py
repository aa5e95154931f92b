"""Turning merged vectors into models, models back into merged vectors, and task vectors into changed ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..types import MergeInfo, Static, TaskVectors, Weights

MergedVector = Callable[[str], Tensor]
COLUMNS = 2**16  # entries of a layer that are worked on at once: eight experts' worth stays in the cache


@dataclass(frozen=True)
class Added:
    """Weights θ_0 + τ, where τ is computed one tensor at a time and only for the layers that have task vectors."""

    base: Weights
    layers: frozenset[str]
    compute_dtype: torch.dtype
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
        return self.compute_dtype if name in self.layers else self.base.dtype(name)

    def tensor(self, name: str) -> Tensor:
        """One merged tensor; tensors without task vectors are the base's."""
        base = self.base.tensor(name)
        if name not in self.layers:
            return base
        return self.vector(name).to(self.compute_dtype).add_(base.to(self.compute_dtype))


def add_to_base(
    base: Weights, task_vectors: TaskVectors, vector: MergedVector, info: MergeInfo | None = None
) -> Static:
    """Make a static model of the base plus one vector a layer.

    Args:
        base: the pretrained weights.
        task_vectors: says which tensors are layers, and the compute dtype.
        vector: maps a layer's name to the merged vector, a fresh tensor of the layer's shape.
        info: what the method wants to report.
    """
    return Static(Added(base, frozenset(task_vectors.names), task_vectors.dtype, vector), info or MergeInfo())


def merged_vector(base: Weights, task_vectors: TaskVectors, merged: Static) -> MergedVector:
    """The vector a static model adds to the base, one layer at a time."""
    if isinstance(merged.weights, Added):
        return merged.weights.vector
    dtype = task_vectors.dtype
    return lambda name: merged.weights.tensor(name).to(dtype).sub_(base.tensor(name).to(dtype))


def flat(stack: Tensor) -> Tensor:
    """A stack of layers (K, *shape) as a matrix (K, n), a view; also for layers that are scalars or empty."""
    return stack.view(len(stack), math.prod(stack.shape[1:]))


def in_columns(stack: Tensor, merge: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply an elementwise merge (K, n) → (n,) piece by piece and return the layer's shape."""
    out = torch.empty(stack.shape[1:], dtype=stack.dtype)
    for target, part in zip(out.view(-1).split(COLUMNS), flat(stack).split(COLUMNS, dim=1), strict=True):
        target.copy_(merge(part))
    return out


Change = Callable[[str, Tensor, Sequence[str]], Tensor]


@dataclass(frozen=True)
class Changed:
    """Task vectors that a transform changes when they are read.

    ``change`` maps a layer's name, the stacked vectors (which it may overwrite) and the experts they belong to onto
    the changed stack. ``together`` says that it must see all experts at once. Layers in ``pruned`` are zero and are
    not read at all. ``only`` leaves all other layers out.
    """

    inner: TaskVectors
    change: Change
    together: bool = False
    pruned: frozenset[str] = frozenset()
    only: tuple[str, ...] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def experts(self) -> tuple[str, ...]:
        """Names of the experts."""
        return self.inner.experts

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers."""
        return self.inner.names if self.only is None else self.only

    @property
    def dtype(self) -> torch.dtype:
        """The compute dtype."""
        return self.inner.dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one layer."""
        return self.inner.shape(name)

    def vector(self, name: str, expert: str) -> Tensor:
        """Changed τ of one expert for one layer."""
        if name in self.pruned:
            return torch.zeros(self.shape(name), dtype=self.dtype)
        if self.together:
            return self.stack(name)[self.experts.index(expert)]
        return self.change(name, self.inner.vector(name, expert)[None], (expert,))[0]

    def stack(self, name: str) -> Tensor:
        """Changed τ of all experts for one layer."""
        if name in self.pruned:
            return torch.zeros((len(self.experts), *self.shape(name)), dtype=self.dtype)
        return self.change(name, self.inner.stack(name), self.experts)
