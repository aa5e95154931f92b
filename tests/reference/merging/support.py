"""The shipped references of merging, and a context in memory whose images are noise, for tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.selfcheck.context import models as models_of
from engine.selfcheck.context import tensors_of
from engine.selfcheck.reference import MergingReference
from engine.types import Merged, PerSample, Tensors, Weights
from engine.weights import LazyTaskVectors, Memory

__all__ = ["EXPERTS", "FOLDER", "REFERENCE", "TinyContext", "models", "some_images", "tensors_of", "toy", "toy_vectors"]

FOLDER = Path(__file__).parent
REFERENCE = MergingReference(FOLDER)
EXPERTS = ("expert0", "expert1", "expert2", "expert3")


def toy(model: str, kind: str = "toy") -> Memory:
    """One of the reference models, its tensors in the order of the network, text-side ones first."""
    return REFERENCE.model(model, kind)


def toy_vectors(
    kind: str = "toy", experts: Sequence[str] = EXPERTS, dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[Memory, LazyTaskVectors]:
    base = toy("pretrained", kind)
    return base, LazyTaskVectors(base, {name: toy(name, kind) for name in experts}, dtype=dtype, **options)


@dataclass
class TinyHead:
    weight: Tensor
    scale: float = 20.0


@dataclass
class TinyContext:
    """A context whose encoder is a convolution, two perceptrons and a projection, and whose images are noise."""

    tasks: tuple[str, ...] = EXPERTS
    seed: int = 0
    kept: dict[str, Tensors] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)
    padded: bool = False

    def progress(self, fraction: float, message: str = "") -> None:
        assert 0 <= fraction <= 1
        self.fractions.append(fraction)

    def cached(self, expert: str, quantity: str, params: Mapping[str, Any], compute: Callable[[], Tensors]) -> Tensors:
        key = json.dumps([expert, quantity, params], sort_keys=True)
        self.asked.append(key)
        if key not in self.kept:
            self.kept[key] = compute()
        return self.kept[key]

    def seen(self, task: str) -> Mapping[str, Any]:
        return {"task": task}

    def batches(self, task: str, split: str, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        assert split in ("adapt", "validation")
        generator = torch.Generator().manual_seed(1000 * self.seed + sum(map(ord, task)))
        while True:
            images = torch.randn(size, 3, 4, 4, generator=generator)
            labels = torch.randint(5, (size,), generator=generator)
            yield images, labels if split == "validation" else None

    def forward(self, weights: Tensors, images: Tensor) -> Tensor:
        kernel = weights["visual.conv1.weight"]
        patches = functional.conv2d(images.to(kernel.dtype), kernel, stride=2).flatten(2).mean(dim=2)
        hidden = (patches + weights["visual.class_embedding"]).relu()
        for number in (0, 1):
            block = f"visual.transformer.resblocks.{number}.mlp."
            wide = functional.linear(hidden, weights[block + "c_fc.weight"], weights[block + "c_fc.bias"]).relu()
            hidden = hidden + functional.linear(wide, weights[block + "c_proj.weight"], weights[block + "c_proj.bias"])
        return hidden @ weights["visual.proj"]

    def present(self, samples: Tensor) -> None:
        return None

    def adapters(self, expert: str) -> Mapping[str, Any]:
        return {}

    def head(self, task: str) -> TinyHead:
        generator = torch.Generator().manual_seed(sum(map(ord, task)))
        weight = torch.randn(5, 10, generator=generator)
        return TinyHead(functional.normalize(weight, dim=1))


def models(base: Weights, merged: Merged) -> dict[str, Weights]:
    """The models of a merge by task; one named 'all' where they do not depend on it; for two images by image."""
    if not isinstance(merged, PerSample):
        return models_of(base, merged)
    encoder = merged.rebuild(base, merged.parts, TinyContext().forward)
    return {f"image{n}": Memory(encoder.weights_of(image)) for n, image in enumerate(some_images(2))}


def some_images(count: int) -> Tensor:
    return torch.randn(count, 3, 4, 4, generator=torch.Generator().manual_seed(7))
