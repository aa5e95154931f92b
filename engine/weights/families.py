"""Tensors that an expert's fine-tuning moved, and families of experts that moved different ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from ..layouts import LAYOUTS
from ..types import Weights

NAMED = 3
FAR = 0.5  # ‖θ_k − θ₀‖ / ‖θ₀‖ over the sampled tensors; fine-tuning moves weights by a few hundredths
PROJECTIONS = frozenset(layout.projection for layout in LAYOUTS if layout.projection)


def sampled(weights: Weights) -> list[str]:
    """Return the names of a model's sampled tensors: small ones, of every part."""
    return [name for layout in LAYOUTS for name in layout.sampled if name in weights.names]


def moved(base: Weights, experts: Mapping[str, Weights]) -> dict[str, frozenset[str]]:
    """Find the sampled tensors that each expert has other values in than the base."""
    names = sampled(base)
    values = {name: base.tensor(name).clone() for name in names}
    return {
        expert: frozenset(name for name in names if not same(values[name], weights.tensor(name)))
        for expert, weights in experts.items()
    }


def same(base: Tensor, expert: Tensor) -> bool:
    """Return whether two tensors hold the same values, in the coarser of their dtypes."""
    coarse = min(base.dtype, expert.dtype, key=lambda dtype: dtype.itemsize)
    return torch.equal(base.to(coarse), expert.to(coarse))


def distance(base: Mapping[str, Tensor], expert: Mapping[str, Tensor]) -> float:
    """Return ‖θ_k − θ₀‖ / ‖θ₀‖ over the tensors of the base that are given; infinite where it is no number."""
    squares = sum(float((expert[name].double() - base[name].double()).square().sum()) for name in base)
    norm = sum(float(tensor.double().square().sum()) for tensor in base.values())
    value = math.sqrt(squares / norm) if norm > 0 else 0.0
    return value if math.isfinite(value) else math.inf


def far_warnings(expert: str, value: float) -> list[str]:
    """Say of an expert that is too far from the base to have been fine-tuned from it.

    Args:
        expert: its name.
        value: from :func:`distance`.
    """
    if value <= FAR:
        return []
    return [
        f"Expert '{expert}' is {100 * value:.0f} % away from the base; fine-tuning moves weights by a few percent. It "
        "probably started from another model."
    ]


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
