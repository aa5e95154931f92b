"""Task vectors, one tensor at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from ..types import Weights
from .buffers import Buffers
from .files import read_into
from .parts import open_parts


class LazyTaskVectors:
    """τ_k = w_k (θ_k − θ_0), read from the experts when asked for.

    Only floating-point tensors of the base are layers; integer buffers stay the base's. Any mixture of stored dtypes
    is converted to the compute dtype before the subtraction.
    """

    def __init__(
        self,
        base: Weights,
        experts: Mapping[str, Weights],
        weights: Sequence[float] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Bind base and experts; nothing is read yet.

        Args:
            base: the pretrained weights θ_0.
            experts: fine-tuned weights by name, of the base's architecture.
            weights: how much of each expert's task vector takes part, in the experts' order.
            dtype: the compute dtype.
        """
        self._base, self._experts, self._dtype = base, dict(experts), dtype
        self._buffers = Buffers()
        self._names = tuple(name for name in base.names if base.dtype(name).is_floating_point)
        factors = [1.0] * len(self._experts) if weights is None else list(weights)
        self.weights = dict(zip(self._experts, factors, strict=True))

    @property
    def experts(self) -> tuple[str, ...]:
        """Return the names of the experts."""
        return tuple(self._experts)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the layers, in the base's order."""
        return self._names

    @property
    def dtype(self) -> torch.dtype:
        """Return the compute dtype."""
        return self._dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one layer."""
        return self._base.shape(name)

    def vector(self, name: str, expert: str) -> Tensor:
        """Return τ of one expert for one layer."""
        return self._read(name, (expert,))[0]

    def stack(self, name: str) -> Tensor:
        """Return τ of all experts for one layer: shape (K, *shape)."""
        return self._read(name, self.experts)

    def pieces(self, name: str, size: int, step: int = 1, skip: int = 0) -> Iterator[Tensor]:
        """Yield τ of all experts for one layer, flattened, in pieces (K, n ≤ size).

        Every step-th piece after the first ``skip``. The next piece overwrites the one before, which may be changed.
        """
        count, width = math.prod(self.shape(name)), len(self._experts)
        longest, item = min(size, count), self._dtype.itemsize
        block = self._buffers.empty(((width + 1) * longest,), self._dtype)
        memory = block.view(torch.uint8).numpy()
        factors = torch.tensor(list(self.weights.values()), dtype=self._dtype)[:, None]
        scaled = any(factor != 1 for factor in self.weights.values())
        with ExitStack() as opened:
            models = (*self._experts.values(), self._base)
            readers = [opened.enter_context(open_parts(model, name, self._dtype)) for model in models]
            for first in range(skip * size, count, size * step):
                length = min(size, count - first)
                for row, read in enumerate(readers):
                    read(first, memory[row * length * item : (row + 1) * length * item])
                rows = block[: (width + 1) * length].view(width + 1, length)
                piece = rows[:width].sub_(rows[width])
                yield piece.mul_(factors) if scaled else piece

    def _read(self, name: str, experts: Sequence[str]) -> Tensor:
        base = self._buffers.empty(self.shape(name), self._dtype)
        read_into(self._base, name, base)
        out = self._buffers.empty((len(experts), *base.shape), self._dtype)
        for row, expert in enumerate(experts):
            read_into(self._experts[expert], name, out[row])
            out[row].sub_(base)
            if self.weights[expert] != 1.0:
                out[row].mul_(self.weights[expert])
        return out
