"""A reference that is one merge: transforms, a method and their parameters, as a recipe would say them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...merging.apply import merge
from ...merging.chance import Draws, stored_draws
from ...recipe import MethodCall
from ..context import Offline, tensors_of
from ..measure import Found
from ..reference import TOY, MergingReference, by_name


@dataclass(frozen=True)
class Recipe:
    """Carries out a merge of the small models and compares the weights.

    ``weights`` are the experts' weights; ``measured`` names a file of inputs with what was taken from images;
    ``draws`` names an entry with a published random draw; ``at_best`` says that the reference computed in float32,
    or knows its inputs no better, whatever it was given.
    """

    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    transforms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    experts: Sequence[int] | None = None
    weights: Sequence[float] | None = None
    kind: str = TOY
    measured: str = ""
    draws: str = ""
    at_best: str = ""
    some: bool = False  # the reference holds some of the layers only

    def __call__(self, reference: MergingReference, name: str, precision: str) -> Found:
        """Merge, and compare every tensor."""
        got, want = self.merged(reference, precision), reference.output(name)
        return Found({layer: got[layer] for layer in want} if self.some else got, want, self.at_best)

    def merged(self, reference: MergingReference, precision: str) -> dict[str, Tensor]:
        """Return the merged tensors."""
        base, vectors = reference.vectors(precision, self.experts, self.kind, self.weights)
        calls = [MethodCall(method=key, params=dict(value)) for key, value in self.transforms.items()]
        call = MethodCall(method=self.method, params=dict(self.params))
        with stored_draws(_reader(reference, self.draws)) if self.draws else nullcontext():
            merged = merge(base, vectors, calls, call, Offline(vectors.experts, measured=self._taken(reference)))
            return tensors_of(merged.weights)

    def _taken(self, reference: MergingReference) -> dict[str, Any]:
        if not self.measured:
            return {}
        stored = reference.inputs(self.measured)
        return {expert: by_name(stored, expert.replace("expert", "task") + "/") for expert in reference.experts}


def _reader(reference: MergingReference, entry: str) -> Draws:
    """Return a function that finds masks by (method, expert, layer), or (method, layer) for a shared mask."""
    masks = reference.output(entry)

    def read(purpose: tuple[str, ...]) -> Tensor:
        _, *place = purpose
        return masks["/".join(place).replace("expert", "task", 1) if len(place) > 1 else place[0]].bool()

    return read
