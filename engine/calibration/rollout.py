"""Attention rollout of a vision transformer, and the tokens that its last block reads."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from .tower import Tokens, Tower, frozen


@dataclass(frozen=True)
class Looking:
    """Attention of an encoder to the parts of n images; P patches, row by row."""

    rollout: Float[Tensor, "n patches"]  # shares of the class token's attention, 1 in all
    tokens: Float[Tensor, "n patches width"]  # of the patches, as they enter the last block


@torch.no_grad()
def look(encoder: nn.Module, batches: Iterable[Float[Tensor, "_ 3 h w"]]) -> Looking:
    """Return the attention rollout of the class token and the patches' tokens that the last block reads.

    Rollout is the class token's row of Π_l ½ (A_l + I), A_l the mean over heads of a block's attention; the class
    token's own share is left out and the rest adds up to 1.

    Args:
        encoder: left as it was found.
        batches: pre-processed images.

    Returns:
        Float32, on the CPU.

    Raises:
        CalibrationError: the encoder is no vision transformer with a class token.

    Source: Abnar and Zuidema, ACL 2020, arXiv:2005.00928, §3.
    """
    rollouts, tokens = [], []
    with frozen(encoder):
        tower = _Watching(encoder)
        for images in batches:
            tower.flow = None
            tower.run(tower.embed(images), 0, len(tower.blocks))
            row = tower.flow[:, 0, 1:].float().cpu()
            rollouts.append(row / row.sum(1, keepdim=True))
            tokens.append(tower.entered[:, 1:].float().cpu())
    return Looking(torch.cat(rollouts), torch.cat(tokens))


def attention_shares(module: nn.MultiheadAttention, x: Tokens) -> Float[Tensor, "n tokens tokens"]:
    """Return softmax(q kᵀ / √d) of normalised tokens, the mean over heads; every row adds up to 1."""
    width, heads = module.embed_dim, module.num_heads
    bias = module.in_proj_bias
    both = functional.linear(x, module.in_proj_weight[: 2 * width], None if bias is None else bias[: 2 * width])
    query, key = both.view(*x.shape[:2], 2, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
    scores = query @ key.transpose(-2, -1) / (width // heads) ** 0.5
    return scores.softmax(-1).mean(1)


class _Watching(Tower):
    """A tower that multiplies its blocks' attention up, and keeps what enters the last block."""

    flow: Tensor | None = None
    entered: Tensor

    def attend(self, number: int, x: Tokens, class_only: bool = False) -> Float[Tensor, "n asked width"]:
        """Return the output of a block's attention, and carry the flow through it."""
        block = self.blocks[number]
        shares = attention_shares(block.attn, block.ln_1(x))
        mixed = 0.5 * (shares + torch.eye(shares.shape[-1], device=shares.device, dtype=shares.dtype))
        self.flow = mixed if self.flow is None else mixed @ self.flow
        if number == len(self.blocks) - 1:
            self.entered = x
        return super().attend(number, x, class_only)
