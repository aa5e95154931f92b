"""Contexts of merge methods without a zoo: nothing to look at, or what a reference has measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..errors import MergeError
from ..types import Head, Merged, Static, Tensors, Weights


@dataclass
class Offline:
    """Keeps nothing and has no images; ``measured`` are tensors by expert that a reference took from images."""

    tasks: tuple[str, ...]
    seed: int = 0
    padded: bool = False
    measured: Mapping[str, Tensors] = field(default_factory=dict)

    def progress(self, fraction: float, message: str = "") -> None:
        """Do nothing: a check is not watched."""

    def cached(self, expert: str, quantity: str, params: Mapping[str, Any], compute: Callable[[], Tensors]) -> Tensors:
        """Return the value measured for an expert, else compute it."""
        return self.measured[expert] if expert in self.measured else compute()

    def seen(self, task: str) -> Mapping[str, Any]:
        """Return nothing: what was measured of images is given."""
        return {}

    def batches(self, task: str, split: str, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Refuse: a check has no images."""
        raise MergeError("A check against reference numbers has no images.")

    def forward(self, weights: Tensors, images: Tensor) -> Tensor:
        """Refuse: a check has no encoder."""
        raise MergeError("A check against reference numbers has no encoder.")

    def present(self, samples: Tensor) -> None:
        """Tell that all tokens are there."""

    def head(self, task: str) -> Head:
        """Refuse: a check has no heads."""
        raise MergeError("A check against reference numbers has no heads.")


def models(base: Weights, merged: Merged) -> dict[str, Weights]:
    """Return the models of a merge by task; one named 'all' where they do not depend on it."""
    if isinstance(merged, Static):
        return {"all": merged.weights}
    return {task: merged.rebuild(base, merged.parts, task) for task in merged.tasks}


def tensors_of(weights: Weights) -> dict[str, Tensor]:
    """Return all tensors of some weights."""
    return {name: weights.tensor(name) for name in weights.names}
