"""Reading a tensor a part at a time, so that what is computed on it stays in the processor's cache."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from ..types import Weights

ReadPart = Callable[[int, np.ndarray], None]  # (number of the first entry, the bytes to fill: uint8, contiguous)


def open_parts(weights: Weights, name: str, dtype: torch.dtype) -> AbstractContextManager[ReadPart]:
    """Open a function that fills memory with entries of a flattened tensor, valid inside the ``with`` block.

    Weights that can read parts of a file do so; of others, and where a dtype has to be converted, the tensor is read
    once as a whole. Memory is handed over as bytes: a view of it is made once and not for each of many small parts.

    Args:
        weights: where the tensor is.
        name: of the tensor.
        dtype: of what is filled.
    """
    direct = getattr(weights, "open_parts", None)
    if direct is not None and weights.dtype(name) == dtype:
        return direct(name)
    whole = weights.tensor(name).to(dtype).reshape(-1).view(torch.uint8).numpy()

    def read(first: int, out: np.ndarray) -> None:
        start = first * dtype.itemsize
        out[:] = whole[start : start + len(out)]

    return nullcontext(read)
