"""Sums of task vectors that are kept from one pass, so that merging needs no second."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

KEPT = 2**28  # entries that are kept, 1 GiB in float32
BLOCK = 2**24  # entries of a block of memory, which goes back when those of its layers have been handed out


class Sums:
    """Memory for the sums of layers, handed out one after another as long as there is room."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.kept: dict[str, Tensor] = {}
        self._dtype = dtype
        self.clear()

    def clear(self) -> None:
        """Forget all sums."""
        self.kept.clear()
        self._left, self._room = KEPT, torch.empty(0, dtype=self._dtype)

    def of(self, name: str, shape: Sequence[int]) -> Tensor | None:
        """Return memory for the sums of one layer, a tensor of its shape; None where there is no room left."""
        size = math.prod(shape)
        if size > self._left:
            return None
        if size > len(self._room):
            self._room = _block(max(size, min(BLOCK, self._left)), self._dtype)
        self.kept[name], self._room = self._room[:size].view(tuple(shape)), self._room[size:]
        self._left -= size
        return self.kept[name]


def _block(entries: int, dtype: torch.dtype) -> Tensor:
    """Memory in one block: large blocks of numpy are backed by large pages, which are touched faster."""
    return torch.from_numpy(np.empty(entries * dtype.itemsize, np.uint8)).view(dtype)
