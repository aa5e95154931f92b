"""The stations of an encoder of texts that deep calibrators stop at: BERT's, RoBERTa's and DistilBERT's blocks."""

# ruff: noqa: F722
from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from ..features.blocks import Followed
from .tower import Tokens, Tower


class TextTower(Tower):
    """Walks through an encoder of texts block by block: what a block's norms and matrices are, its layout says.

    Blocks normalise behind the residual addition. Tokens that pad get no attention and count in no mean; which ones
    they are travels with the activations, because batches are put together from several texts' activations.

    Source: Devlin et al., NAACL 2019, arXiv:1810.04805, §3; post-norm blocks as in Vaswani et al., arXiv:1706.03762.
    """

    def __init__(self, encoder: nn.Module) -> None:
        self.encoder = encoder
        layout = encoder.layout
        self.blocks = list(encoder.stations)
        names = {part: layout.matrix(part).name.removesuffix(".weight") for part in layout.matrices}
        first, second = (name.removesuffix(".") for name in layout.parts["norm"])
        self._names = {**names, "around": first, "behind": second}
        self.there: Bool[Tensor, "n tokens"] | None = None

    @property
    def visual(self) -> nn.Module:
        """Return the encoder."""
        return self.encoder

    @property
    def weight(self) -> Tensor:
        """Return a tensor whose device and dtype are the encoder's."""
        return self._part(0, "q").weight

    def sizes(self) -> dict[str, int]:
        """Return ``dim`` of the features, ``width``, number of ``blocks``, and 1 of ``tokens``: the class token.

        Texts differ in length, so no other token has a place of its own.
        """
        width = self.weight.shape[1]
        return {"dim": width, "width": width, "blocks": len(self.blocks), "tokens": 1}

    def embed(self, samples: Tensor) -> Tokens:
        """Return the tokens before the first block, and keep which of them are there."""
        samples = samples.to(self.weight.device)
        self.there = self.encoder.there(samples)
        return self.encoder.embed(samples)

    def noted(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Return activations with what is needed to go on from them: which tokens are there."""
        return (*parts, self.there)

    def resumed(self, prefix: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return activations that were :meth:`noted`, and go on with their tokens."""
        self.there = prefix[-1]
        return prefix[:-1]

    def mean(self, x: Tokens) -> Float[Tensor, "n width"]:
        """Return the mean over the tokens that are there."""
        weight = self.there[..., None].to(x.dtype)
        return (x * weight).sum(1) / weight.sum(1).clamp(min=1)

    def attend(self, number: int, x: Tokens, class_only: bool = False) -> Float[Tensor, "n asked width"]:
        """Return the output of a block's attention, behind its output projection and before the residual addition."""
        asked = x[:, :1] if class_only else x
        query, key, value = (
            self._part(number, part)(given).unflatten(-1, (self.encoder.heads, -1)).transpose(1, 2)
            for part, given in (("q", asked), ("k", x), ("v", x))
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=self.there[:, None, None, :])
        return self._part(number, "out")(mixed.transpose(1, 2).flatten(2))

    def finish(self, number: int, x: Tokens, attended: Tokens) -> Tokens:
        """Run the rest of a block, token by token: addition and norm, the perceptron, addition and norm."""
        x = self._part(number, "around")(attended + x)
        inner = functional.gelu(self._part(number, "fc")(x))
        return self._part(number, "behind")(self._part(number, "proj")(inner) + x)

    def read_out(self, x: Float[Tensor, "n some width"]) -> Float[Tensor, "n dim"]:
        """Return un-normalised features; only the class token (first) is read."""
        return self.encoder.read_out(x[:, 0])

    def _part(self, number: int, part: str) -> nn.Module:
        return self.blocks[number].get_submodule(self._names[part])


def tower_of(encoder: nn.Module) -> Tower:
    """Return the tower of an encoder whose blocks can be followed one by one.

    Raises:
        CalibrationError: there is none.
    """
    return TextTower(encoder) if isinstance(encoder, Followed) else Tower(encoder)
