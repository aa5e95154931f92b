"""Small weights, reference numbers and a context in memory for the tests of merging."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from engine.types import Merged, Static, Tensors, Weights
from engine.weights import LazyTaskVectors, Memory

FOLDER = Path(__file__).parent
EXPERTS = ("expert0", "expert1", "expert2", "expert3")


def reference_entries() -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in json.loads((FOLDER / "index.json").read_text())["entries"]}


def output(name: str) -> dict[str, Tensor]:
    return load_file(FOLDER / "outputs" / f"{name}.safetensors")


@cache
def tensor_order() -> list[str]:
    return json.loads((FOLDER / "inputs/tensor_order.json").read_text())["tensor_order"]


@cache
def toy(model: str, kind: str = "toy") -> Memory:
    """One of the reference models, its tensors in the order of the network, text-side ones first."""
    tensors = load_file(FOLDER / "inputs" / f"{kind}_{model}.safetensors")
    order = tensor_order()
    names = [name for name in tensors if name not in order] + order
    return Memory({name: tensors[name] for name in names})


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
    """A context whose encoder is a convolution, one block's perceptron and a projection, and whose images are noise."""

    tasks: tuple[str, ...] = EXPERTS
    seed: int = 0
    kept: dict[str, Tensors] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)

    def progress(self, fraction: float, message: str = "") -> None:
        assert 0 <= fraction <= 1
        self.fractions.append(fraction)

    def cached(self, expert: str, quantity: str, params: Mapping[str, Any], compute: Callable[[], Tensors]) -> Tensors:
        key = json.dumps([expert, quantity, params], sort_keys=True)
        self.asked.append(key)
        if key not in self.kept:
            self.kept[key] = compute()
        return self.kept[key]

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
        block = "visual.transformer.resblocks.0.mlp."
        wide = functional.linear(hidden, weights[block + "c_fc.weight"], weights[block + "c_fc.bias"]).relu()
        hidden = hidden + functional.linear(wide, weights[block + "c_proj.weight"], weights[block + "c_proj.bias"])
        return hidden @ weights["visual.proj"]

    def head(self, task: str) -> TinyHead:
        generator = torch.Generator().manual_seed(sum(map(ord, task)))
        weight = torch.randn(5, 10, generator=generator)
        return TinyHead(functional.normalize(weight, dim=1))


def models(base: Weights, merged: Merged) -> dict[str, Weights]:
    """The models of a merge by task; one named 'all' where they do not depend on it."""
    if isinstance(merged, Static):
        return {"all": merged.weights}
    return {task: merged.rebuild(base, merged.parts, task) for task in merged.tasks}


def tensors_of(weights: Weights) -> dict[str, Tensor]:
    return {name: weights.tensor(name) for name in weights.names}


def worst_excess(got: Mapping[str, Tensor], want: Mapping[str, Tensor], tolerance: Mapping[str, float]) -> float:
    """The largest |got − want| − (atol + rtol·|want|); at most 0 where everything is within its tolerance."""
    assert set(got) == set(want)
    worst = -1.0
    for name, expected in want.items():
        assert got[name].shape == expected.shape, name
        expected = expected.double()
        excess = (got[name].double() - expected).abs() - tolerance["atol"] - tolerance["rtol"] * expected.abs()
        assert not excess.isnan().any(), name
        worst = max(worst, excess.max().item() if excess.numel() else -1.0)
    return worst
