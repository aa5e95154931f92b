"""Merging without a zoo: what a method that asks for images, an encoder or heads is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch

from ...errors import MergeError
from ...types import Tensors


class WeightsOnly:
    """The context of a merge that has weights and nothing else."""

    def __init__(self, experts: Sequence[str], seed: int = 0) -> None:
        self.tasks, self.seed = tuple(experts), seed
        self._cache: dict[str, Tensors] = {}

    def progress(self, fraction: float, message: str = "") -> None:
        """Drop it."""

    def cached(self, expert: str, quantity: str, params: Mapping[str, Any], compute: Callable[[], Tensors]) -> Tensors:
        """Keep what one expert's computation gave for the length of this merge."""
        key = f"{expert} {quantity} {sorted(params.items())}"
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    def seen(self, task: str) -> NoReturn:
        """Refuse: there are no images."""
        raise MergeError("This method needs images. Merge a zoo that has data, through a recipe.")

    def batches(self, task: str, split: str, size: int) -> Iterator[NoReturn]:
        """Refuse: there are no images."""
        raise MergeError("This method needs images. Merge a zoo that has data, through a recipe.")

    def forward(self, weights: Tensors, images: torch.Tensor) -> NoReturn:
        """Refuse: there is no encoder."""
        raise MergeError("This method needs the encoder. Merge a zoo, through a recipe.")

    @property
    def padded(self) -> bool:
        """Tell that nothing is filled up: there are no samples."""
        return False

    def present(self, samples: torch.Tensor) -> None:
        """Tell that nothing is missing: there are no samples."""

    def adapters(self, expert: str) -> NoReturn:
        """Refuse: there are no factors."""
        raise MergeError("This method needs experts' low-rank factors. Merge a zoo that lists them, through a recipe.")

    def head(self, task: str) -> NoReturn:
        """Refuse: there are no heads."""
        raise MergeError("This method needs classification heads. Merge a zoo that has them, through a recipe.")
