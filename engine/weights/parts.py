"""Reading a tensor a part at a time, so that what is computed on it stays in the processor's cache."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ..types import Weights

ReadPart = Callable[[int, Tensor], None]  # (first entry, tensor (n,) to fill)


def open_parts(weights: Weights, name: str, dtype: torch.dtype) -> AbstractContextManager[ReadPart]:
    """A function that fills a tensor with entries of a flattened tensor, valid inside the ``with`` block.

    Weights that can read parts of a file do so; of others, and where a dtype has to be converted, the tensor is read
    once as a whole.

    Args:
        weights: where the tensor is.
        name: of the tensor.
        dtype: of what is filled.
    """
    direct = getattr(weights, "open_parts", None)
    if direct is not None and weights.dtype(name) == dtype:
        return direct(name)
    whole = weights.tensor(name).reshape(-1)

    def read(first: int, out: Tensor) -> None:
        out.copy_(whole[first : first + len(out)])

    return nullcontext(read)
