"""Models on the straight line between two models, and how far the loss rises above that line's ends."""

# ruff: noqa: F722

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from ..merging.adamerging import predict
from ..types import Head, Weights


@dataclass(frozen=True)
class Between:
    """Weights (1 − α) θ_a + α θ_b, read one tensor at a time; tensors that are not floating-point are θ_a's."""

    start: Weights
    end: Weights
    alpha: float

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the first model's tensors."""
        return self.start.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self.start.shape(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return float32 for floating-point tensors, else the first model's dtype."""
        found = self.start.dtype(name)
        return torch.float32 if found.is_floating_point else found

    def tensor(self, name: str) -> Tensor:
        """Return one tensor; at α = 0 and α = 1 exactly the models' own values."""
        first = self.start.tensor(name)
        if not first.is_floating_point():
            return first
        if self.alpha == 0:
            return first.float()
        second = self.end.tensor(name).float()
        return second if self.alpha == 1 else torch.lerp(first.float(), second, self.alpha)


def accuracy_and_loss(features: Float[Tensor, "n dim"], head: Head, labels: Int[Tensor, " n"]) -> tuple[float, float]:
    """Return the accuracy in percent and mean cross-entropy (nats) of features under a head."""
    logits = predict(features, head)
    right = (logits.argmax(dim=-1) == labels).double().mean()
    return 100 * float(right), float(functional.cross_entropy(logits.double(), labels))


Above = Literal["chord", "mean"]


def barrier(alphas: Sequence[float], losses: Sequence[float], above: Above = "chord") -> float:
    """Measure how far the loss rises above the straight line between both ends; 0 if it never does.

    Args:
        alphas: positions on the path, from 0 to 1, ascending.
        losses: at these positions.
        above: the line, or the mean of the ends, which a path may also stay below.

    Source: Frankle et al., ICML 2020, arXiv:1912.05671, §2 (instability); Entezari et al., ICLR 2022,
        arXiv:2110.06296, Eq. (1); above the mean Ainsworth et al., ICLR 2023, arXiv:2209.04836, Definition 2.2.
        Departure: the maximum is taken over the positions given.
    """
    first, last = losses[0], losses[-1]
    if above == "mean":
        return max(losses) - (first + last) / 2
    return max(loss - ((1 - alpha) * first + alpha * last) for alpha, loss in zip(alphas, losses, strict=True))
