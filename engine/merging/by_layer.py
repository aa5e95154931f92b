"""Merging with other parameters in every layer: gradients over depth, and values by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..catalog import MERGE_METHODS, check_needs
from ..catalog.by_layer import ByLayerParams
from ..catalog.row import Params
from ..errors import MergeError
from ..types import Context, Static, TaskVectors, Tensors, Weights
from ..weights.huggingface import PROJECTION, ToHuggingFace
from .assemble import add_to_base, flat, merged_vector
from .attribution import Layer, Parts

BLOCK = re.compile(r"\.(\d+)\.")


def by_layer(base: Weights, task_vectors: TaskVectors, params: ByLayerParams, context: Context) -> Static:
    """Merge each tensor by one method, with the parameters and weights that the settings give it there.

    Several values of a setting are spread evenly over the blocks, the first at the first block, and lie on straight
    lines between them; tensors outside the blocks get the first.

    Source: MergeKit, Goddard et al., EMNLP 2024 industry track, arXiv:2403.13257, gradients and filters.
    Departure: densities are the same for all experts of a tensor; mergekit lets them differ.
    """
    check_needs(MERGE_METHODS[params.method], len(task_vectors.experts))
    plan, context = _Plan(base, task_vectors, params), _Apart(context, params)
    vectors: dict[str, Callable[[str], Tensor]] = {}
    for inner, names in plan.groups():
        some = _Some(plan, names)
        merged = MERGE_METHODS[params.method].load()(plan.base, some, inner, context)
        vectors |= dict.fromkeys(names, merged_vector(plan.base, some, merged))
    return add_to_base(base, task_vectors, lambda name: plan.joined(name, lambda part: vectors[part](part)[None])[0])


def contributions(task_vectors: TaskVectors, params: ByLayerParams, context: Context) -> Layer | None:
    """Return the contributions as the method of each tensor states them; None where it states none."""
    stated = MERGE_METHODS[params.method].load_attribution()
    if stated is None:
        return None
    plan, context = _Plan(None, task_vectors, params), _Apart(context, params)
    layers: dict[str, Layer] = {}
    for inner, names in plan.groups():
        layers |= dict.fromkeys(names, stated(_Some(plan, names), inner, context))

    def layer(name: str) -> Parts:
        def joined(kind: str) -> Tensor:
            return flat(plan.joined(name, lambda part: getattr(layers[part](part), kind).view(-1, *plan.shape(part))))

        return Parts(joined("vectors"), joined("survived"), joined("kept"))

    return layer


class _Plan:
    """Tensors as they are merged: under the names that settings speak of, with weights and parameters."""

    def __init__(self, base: Weights | None, task_vectors: TaskVectors, params: ByLayerParams) -> None:
        self.vectors, self.params, self.base = task_vectors, params, base
        self._origin = {name: (name, -1) for name in task_vectors.names}
        if params.naming == "huggingface":
            self._origin = ToHuggingFace(_Shapes(task_vectors)).origins
            self.base = ToHuggingFace(base) if base is not None else None
        self._parts: dict[str, list[str]] = {}
        for name, (own, _) in self._origin.items():
            self._parts.setdefault(own, []).append(name)
        blocks = [int(found[1]) for name in self._origin if (found := BLOCK.search(name))]
        self._last = max(blocks, default=0)

    def groups(self) -> list[tuple[Params, tuple[str, ...]]]:
        """Return the method's parameters with the tensors that have them.

        Raises:
            MergeError: a value that the method does not take.
        """
        found: dict[Params, list[str]] = {}
        for name in self._origin:
            try:
                inner = self.params.inner(self.params.values(name, self._depth(name)))
            except ValueError as error:
                raise MergeError(f"Settings of {name}: {error}") from error
            found.setdefault(inner, []).append(name)
        return [(inner, tuple(names)) for inner, names in found.items()]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        own, index = self._origin[name]
        shape = self.vectors.shape(own)
        return (shape[0] // 3, *shape[1:]) if index >= 0 else shape[::-1] if name == PROJECTION else shape

    def stack(self, name: str) -> Tensor:
        """Return the weighted task vectors (K, *shape) of one tensor, which the caller may change."""
        own, index = self._origin[name]
        stack = self.vectors.stack(own)
        if index >= 0:
            stack = stack.chunk(3, dim=1)[index].contiguous()
        elif name == PROJECTION:
            stack = stack.transpose(1, 2).contiguous()
        factors = self.params.weights(self.vectors.experts, name, self._depth(name))
        return stack.mul_(torch.tensor(factors, dtype=stack.dtype).view(-1, *[1] * (stack.dim() - 1)))

    def joined(self, own: str, part: Callable[[str], Tensor]) -> Tensor:
        """Put a tensor (k, *shape) under its own name together from its parts."""
        names = self._parts[own]
        found = [part(name) for name in names]
        if names == [PROJECTION]:
            return found[0].transpose(1, 2).contiguous()
        return torch.cat(found, dim=1) if len(found) > 1 else found[0]

    def _depth(self, name: str) -> float:
        found = BLOCK.search(name)
        if not found:
            return 0.0
        return int(found[1]) / self._last if self._last else 1.0


class _Apart:
    """A context that keeps what was computed under names and weights by layer apart from everything else."""

    def __init__(self, context: Context, params: ByLayerParams) -> None:
        self._context = context
        self._seen = params.model_dump_json(include={"naming", "normalise", "settings"})

    def __getattr__(self, name: str) -> Any:
        """Return what the context itself has."""
        return getattr(self._context, name)

    def cached(self, expert: str, quantity: str, params: Mapping[str, Any], compute: Callable[[], Tensors]) -> Tensors:
        """Return tensors that depend on one expert and on what a layer is here."""
        return self._context.cached(expert, quantity, {**params, "by_layer": self._seen}, compute)


@dataclass(frozen=True)
class _Some:
    """Some tensors of a plan as task vectors."""

    plan: _Plan
    names: tuple[str, ...]

    @property
    def experts(self) -> Sequence[str]:
        """Return the names of the experts."""
        return self.plan.vectors.experts

    @property
    def dtype(self) -> torch.dtype:
        """Return the compute dtype."""
        return self.plan.vectors.dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self.plan.shape(name)

    def stack(self, name: str) -> Tensor:
        """Return the weighted task vectors of all experts."""
        return self.plan.stack(name)

    def vector(self, name: str, expert: str) -> Tensor:
        """Return the weighted task vector of one expert."""
        return self.stack(name)[list(self.experts).index(expert)].clone()


@dataclass(frozen=True)
class _Shapes:
    """Names and shapes of task vectors, for their names elsewhere."""

    vectors: TaskVectors

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the layers."""
        return self.vectors.names
