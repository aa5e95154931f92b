"""Weights of an architecture's true shapes that cost neither disk nor training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Made:
    """Weights of an architecture's true shapes: slices of one block of random numbers, on top of others.

    Of ``uneven`` weights every layer, and every row of it, has a scale of its own (log-normal, σ = 0.5 each), the same
    for all experts.
    """

    block = torch.randn(2**23, generator=torch.Generator().manual_seed(0))

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        start: int,
        scale: float,
        on: Any = None,
        uneven: bool = False,
    ) -> None:
        self._shapes, self._start, self._scale, self._on, self._uneven = shapes, start, scale, on, uneven
        self.names = tuple(shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        return torch.float32

    def tensor(self, name: str) -> torch.Tensor:
        size = torch.Size(self.shape(name)).numel()
        start = (self._start * 104_729 + self.names.index(name) * 7_919) % (len(self.block) - size)
        values = self.block[start : start + size].mul(self._scale).view(self.shape(name))
        if self._uneven:
            shape = self.shape(name)
            drawn = torch.randn(shape[0] + 1, generator=torch.Generator().manual_seed(self.names.index(name)))
            values.mul_(drawn[1:].add(drawn[0]).div(2).exp().view(-1, *[1] * (len(shape) - 1)))
        return values if self._on is None else values.add_(self._on.tensor(name))
