"""Turning merged vectors into models, models back into merged vectors, and task vectors into changed ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..types import MergeInfo, Static, TaskVectors, Weights
from ..weights import read_into
from ..weights.buffers import Buffers

MergedVector = Callable[[str], Tensor]
COLUMNS = (
    2**14
)  # entries of a layer that are worked on at once: eight experts' worth stays in the cache nearest to a core
SAMPLED = 2**12  # entries of a piece where only some are looked at
LENT = Buffers()


@dataclass(frozen=True)
class Added:
    """Weights θ_0 + τ, where τ is computed one tensor at a time and only for the layers that have task vectors.

    Layers in ``unmoved`` are the base's, because no task vector of theirs is left.
    """

    base: Weights
    layers: frozenset[str]
    compute_dtype: torch.dtype
    vector: MergedVector
    unmoved: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """Return all tensors of the base, in its order."""
        return self.base.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self.base.shape(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the compute dtype for layers; the base's for every other tensor."""
        return self.compute_dtype if name in self.layers else self.base.dtype(name)

    def tensor(self, name: str) -> Tensor:
        """Return one merged tensor; tensors without task vectors are the base's."""
        if name not in self.layers:
            return self.base.tensor(name)
        base = LENT.empty(self.shape(name), self.compute_dtype)
        read_into(self.base, name, base)
        return base if name in self.unmoved else self.vector(name).to(self.compute_dtype).add_(base)


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
    layers, unmoved = frozenset(task_vectors.names), frozenset(getattr(task_vectors, "pruned", ()))
    return Static(Added(base, layers, task_vectors.dtype, vector, unmoved), info or MergeInfo())


def merged_vector(base: Weights, task_vectors: TaskVectors, merged: Static) -> MergedVector:
    """Return the vector a static model adds to the base, one layer at a time."""
    if isinstance(merged.weights, Added):
        return merged.weights.vector
    dtype = task_vectors.dtype
    return lambda name: merged.weights.tensor(name).to(dtype).sub_(base.tensor(name).to(dtype))


def flat(stack: Tensor) -> Tensor:
    """Return a stack of layers (K, *shape) as a matrix (K, n), a view; also for layers that are scalars or empty."""
    return stack.view(len(stack), math.prod(stack.shape[1:]))


