"""Random masks that depend on a seed and on what they are for, never on the order in which they are drawn."""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor


def bernoulli(keep: float | Tensor, shape: tuple[int, ...], seed: int, *purpose: str) -> Tensor:
    """A boolean mask whose entries are True with probability ``keep``.

    Args:
        keep: one probability, or one for every entry.
        shape: of the mask.
        seed: of the run.
        purpose: what the mask is for, such as the method, the expert and the layer.
    """
    digest = blake2b("/".join((str(seed), *purpose)).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.rand(shape, generator=generator) < keep
