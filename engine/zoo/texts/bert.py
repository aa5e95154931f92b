"""BERT's encoder in plain torch, with the names and the arithmetic of the published model.

Source: Devlin et al., NAACL 2019, arXiv:1810.04805, §3; post-norm blocks as in Vaswani et al., 2017, arXiv:1706.03762.
Departure: no dropout, because zoos are scored and merged; token ids and segments come as one tensor.
"""

# ruff: noqa: F722

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ...layouts import BERT

DEVIATION = 0.02  # of freshly drawn weights, as published
PAD = 0


class Embeddings(nn.Module):
    """Sums of word, position and segment embeddings, normalised."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.word_embeddings = nn.Embedding(config["vocab_size"], width)
        self.position_embeddings = nn.Embedding(config["max_position_embeddings"], width)
        self.token_type_embeddings = nn.Embedding(config["type_vocab_size"], width)
        self.LayerNorm = nn.LayerNorm(width, eps=config["layer_norm_eps"])

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        """Return (n, length, width) of ids (n, length)."""
        places = self.position_embeddings.weight[: tokens.shape[1]]
        return self.LayerNorm(self.word_embeddings(tokens) + self.token_type_embeddings(segments) + places)


class SelfAttention(nn.Module):
    """Scaled dot-product attention of several heads."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attend within (n, length, width); ``mask`` (n, 1, 1, length) is true where there is a token."""
        parts = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(*parts, attn_mask=mask)
        return attended.transpose(1, 2).flatten(2)


class Residual(nn.Module):
    """A dense layer whose output is added to what went around it, then normalised."""

    def __init__(self, inner: int, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, config["hidden_size"])
        self.LayerNorm = nn.LayerNorm(config["hidden_size"], eps=config["layer_norm_eps"])

    def forward(self, x: Tensor, around: Tensor) -> Tensor:
        """Return LayerNorm(W x + b + around)."""
        return self.LayerNorm(self.dense(x) + around)


class Attention(nn.Module):
    """Attention with its residual."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.self = SelfAttention(config)
        self.output = Residual(config["hidden_size"], config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return (n, length, width)."""
        return self.output(self.self(x, mask), x)


class Dense(nn.Module):
    """One linear layer under the name that the published checkpoints have."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, outer)

    def forward(self, x: Tensor) -> Tensor:
        """Return W x + b."""
        return self.dense(x)


class Layer(nn.Module):
    """One block: attention, then two dense layers with a GELU between them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Dense(config["hidden_size"], config["intermediate_size"])
        self.output = Residual(config["intermediate_size"], config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return (n, length, width)."""
        x = self.attention(x, mask)
        return self.output(functional.gelu(self.intermediate(x)), x)


class Encoder(nn.Module):
    """The blocks in their order."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return (n, length, width)."""
        for layer in self.layer:
            x = layer(x, mask)
        return x


class Bert(nn.Module):
    """Token ids and segments (n, 2, length) → pooled features (n, hidden_size)."""

    layout = BERT

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Make the structure of a published config (``hidden_size``, ``num_hidden_layers`` …); weights are drawn."""
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Dense(config["hidden_size"], config["hidden_size"])
        self.pad = int(config.get("pad_token_id", PAD))
        self.apply(_draw)

    def hidden(self, samples: Int[Tensor, "n 2 length"]) -> Float[Tensor, "n length width"]:
        """Return the last block's output at every token."""
        return self.encoder(self.embed(samples), self.there(samples)[:, None, None, :])

    def embed(self, samples: Int[Tensor, "n 2 length"]) -> Float[Tensor, "n length width"]:
        """Return the tokens that enter the first block."""
        return self.embeddings(samples[:, 0], samples[:, 1])

    @property
    def heads(self) -> int:
        """Return how many heads a block's attention has."""
        return self.encoder.layer[0].attention.self.heads

    @property
    def stations(self) -> Sequence[nn.Module]:
        """Return the blocks in their order."""
        return list(self.encoder.layer)

    def there(self, samples: Int[Tensor, "n 2 length"]) -> Bool[Tensor, "n length"]:
        """Tell which tokens are there; the others pad."""
        return samples[:, 0] != self.pad

    def read_out(self, first: Float[Tensor, "n width"]) -> Float[Tensor, "n width"]:
        """Return tanh of a dense layer on the first token."""
        return torch.tanh(self.pooler(first))

    def forward(self, samples: Int[Tensor, "n 2 length"]) -> Float[Tensor, "n width"]:
        """Return features, not normalised."""
        return self.read_out(self.hidden(samples)[:, 0])


def _draw(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=DEVIATION)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
