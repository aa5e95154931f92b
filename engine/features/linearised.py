"""Encoders linearised around their base: features that are linear in the weights."""

# ruff: noqa: F722

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jvp

from ..zoo.encoders.attention import plain_attention


def tangent(
    encoder: nn.Module,
    base: Mapping[str, Tensor],
    direction: Mapping[str, Tensor],
    images: Float[Tensor, "n 3 h w"],
) -> tuple[Float[Tensor, "n dim"], Float[Tensor, "n dim"]]:
    """Return features at the base and their derivative in a direction of the weights, by one forward pass.

    The derivative is linear in the direction, so ∇f·(Σ α_k τ_k) = Σ α_k ∇f·τ_k: one call for each task vector gives
    the features of every linear combination.

    Args:
        encoder: gives the structure; its own parameters are used where ``base`` names none.
        base: weights θ_0 by the encoder's parameter names.
        direction: a vector τ by the same names; names left out do not move.
        images: prepared.

    Returns:
        f(x; θ_0) and ∇_θ f(x; θ_0)·τ; differentiable in base and direction.

    Source: Ortiz-Jimenez et al., NeurIPS 2023, arXiv:2305.12827, Eq. (3).
    """
    moving = {name: base[name] for name in direction}
    still = {name: tensor for name, tensor in base.items() if name not in moving}

    def features(weights: Mapping[str, Tensor]) -> Tensor:
        return functional_call(encoder, {**still, **weights}, (images,))

    with plain_attention():
        return jvp(features, (moving,), (dict(direction),))


class Linearised(nn.Module):
    """Images (n, 3, h, w) → f(x; θ_0) + ∇f(x; θ_0)·(θ − θ_0), with the weights θ of an encoder as parameters.

    The structure stays in evaluation mode, so that a pass changes no statistics.

    Source: Ortiz-Jimenez et al., NeurIPS 2023, arXiv:2305.12827, Eq. (3). Departure: none.
    """

    def __init__(self, encoder: nn.Module, base: Mapping[str, Tensor]) -> None:
        """Wrap an encoder.

        Args:
            encoder: holds θ; it is not copied.
            base: θ_0 by the encoder's parameter names; copied in the parameters' dtype.
        """
        super().__init__()
        self.encoder = encoder
        self._slots = {name: f"base{number}" for number, (name, _) in enumerate(encoder.named_parameters())}
        for name, parameter in encoder.named_parameters():
            self.register_buffer(self._slots[name], base[name].detach().to(parameter).clone(), persistent=False)

    @property
    def base(self) -> dict[str, Tensor]:
        """Return θ_0 by the encoder's parameter names, where the module is now."""
        return {name: getattr(self, slot) for name, slot in self._slots.items()}

    def forward(self, images: Tensor) -> Tensor:
        """Return linearised features (n, dim)."""
        base = self.base
        direction = {name: parameter - base[name] for name, parameter in self.encoder.named_parameters()}
        features, change = tangent(self.encoder, base, direction, images)
        return features + change

    def train(self, mode: bool = True) -> Linearised:
        """Set the mode of this module; the encoder inside keeps evaluating."""
        super().train(mode)
        self.encoder.eval()
        return self
