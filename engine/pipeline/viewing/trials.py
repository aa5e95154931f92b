"""Merges of a recipe with something changed, made in memory and scored on one task's images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import MergeError
from ...merging.apply import merge as merge_experts
from ...merging.chance import normal
from ...recipe import MethodCall
from ...types import PerTask, Static, Tensors, Weights
from ...weights import LazyTaskVectors
from ...zoo.encoders.backbone import architecture, build_encoder, forward_with, load_encoder
from ...zoo.folder import Zoo
from ..run.context import MergeContext
from .anew import TrialParams

if TYPE_CHECKING:
    from ..tools import StepTools


@dataclass(frozen=True)
class Trials:
    """Merges experts of a zoo as a recipe says, or as it says but for a change."""

    zoo: Zoo
    params: TrialParams
    tools: StepTools
    device: torch.device
    strangers: dict[str, Weights] = field(default_factory=dict)  # experts that the zoo does not have

    def encoder(
        self,
        names: Sequence[str],
        task: str = "",
        *,
        merge: MethodCall | None = None,
        transforms: Sequence[MethodCall] | None = None,
    ) -> nn.Module:
        """Return the merge of some experts as an encoder of one task, on the device.

        Args:
            names: experts of the recipe, or names that :meth:`stranger` gave.
            task: whose weights are taken where they depend on it; default the step's.
            merge: in place of the recipe's.
            transforms: in place of the recipe's.

        Raises:
            EngineError: the method refuses these experts.
        """
        base, config = self.zoo.weights("base"), architecture(self.zoo.folder, self.zoo.manifest)
        factors = dict(self.params.experts)
        table = self.zoo.manifest.expert_table
        experts = {name: self.strangers.get(name) or self.zoo.weights(name) for name in names}
        weights = {name: factors[_origin(name)] for name in names}
        tasks = tuple(table[_origin(name)].task for name in names)
        context = _Apart(self.zoo, tasks, self.params.digests, self.params.probe, self.params.seed, self.tools, weights)
        called = self.params.merge if merge is None else merge
        changes = self.params.transforms if transforms is None else tuple(transforms)
        vectors = LazyTaskVectors(base, experts, weights=list(weights.values()))
        merged = merge_experts(base, vectors, changes, called, context)
        if isinstance(merged, Static):
            return load_encoder(config, merged.weights).to(self.device)
        if isinstance(merged, PerTask):
            wanted = task or self.params.task
            if wanted not in merged.tasks:
                raise MergeError(f"Without an expert of '{wanted}' this merge has no weights for it.")
            return load_encoder(config, merged.rebuild(base, merged.parts, wanted)).to(self.device)
        forward = partial(forward_with, build_encoder(config))
        return merged.rebuild(base, merged.parts, forward).to(self.device)

    def stranger(self, name: str) -> str:
        """Return the name of a made expert: a random task vector, tensor by tensor as long as that of an expert."""
        made = f"random:{name}"
        self.strangers.setdefault(
            made, Stranger(self.zoo.weights("base"), self.zoo.weights(name), self.params.seed, name)
        )
        return made


@dataclass(frozen=True)
class Stranger:
    """Weights at the end of a random task vector whose tensors have the lengths of an expert's.

    Source: the control of Ilharco et al., ICLR 2023, arXiv:2212.04089, §3.
    """

    base: Weights
    expert: Weights
    seed: int
    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the base's tensors."""
        return self.base.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self.base.shape(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of one tensor."""
        return self.base.dtype(name)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor; what is not of floating point is the base's."""
        start = self.base.tensor(name)
        if not start.is_floating_point():
            return start
        length = (self.expert.tensor(name).float() - start.float()).norm()
        drawn = normal(tuple(start.shape), self.seed, "stranger", self.name, name)
        tiny = torch.finfo(torch.float32).tiny
        return (start.float() + drawn * (length / drawn.norm().clamp(min=tiny))).to(start.dtype)


class _Apart(MergeContext):
    """A context that keeps nothing of experts that the zoo does not have, and whose progress is no step's own."""

    def progress(self, fraction: float, message: str = "") -> None:
        """Stop where the step's result is no longer wanted."""
        self._tools.check()

    def cached(self, expert: str, quantity: str, params: Mapping[str, Any], compute: Callable[[], Tensors]) -> Tensors:
        """Return tensors that depend on one expert only, kept where it is one of the zoo."""
        return compute() if expert not in self._digests else super().cached(expert, quantity, params, compute)


def _origin(name: str) -> str:
    return name.removeprefix("random:")
