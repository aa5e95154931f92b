"""Random masks and vectors that depend on a seed and on what they are for, never on the order of drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

Draws = Callable[[tuple[str, ...]], Tensor]
_STORED: ContextVar[Draws | None] = ContextVar("stored_draws", default=None)


@contextmanager
def stored_draws(draws: Draws) -> Iterator[None]:
    """Look masks and normal numbers up by their purpose instead of drawing them, to repeat a published draw."""
    token = _STORED.set(draws)
    try:
        yield
    finally:
        _STORED.reset(token)


def bernoulli(keep: float | Tensor, shape: tuple[int, ...], seed: int, *purpose: str) -> Tensor:
    """Return a boolean mask whose entries are True with probability ``keep``.

    Args:
        keep: one probability, or one for every entry.
        shape: of the mask.
        seed: of the run.
        purpose: what the mask is for, such as the method, the expert and the layer.
    """
    stored = _STORED.get()
    if stored is not None:
        return stored(purpose)
    drawn = uniform(shape, seed, *purpose)
    if isinstance(keep, Tensor):
        return drawn < keep
    # numpy compares several times faster, in float32 like torch
    return torch.from_numpy(np.asarray(np.less(drawn.numpy(), np.float32(keep))))


def uniform(shape: tuple[int, ...], seed: int, *purpose: str) -> Tensor:
    """Return numbers from [0, 1), float32; the same for the same seed and purpose."""
    return torch.rand(shape, generator=_generator(seed, purpose))


def normal(shape: tuple[int, ...], seed: int, *purpose: str) -> Tensor:
    """Return the standard normal numbers, float32; the same for the same seed and purpose."""
    stored = _STORED.get()
    return torch.randn(shape, generator=_generator(seed, purpose)) if stored is None else stored(purpose)


def _generator(seed: int, purpose: tuple[str, ...]) -> torch.Generator:
    digest = blake2b("/".join((str(seed), *purpose)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
