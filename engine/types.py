"""Protocols and small records that the rooms of the engine share. Free of torch at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Tensors = Mapping[str, "Tensor"]
Forward = Callable[[Tensors, "Tensor"], "Tensor"]  # visual weights by name and images (b, 3, h, w) → features (b, dim)


class Weights(Protocol):
    """Named tensors that are read one at a time."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return tensor names in canonical (state-dict) order."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor, without reading it."""

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of one tensor, without reading it."""

    def tensor(self, name: str) -> Tensor:
        """Return one tensor, freshly allocated, in its stored dtype."""


class TaskVectors(Protocol):
    """Task vectors τ_k = θ_k − θ_0 of K experts, one tensor at a time."""

    @property
    def experts(self) -> tuple[str, ...]:
        """Return the names of the experts, in the order of the leading axis of :meth:`stack`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the floating-point tensors ("layers"), in canonical order."""

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype in which everything is computed."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one layer, without the expert axis."""

    def vector(self, name: str, expert: str) -> Tensor:
        """Return τ of one expert for one layer, in the compute dtype; the caller may overwrite it."""

    def stack(self, name: str) -> Tensor:
        """Return τ of all experts for one layer (K, *shape), in the compute dtype; the caller may overwrite it."""


@dataclass(frozen=True)
class Affine:
    """The layers that a fine-tuned classifier has beyond the rows of its head; tensors or arrays alike.

    Source: Devlin et al., NAACL 2019, arXiv:1810.04805, §4.1 (one affine layer); the classifiers published with
        RoBERTa (arXiv:1907.11692) and DistilBERT (arXiv:1910.01108) put a dense layer before it.
    """

    bias: Any  # (classes,)
    dense: Any = None  # (inner, dim), and None where features go into the last layer as they are
    offset: Any = None  # (inner,)
    activation: Literal["tanh", "relu", ""] = ""  # after the dense layer

    def logits(self, features: Any, weight: Any) -> Any:
        """Return the scores (n, classes) of features (n, dim) for the last layer's rows (classes, inner)."""
        if self.dense is not None:
            inner = features @ self.dense.T + self.offset
            features = inner * (inner > 0) if self.activation == "relu" else _tanh(inner)
        return features @ weight.T + self.bias

    def each(self, change: Callable[[Any], Any]) -> Affine:
        """Return the layers with every tensor changed, such as moved to a device or made an array."""
        dense, offset = (None, None) if self.dense is None else (change(self.dense), change(self.offset))
        return Affine(change(self.bias), dense, offset, self.activation)


def _tanh(values: Any) -> Any:
    import numpy as np

    return np.tanh(values) if isinstance(values, np.ndarray) else values.tanh()


@runtime_checkable
class Head(Protocol):
    """A frozen classification head: zero-shot, or a fine-tuned classifier's."""

    weight: Tensor  # (classes, dim), rows of unit norm; of any norm where `affine` is given
    scale: float  # exp(logit_scale); 1 where `affine` is given
    affine: Affine | None  # of a fine-tuned classifier, which takes features as they are; None of a zero-shot head


@dataclass(frozen=True)
class Adapter:
    """A pair of low-rank factors beside some rows of a tensor; an expert adds ``up @ down`` there."""

    tensor: str
    first: int  # row
    down: Tensor  # A (rank, in)
    up: Tensor  # B (out, rank), with the scale α / r in it
    start: Tensor  # A as training found it


class Context(Protocol):
    """Everything that a merge method may ask of the pipeline beside the weights."""

    @property
    def seed(self) -> int:
        """Seed of every random choice."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the in-domain task of each expert, in the experts' order."""

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how much of the step is done (0 to 1) and stop with ``Cancelled`` if somebody asked for it."""

    def cached(self, expert: str, quantity: str, params: Mapping[str, Any], compute: Callable[[], Tensors]) -> Tensors:
        """Return tensors that depend on one expert and on ``params`` only (thresholds, SVDs, norms), computed once.

        What depends on a task's images or head as well (Grams, Fisher information) has :meth:`seen` among its params.
        """

    def seen(self, task: str) -> Mapping[str, Any]:
        """Return what a task's batches and head depend on, as JSON values that tell them apart."""

    def batches(self, task: str, split: str, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Return endless shuffled batches of pre-processed images (b, 3, h, w) and, for ``validation``, labels (b,)."""

    def forward(self, weights: Tensors, images: Tensor) -> Tensor:
        """Encode images into features (b, dim) with these visual weights; differentiable in the weights."""

    @property
    def padded(self) -> bool:
        """Tell whether samples are filled up to one length, so that not all tokens of one are there."""

    def present(self, samples: Tensor) -> Tensor | None:
        """Tell which tokens of samples are there, one after another (n · length,); None where all of them are."""

    def head(self, task: str) -> Head:
        """Return the task's frozen head."""

    def adapters(self, expert: str) -> Mapping[str, Adapter]:
        """Return the factors of an expert that was trained with adapters, by matrix."""


@dataclass(frozen=True)
class MergeInfo:
    """Cost of a merged model at inference, and what the method measured on the way."""

    needs_task_id: bool = False
    extra_parameters: int = 0
    extra_bits: int = 0
    details: dict[str, Any] = field(default_factory=dict)  # JSON values, e.g. learned coefficients by task


@dataclass(frozen=True)
class Static:
    """One merged model for every task."""

    weights: Weights
    info: MergeInfo = field(default_factory=MergeInfo)


@dataclass(frozen=True)
class PerTask:
    """A merged model whose weights depend on the task (needs the task's identity at inference).

    ``parts`` are the tensors that are stored (for EMR the unified vector, masks and rescalers); ``rebuild`` makes
    the weights of one task from them again, so that storage stays what the method promises.
    """

    parts: Tensors
    rebuild: Callable[[Weights, Tensors, str], Weights]
    tasks: tuple[str, ...]
    info: MergeInfo = field(default_factory=lambda: MergeInfo(needs_task_id=True))


@dataclass(frozen=True)
class PerSample:
    """A merged model whose weights depend on the image that it sees.

    ``parts`` are the tensors that are stored (shared weights, experts, a router); ``rebuild`` makes a module
    images (b, 3, h, w) → features (b, dim) from the base, the parts and the encoder's structure, with the parts as
    its state and a method ``weights_of(image)`` that says which weights one image (3, h, w) gets.
    """

    parts: Tensors
    rebuild: Callable[[Weights, Tensors, Forward], nn.Module]
    info: MergeInfo = field(default_factory=MergeInfo)


Merged = Static | PerTask | PerSample


class Progress(Protocol):
    """Receives how far a step has come."""

    def __call__(self, fraction: float, message: str = "") -> None:
        """Take a fraction from 0 to 1 and a short text; raises ``Cancelled`` when the work is to stop."""


Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that a check found out: an error stops a run, a warning may spoil it, a note is in order."""

    level: Level
    text: str
