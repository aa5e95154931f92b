"""Attention rollout of a transformer, and the tokens that its last block reads."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ..features.blocks import Followed
from ..layouts import OPEN_CLIP, Layout
from .tower import Tokens, Tower, frozen


@dataclass(frozen=True)
class Looking:
    """Attention of an encoder to the tokens of n samples behind the class token: patches row by row, or words."""

    rollout: Float[Tensor, "n tokens"]  # shares of the class token's attention, 1 in all, 0 of what pads
    tokens: Float[Tensor, "n tokens width"]  # as they enter the last block


@torch.no_grad()
def look(encoder: nn.Module, batches: Iterable[Tensor], layout: Layout = OPEN_CLIP) -> Looking:
    """Return the attention rollout of the class token and the other tokens that the last block reads.

    Rollout is the class token's row of Π_l ½ (A_l + I), A_l the mean over heads of a block's attention; the class
    token's own share is left out and the rest adds up to 1.

    Args:
        encoder: left as it was found.
        batches: prepared images, or texts.
        layout: how the tensors of an encoder of texts are named.

    Returns:
        Float32, on the CPU.

    Raises:
        CalibrationError: the encoder is no transformer with a class token whose blocks can be followed.

    Source: Abnar and Zuidema, ACL 2020, arXiv:2005.00928, §3.
    """
    rollouts, tokens = [], []
    with frozen(encoder):
        if isinstance(encoder, Followed):
            return _read(encoder, batches, layout)
        tower = _Watching(encoder)
        for images in batches:
            tower.flow = None
            tower.run(tower.embed(images), 0, len(tower.blocks))
            row = tower.flow[:, 0, 1:].float().cpu()
            rollouts.append(row / row.sum(1, keepdim=True))
            tokens.append(tower.entered[:, 1:].float().cpu())
    return Looking(torch.cat(rollouts), torch.cat(tokens))


def _read(encoder: nn.Module, batches: Iterable[Tensor], layout: Layout) -> Looking:
    """Look at an encoder of texts by the queries and keys that its blocks compute; what pads has no share."""
    places = [layout.matrix(part).name.removesuffix(".weight") for part in ("q", "k")]
    asked: dict[tuple[int, int], Tensor] = {}
    entered: list[Tensor] = []
    hooks = [
        encoder.stations[-1].register_forward_pre_hook(
            lambda _, given, named: entered.append(_first(given, named)), with_kwargs=True
        )
    ]
    for number in range(len(encoder.stations)):
        for which, place in enumerate(places):
            module = encoder.get_submodule(f"{layout.blocks}{number}.{place}")
            key = (number, which)
            hooks.append(module.register_forward_hook(lambda _, given, out, key=key: asked.update({key: out})))
    rollouts, tokens = [], []
    try:
        for samples in batches:
            entered.clear()
            encoder(samples)
            there = encoder.there(samples)
            flow: Tensor | None = None
            for number in range(len(encoder.stations)):
                query, key = (
                    asked[number, which].unflatten(-1, (encoder.heads, -1)).transpose(1, 2) for which in (0, 1)
                )
                scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
                shares = scores.masked_fill(~there[:, None, None, :], -torch.inf).softmax(-1).mean(1)
                flow = _carried(shares, flow)
            row = (flow[:, 0, 1:] * there[:, 1:]).float().cpu()
            rollouts.append(row / row.sum(1, keepdim=True).clamp(min=torch.finfo(row.dtype).tiny))
            tokens.append(entered[0][:, 1:].float().cpu())
    finally:
        for hook in hooks:
            hook.remove()
    return Looking(torch.cat(rollouts), torch.cat(tokens))


def _first(given: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> Tensor:
    """Return a block's first argument, by whatever name it is given."""
    return next(iter((*given, *named.values())))


def _carried(shares: Tensor, flow: Tensor | None) -> Tensor:
    """Carry the flow (n, tokens, tokens) through a block's attention and what goes around it."""
    mixed = 0.5 * (shares + torch.eye(shares.shape[-1], device=shares.device, dtype=shares.dtype))
    return mixed if flow is None else mixed @ flow


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
        self.flow = _carried(shares, self.flow)
        if number == len(self.blocks) - 1:
            self.entered = x
        return super().attend(number, x, class_only)
