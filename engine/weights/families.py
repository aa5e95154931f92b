"""Tensors that an expert's fine-tuning moved, and families of experts that moved different ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from ..layouts import LAYOUTS
from ..types import Weights

NAMED = 3
PROJECTIONS = frozenset(layout.projection for layout in LAYOUTS if layout.projection)


def moved(base: Weights, experts: Mapping[str, Weights]) -> dict[str, frozenset[str]]:
    """Find the sampled tensors that each expert has other values in than the base."""
    sampled = [name for layout in LAYOUTS for name in layout.sampled if name in base.names]
    values = {name: base.tensor(name).clone() for name in sampled}
    return {
        expert: frozenset(name for name in sampled if not same(values[name], weights.tensor(name)))
        for expert, weights in experts.items()
    }


def same(base: Tensor, expert: Tensor) -> bool:
    """Return whether two tensors hold the same values, in the coarser of their dtypes."""
    coarse = min(base.dtype, expert.dtype, key=lambda dtype: dtype.itemsize)
    return torch.equal(base.to(coarse), expert.to(coarse))


def family_warnings(trained: Mapping[str, Collection[str]]) -> list[str]:
    """Describe tensors that some experts were trained in and others kept at the base's values, a sentence each.

    Args:
        trained: tensors that moved, by expert; leave out experts that equal the base.
    """
    sets = {name: frozenset(tensors) for name, tensors in trained.items()}
    differing = frozenset().union(*sets.values()) - frozenset.intersection(*sets.values()) if sets else frozenset()
    ordered = sorted(differing, key=lambda name: (name not in PROJECTIONS, name))
    return [
        f"{tensor} was fine-tuned in {_listed([n for n, t in sets.items() if tensor in t])} and kept at the base's "
        f"values in {_listed([n for n, t in sets.items() if tensor not in t])}. Families of experts that train "
        "different tensors merge worse; the comparison says less."
        for tensor in ordered[:NAMED]
    ]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
