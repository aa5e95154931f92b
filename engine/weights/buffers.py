"""Reused memory: touching fresh pages costs several times more than the arithmetic on them."""

from __future__ import annotations

import math
import sys
import threading

import numpy as np
import torch
from torch import Tensor

KEPT = 3


class Buffers:
    """Lends memory for tensors and takes it back when no tensor, and no view of one, uses it any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: list[np.ndarray] = []
        self._idle_references = self._references_of_an_idle_block()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return an uninitialised tensor like ``torch.empty``, in memory that may have served before."""
        size = math.prod(shape) * dtype.itemsize
        with self._lock:
            idle = sorted(
                (index for index in range(len(self._blocks)) if self._references(index) <= self._idle_references),
                key=lambda index: self._blocks[index].nbytes,
            )
            fits = [index for index in idle if self._blocks[index].nbytes >= size]
            if fits:
                lent = torch.from_numpy(self._blocks[fits[0]])
            else:
                if len(self._blocks) >= KEPT and idle:
                    del self._blocks[idle[0]]
                block = np.empty(max(size, 1), np.uint8)
                lent = torch.from_numpy(block)
                if len(self._blocks) < KEPT:
                    self._blocks.append(block)
        return lent[:size].view(dtype).view(shape)

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return Buffers, ()

    def _references(self, index: int) -> int:
        # A tensor made by from_numpy holds its array until its storage is freed, which shows here.
        return sys.getrefcount(self._blocks[index])

    def _references_of_an_idle_block(self) -> int:
        self._blocks.append(np.empty(1, np.uint8))
        idle = self._references(0)
        self._blocks.clear()
        return idle
