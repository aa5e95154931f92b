"""Task addition on one task's images, by the ordinary encoder and by its derivative around the base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...features.linearised import tangent
from ...zoo.encoders.backbone import load_encoder, prefix_of
from ...zoo.folder import Zoo
from .models import Pictures


@dataclass(frozen=True)
class TaskAddition:
    """An encoder at the base, and task vectors of some experts."""

    encoder: nn.Module
    vectors: Mapping[str, Mapping[str, Tensor]]  # expert → the encoder's parameter names
    pictures: Pictures

    @classmethod
    def of(cls, zoo: Zoo, architecture: Mapping[str, Any], experts: Iterable[str], pictures: Pictures) -> TaskAddition:
        """Read base and experts, on the device of the images.

        Args:
            zoo: holds them.
            architecture: of the encoder.
            experts: names of those that take part.
            pictures: what is looked at.
        """
        encoder = load_encoder(architecture, zoo.weights("base")).to(pictures.device)
        start, vectors, prefix = dict(encoder.named_parameters()), {}, prefix_of(architecture)
        for name in experts:
            tuned = zoo.weights(name)
            vectors[name] = {
                key: tuned.tensor(prefix + key).to(own.device, own.dtype) - own for key, own in start.items()
            }
        return cls(encoder, vectors, pictures)

    @property
    def labels(self) -> Tensor:
        """Return the labels of the images."""
        return torch.as_tensor(self.pictures.labels).long()

    @cached_property
    def base(self) -> Tensor:
        """Return the features (n, dim) at the base."""
        return self.features({})

    @torch.no_grad()
    def features(self, scalings: Mapping[str, float]) -> Tensor:
        """Return the features (n, dim) at θ_0 + Σ λ_k τ_k of the named experts, on the CPU."""
        weights = {
            key: own + sum(value * self.vectors[name][key] for name, value in scalings.items())
            for key, own in self.encoder.named_parameters()
        }
        parts = [functional_call(self.encoder, weights, (batch,)).cpu() for batch in self.pictures.batches()]
        return torch.cat(parts)

    @torch.no_grad()
    def change(self, expert: str) -> Tensor:
        """Return the derivative (n, dim) of the features at the base towards an expert, on the CPU."""
        start, vector = dict(self.encoder.named_parameters()), self.vectors[expert]
        parts = [tangent(self.encoder, start, vector, batch)[1].cpu() for batch in self.pictures.batches()]
        return torch.cat(parts)

    @staticmethod
    def stacked(changes: Mapping[str, Tensor]) -> Tensor:
        """Return changes (k, n, dim) in their order."""
        return torch.stack(list(changes.values()))
