"""The context of a merge method: images, heads, forward passes and a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import MergeError
from ...features import choose_device
from ...features.blocks import present
from ...recipe import Probe
from ...types import Adapter, Head, Tensors
from ...zoo.encoders.backbone import architecture, build_encoder, forward_with, preprocessing, to_tensor
from ...zoo.folder import Zoo
from ...zoo.images.splits import select
from .adapters import adapters_of

if TYPE_CHECKING:
    from ..tools import StepTools


class MergeContext:
    """Images, heads and the encoder of a zoo, and a cache for what depends on one expert only."""

    def __init__(
        self,
        zoo: Zoo,
        tasks: tuple[str, ...],
        digests: Mapping[str, str],
        probe: Probe,
        seed: int,
        tools: StepTools,
        factors: Mapping[str, float] | None = None,
        device: str = "auto",
    ) -> None:
        """Bind a zoo's parts.

        Args:
            zoo: the opened zoo.
            tasks: the task of each expert, in order.
            digests: content digests by model name, including ``base``.
            probe: which images may be adapted on.
            seed: seed of every random choice.
            tools: progress, cancellation and the artefact cache of the running step.
            factors: how much of each expert's task vector takes part; belongs to what is cached.
            device: where batches and heads are put.
        """
        self._zoo, self._digests, self._probe, self._tools = zoo, dict(digests), probe, tools
        self.tasks, self.seed = tasks, seed
        self.device = choose_device(device)
        self._factors = dict(factors or {})

    def progress(self, fraction: float, message: str = "") -> None:
        """Report progress; raises ``Cancelled`` when the run is to stop."""
        self._tools.progress(fraction, message)

    def cached(self, expert: str, quantity: str, params: Mapping[str, Any], compute: Callable[[], Tensors]) -> Tensors:
        """Return tensors that depend on one expert (and the base) only, kept in the store."""
        return self._tools.cached(self._parts(expert, quantity, params), compute)

    def _parts(self, expert: str, quantity: str, params: Mapping[str, Any]) -> dict[str, Any]:
        digests = {"base": self._digests["base"], "expert": self._digests[expert]}
        return {"quantity": quantity, "params": dict(params), "factor": self._factors.get(expert, 1.0), **digests}

    def seen(self, task: str) -> Mapping[str, Any]:
        """Return what a task's batches and head depend on, as JSON values that tell them apart."""
        digest, brought, built = self._tools.store.digest_file, self._zoo.manifest.heads, self._zoo.built_heads
        return {
            "data": self._zoo.data[task].identity(digest),
            "heads": digest(self._zoo.path(brought)) if brought else built and built.parent.name,
            "probe": self._probe.model_dump(mode="json"),
            "draw": self.tasks.index(task),
            "architecture": architecture(self._zoo.folder, self._zoo.manifest),
            "preprocess": self._preprocess.model_dump(mode="json"),
        }

    def batches(self, task: str, split: str, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield endless shuffled batches of a task's adaptation (``adapt``) or labelled ``validation`` images."""
        images, labels = self._split(task, split)
        _ = self._encoder  # built now, because `forward` may first be called where nothing can be built (vmap)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.tasks.index(task))
        size = min(size, len(images))
        while True:
            order = torch.randperm(len(images), generator=generator)
            for start in range(0, len(images) - size + 1, size):
                rows = order[start : start + size]
                pixels = to_tensor(images[rows.numpy()], self._preprocess).to(self.device)
                yield pixels, None if labels is None else labels[rows].to(self.device)

    def forward(self, weights: Tensors, images: Tensor) -> Tensor:
        """Encode images to features (b, dim) through the encoder with these weights; differentiable in them."""
        return forward_with(self._encoder, weights, images)

    @property
    def padded(self) -> bool:
        """Tell whether samples are filled up to one length, so that not all tokens of one are there."""
        return self._zoo.modality.padded

    def present(self, samples: Tensor) -> Tensor | None:
        """Tell which tokens of samples are there, one after another; None where all of them are."""
        return present(self._encoder, samples) if self.padded else None

    def head(self, task: str) -> Head:
        """Return the task's frozen head."""
        return self._heads[task]

    def adapters(self, expert: str) -> Mapping[str, Adapter]:
        """Return the factors of an expert that was trained with adapters, by matrix."""
        return adapters_of(self._zoo, expert)

    def _split(self, task: str, split: str) -> tuple[Any, Tensor | None]:
        data = self._zoo.data[task]
        if split == "validation":
            if not data.has("val"):
                raise MergeError(
                    f"Task '{task}' has no labelled validation images (val_x, val_y), which this method needs. "
                    "Nothing is ever chosen on evaluation images."
                )
            rows = data.usable("val")
            return data.samples("val", rows), torch.as_tensor(data.labels("val")[rows])
        chosen = select(data, self._probe)
        if chosen.adapt_source == "adapt":
            return data.samples("adapt", chosen.adapt[chosen.adapt_rows]), None
        return data.samples("test", chosen.test[chosen.adapt_rows]), None

    @cached_property
    def _encoder(self) -> nn.Module:
        return build_encoder(architecture(self._zoo.folder, self._zoo.manifest)).to(self.device)

    @cached_property
    def _heads(self) -> dict[str, Head]:
        heads, _ = self._zoo.heads(list(self.tasks))
        return {task: head.to(self.device) for task, head in heads.items()}

    @cached_property
    def _preprocess(self) -> Any:
        return preprocessing(self._zoo.folder, self._zoo.manifest)
