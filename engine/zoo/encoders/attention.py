"""Attention as plain matrix products, for transformations that the fused kernels do not support."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def plain_attention() -> Iterator[None]:
    """Compute attention as matrix products within this block.

    Fused kernels have no forward derivative (neither in training nor in evaluation mode, where modules take a fast
    path of their own) and cannot be mapped over many weights at once.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            warnings.filterwarnings("ignore", "`torch.jit.script` is", FutureWarning)  # of torch's forward derivatives
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
