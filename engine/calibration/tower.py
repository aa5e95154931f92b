"""The stations of an open_clip vision transformer that deep calibrators stop at."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ..errors import CalibrationError

Tokens = Float[Tensor, "n tokens width"]


class Tower:
    """Walks through a vision transformer block by block; n images, L tokens (class token first), width W.

    Raises:
        CalibrationError: the encoder is not such a transformer.
    """

    def __init__(self, encoder: nn.Module) -> None:
        self.visual = getattr(encoder, "visual", encoder)
        blocks = getattr(getattr(self.visual, "transformer", None), "resblocks", None)
        usable = blocks is not None and all(_plain(getattr(block, "attn", None)) for block in blocks)
        if not usable or getattr(self.visual, "attn_pool", None) is not None or self.visual.pool_type != "tok":
            raise CalibrationError(
                f"This calibrator acts inside open_clip vision transformers that read the class token; "
                f"{type(self.visual).__name__} is not one. Choose a calibrator of the output, such as Surgery."
            )
        self.blocks = list(blocks)

    @property
    def weight(self) -> Tensor:
        """Return a tensor whose device and dtype are the encoder's."""
        return self.visual.conv1.weight

    def sizes(self) -> dict[str, int]:
        """Return ``dim`` of the features, ``width`` and number of ``tokens``, number of ``blocks``."""
        tokens, width = self.visual.positional_embedding.shape
        return {"dim": self.visual.proj.shape[1], "width": width, "blocks": len(self.blocks), "tokens": tokens}

    def embed(self, images: Float[Tensor, "n 3 h w"]) -> Tokens:
        """Return the tokens before the first block."""
        return self.visual._embeds(images.to(self.weight.device, self.weight.dtype))

    def noted(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Return activations with what is needed to go on from them: nothing more, of images."""
        return parts

    def resumed(self, prefix: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return activations that were :meth:`noted`, to go on from them."""
        return prefix

    def mean(self, x: Tokens) -> Float[Tensor, "n width"]:
        """Return the mean over all tokens."""
        return x.mean(1)

    def attend(self, number: int, x: Tokens, class_only: bool = False) -> Float[Tensor, "n asked width"]:
        """Return the output of a block's attention, after its output projection and before the residual addition.

        Args:
            number: of the block, from 0.
            x: tokens that enter the block.
            class_only: compute the class token's row only.
        """
        block = self.blocks[number]
        normed = block.ln_1(x)
        return attention(block.attn, normed[:, :1] if class_only else normed, normed)

    def finish(self, number: int, x: Tokens, attended: Tokens) -> Tokens:
        """Run the rest of a block, token by token: residual addition, then the MLP branch."""
        block = self.blocks[number]
        x = x + block.ls_1(attended)
        return x + block.ls_2(block.mlp(block.ln_2(x)))

    def run(self, x: Tokens, first: int, stop: int) -> Tokens:
        """Run whole blocks from ``first`` up to ``stop`` (exclusive)."""
        for number in range(first, stop):
            x = self.finish(number, x, self.attend(number, x))
        return x

    def read_out(self, x: Float[Tensor, "n some width"]) -> Float[Tensor, "n dim"]:
        """Return un-normalised features from the tokens after the last block; only the class token (first) is read."""
        return self.visual.ln_post(x[:, 0]) @ self.visual.proj


def attention(
    module: nn.MultiheadAttention, asked: Float[Tensor, "n asked width"], given: Tokens
) -> Float[Tensor, "n asked width"]:
    """Compute the attention of some tokens to all, images first whatever the module's own order.

    The module itself would transpose to tokens first and back, and copy at every step of it.
    """
    width, heads = module.embed_dim, module.num_heads
    weight, bias = module.in_proj_weight, module.in_proj_bias
    query_bias, rest_bias = (None, None) if bias is None else (bias[:width], bias[width:])
    if asked is given:
        query, key, value = _by_head(functional.linear(given, weight, bias), 3, heads)
    else:
        (query,) = _by_head(functional.linear(asked, weight[:width], query_bias), 1, heads)
        key, value = _by_head(functional.linear(given, weight[width:], rest_bias), 2, heads)
    mixed = functional.scaled_dot_product_attention(query, key, value)
    return module.out_proj(mixed.transpose(1, 2).flatten(2))


def _plain(module: nn.Module | None) -> bool:
    """Tell whether this is attention with one matrix for query, key and value and without tokens of its own."""
    known = isinstance(module, nn.MultiheadAttention)
    return known and module.in_proj_weight is not None and module.bias_k is None and not module.add_zero_attn


def _by_head(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Split (n, tokens, parts · width) into parts of shape (n, heads, tokens, width / heads)."""
    n, tokens, _ = x.shape
    return x.view(n, tokens, parts, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


@contextmanager
def frozen(encoder: nn.Module) -> Iterator[None]:
    """Keep an encoder in evaluation mode and without gradients, and leave it as it was found."""
    wanted = [(parameter, parameter.requires_grad) for parameter in encoder.parameters()]
    modes = [(module, module.training) for module in encoder.modules()]
    try:
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        encoder.eval()
        yield
    finally:
        for parameter, gradient in wanted:
            parameter.requires_grad_(gradient)
        for module, training in modes:
            module.training = training


def dtype_of(tower: Tower) -> torch.dtype:
    """Return the encoder's dtype.

    Raises:
        CalibrationError: half precision, in which these small modules cannot be trained.
    """
    dtype = tower.weight.dtype
    if dtype not in (torch.float32, torch.float64):
        raise CalibrationError(f"The encoder is in {dtype}; deep calibrators train in float32. Convert it first.")
    return dtype