def in_columns(stack: Tensor, merge: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply an elementwise merge (K, n) → (n,) piece by piece and return the layer's shape."""
    out = torch.empty(stack.shape[1:], dtype=stack.dtype)
    for target, part in zip(out.view(-1).split(COLUMNS), flat(stack).split(COLUMNS, dim=1), strict=True):
        target.copy_(merge(part))
    return out


def pieces(task_vectors: TaskVectors, name: str, size: int = COLUMNS, step: int = 1, skip: int = 0) -> Iterator[Tensor]:
    """Return a layer's stack in flat pieces (K, n) that stay in the cache; the caller may change them.

    Args:
        task_vectors: whose layer it is.
        name: of the layer.
        size: entries of a piece; all but the last have as many.
        step: only every step-th piece, for samples.
        skip: how many pieces are left out before the first.
    """
    direct = getattr(task_vectors, "pieces", None)
    if direct is not None:
        yield from direct(name, size, step, skip)
    else:
        yield from flat(task_vectors.stack(name)).split(size, dim=1)[skip::step]


def all_pieces(
    task_vectors: TaskVectors, step: int = 1, report: Callable[[float, str], None] | None = None
) -> Iterator[Tensor]:
    """Return the pieces of all layers, one after the other; the caller may change them.

    Args:
        task_vectors: whose layers they are.
        step: only every step-th of pieces that are smaller then, evenly over all layers, for samples.
        report: told how far the pass is, and in which layer.
    """
    size, before = COLUMNS if step == 1 else SAMPLED, 0
    for index, name in enumerate(task_vectors.names):
        if report:
            report(index / len(task_vectors.names), name)
        yield from pieces(task_vectors, name, size, step, -before % step)
        before += -(-math.prod(task_vectors.shape(name)) // size)


def in_pieces(task_vectors: TaskVectors, name: str, merge: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply an elementwise merge (K, n) → (n,) to a layer while it is read, piece by piece."""
    out = LENT.empty(task_vectors.shape(name), task_vectors.dtype)
    entries, first = out.view(-1), 0
    for piece in pieces(task_vectors, name):
        entries[first : first + piece.shape[1]] = merge(piece)
        first += piece.shape[1]
    return out


def total(task_vectors: TaskVectors, name: str, scaling: float = 1.0) -> Tensor:
    """Return λ Σ_k τ_k of a layer; some task vectors have sums at hand already. The caller may change it."""
    if name in getattr(task_vectors, "pruned", ()):
        return LENT.empty(task_vectors.shape(name), task_vectors.dtype).zero_()
    known = getattr(task_vectors, "totals", {}).pop(name, None)
    if known is not None:
        return known.mul_(scaling)
    summed = getattr(task_vectors, "summed", None)
    if summed is not None:
        return in_pieces(task_vectors.inner, name, lambda piece: summed(piece).mul_(scaling))
    return in_pieces(task_vectors, name, lambda piece: piece.sum(dim=0).mul_(scaling))


Change = Callable[[str, Tensor, Sequence[str]], Tensor]


@dataclass(frozen=True)
class Changed:
    """Task vectors that a transform changes when they are read.

    ``change`` maps a layer's name, the stacked vectors (which it may overwrite) and the experts they belong to onto
    the changed stack. ``together`` says that it must see all experts at once. Layers in ``pruned`` are zero and are
    not read at all. ``only`` leaves all other layers out. ``elementwise`` says that an entry changes by nothing but
    itself and the other experts' entry there, so that pieces can be changed. ``totals`` are sums Σ_k τ_k of layers
    that are known already; :func:`total` takes them out, so that their memory is free for the merged model. ``summed``
    makes the sum of a changed piece from an unchanged one, where that is faster.
    """

    inner: TaskVectors
    change: Change
    together: bool = False
    pruned: frozenset[str] = frozenset()
    only: tuple[str, ...] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    elementwise: bool = False
    totals: dict[str, Tensor] = field(default_factory=dict)
    summed: Callable[[Tensor], Tensor] | None = None

    @property
    def experts(self) -> tuple[str, ...]:
        """Return the names of the experts."""
        return self.inner.experts

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the layers."""
        return self.inner.names if self.only is None else self.only

    @property
    def dtype(self) -> torch.dtype:
        """Return the compute dtype."""
        return self.inner.dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one layer."""
        return self.inner.shape(name)

    def vector(self, name: str, expert: str) -> Tensor:
        """Return the changed τ of one expert for one layer."""
        if name in self.pruned:
            return torch.zeros(self.shape(name), dtype=self.dtype)
        if self.together:
            return self.stack(name)[self.experts.index(expert)]
        return self.change(name, self.inner.vector(name, expert)[None], (expert,))[0]

    def stack(self, name: str) -> Tensor:
        """Return the changed τ of all experts for one layer."""
        if name in self.pruned:
            return torch.zeros((len(self.experts), *self.shape(name)), dtype=self.dtype)
        return self.change(name, self.inner.stack(name), self.experts)

    def pieces(self, name: str, size: int, step: int = 1, skip: int = 0) -> Iterator[Tensor]:
        """Return the changed τ of all experts for one layer in flat pieces (K, n)."""
        if name in self.pruned:
            yield from self._nothing(name, size, step, skip)
            return
        if not self.elementwise:
            yield from flat(self.stack(name)).split(size, dim=1)[skip::step]
            return
        for piece in pieces(self.inner, name, size, step, skip):
            yield self.change(name, piece, self.experts)

    def _nothing(self, name: str, size: int, step: int, skip: int) -> Iterator[Tensor]:
        """Return the pieces of a pruned layer."""
        count = math.prod(self.shape(name))
        block = LENT.empty((len(self.experts) * min(size, count),), self.dtype)
        for first in range(skip * size, count, size * step):
            length = min(size, count - first)
            yield block[: len(self.experts) * length].zero_().view(len(self.experts), length)
