"""Encoders of texts: which tokens are there, what leaves each block, and the read-out on top of it."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..layouts import Layout


@runtime_checkable
class Padded(Protocol):
    """An encoder whose samples are of one length, so that not all tokens of one are there."""

    def there(self, samples: Any) -> Bool[Tensor, "n length"]:
        """Tell which tokens are there; the others pad."""


@runtime_checkable
class Followed(Padded, Protocol):
    """An encoder whose feature is read off the first token after the last block."""

    layout: Layout  # how its tensors are named

    @property
    def heads(self) -> int:
        """Return how many heads a block's attention has."""

    @property
    def stations(self) -> Sequence[nn.Module]:
        """Return the blocks in their order."""

    def embed(self, samples: Any) -> Float[Tensor, "n length width"]:
        """Return the tokens that enter the first block."""

    def read_out(self, first: Float[Tensor, "n width"]) -> Float[Tensor, "n dim"]:
        """Return features of what a block leaves at the first token."""


def present(encoder: nn.Module, samples: Tensor) -> Bool[Tensor, " rows"] | None:
    """Tell which tokens of prepared samples are there, one after another (n · length,); None where all of them are."""
    return encoder.there(samples).flatten() if isinstance(encoder, Padded) else None


@torch.no_grad()
def followed(encoder: nn.Module, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """Return one vector a sample after every block: its first token, and the mean over the tokens that are there.

    Args:
        encoder: a :class:`Followed` one in evaluation mode.
        batches: prepared samples.

    Returns:
        ``class`` and ``mean`` of shape (blocks, n, width), and ``features`` (n, dim), float32 on the CPU.
    """
    left: list[Tensor] = []

    def note(module: nn.Module, given: Any, output: Any) -> None:
        left.append(output[0] if isinstance(output, tuple) else output)

    hooks = [block.register_forward_hook(note) for block in encoder.stations]  # type: ignore[union-attr, operator]
    found: dict[str, list[Tensor]] = {"class": [], "mean": [], "features": []}
    try:
        for samples in batches:
            left.clear()
            features = encoder(samples)
            weight = encoder.there(samples)[..., None].to(features.dtype)  # type: ignore[operator]
            found["class"].append(torch.stack([tokens[:, 0] for tokens in left]).float().cpu())
            means = [(tokens * weight).sum(1) / weight.sum(1).clamp(min=1) for tokens in left]
            found["mean"].append(torch.stack(means).float().cpu())
            found["features"].append(features.float().cpu())
    finally:
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(parts, dim=-2) for name, parts in found.items()}
