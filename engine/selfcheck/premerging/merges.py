"""References of merges: SCE in both forms, and random vectors in the place of task vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...merging.apply import merge
from ...merging.chance import stored_draws
from ...recipe import MethodCall
from ...weights import LazyTaskVectors, Memory
from ..context import Offline, tensors_of
from ..measure import Check, Found
from ..reference import PremergingReference


@dataclass(frozen=True)
class SmallMerge:
    """Carries out a merge of the small transformers; random numbers are those of the reference."""

    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    transforms: Sequence[str] = ()
    experts: Sequence[int] = (0, 1, 2)

    def __call__(self, reference: PremergingReference, name: str, precision: str) -> Found:
        """Merge, and compare every tensor."""
        return Found(self.merged(reference, precision), reference.output(name))

    def merged(self, reference: PremergingReference, precision: str) -> dict[str, Tensor]:
        """Return the merged tensors."""
        base = Memory(reference.inputs("toyvit_base"))
        models = {f"expert{n}": Memory(reference.inputs(f"toyvit_expert{n}")) for n in self.experts}
        vectors = LazyTaskVectors(base, models, dtype=getattr(torch, precision))
        calls = [MethodCall(method=name) for name in self.transforms]
        noise = reference.inputs("random_noise")
        with stored_draws(lambda purpose: noise[purpose[-1]]):
            call = MethodCall(method=self.method, params=dict(self.params))
            return tensors_of(merge(base, vectors, calls, call, Offline(vectors.experts)).weights)


def random_vector(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare the random vector itself: what the transform and a plain sum add to the base."""
    merged = SmallMerge("task_arithmetic", {"scaling": 1.0}, ("random_vector",), (0,)).merged(reference, precision)
    base = reference.weights("toyvit_base", precision)
    return Found({key: tensor - base[key] for key, tensor in merged.items()}, reference.output(name))


def negation(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare negated task and random vectors."""
    params, got = {"scaling": -reference.entries[name]["params"]["lambda"]}, {}
    for kind, transforms in (("task", ()), ("random", ("random_vector",))):
        found = SmallMerge("task_arithmetic", params, transforms, (0,)).merged(reference, precision)
        got |= {f"{kind}.{key}": tensor for key, tensor in found.items()}
    return Found(got, reference.output(name))


FORMS = {"fusechat": "merge", "mergekit": "drop"}
CHECKS: dict[str, Check] = {
    "random_vector_expert0": random_vector,
    "negation_random_vs_task_l0.7": negation,
    **{
        f"sce_{program}_topk{share}": SmallMerge("sce", {"select": share, "unselected": form})
        for program, form in FORMS.items()
        for share in (0.1, 1.0)
    },
}
