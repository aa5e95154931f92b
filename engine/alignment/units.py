"""Units of two networks beside each other: how alike those in the same place are, and which ones ZipIt would merge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..types import Tensors
from .activations import PairedMoments
from .symmetry import Symmetry
from .zipit import zip_units


def likeness(fixed: Tensors, other: Tensors, symmetry: Symmetry) -> dict[str, float]:
    """Return by group the mean cosine between units in the same place; a unit is all weights along its axes.

    Args:
        fixed: one network's tensors, unfolded.
        other: the other's.
        symmetry: of both.
    """
    found = {}
    for group, axes in symmetry.groups.items():
        one, two = (
            torch.cat(
                [side[name].double().movedim(axis, 0).flatten(1) for name, axis in axes if side[name].ndim > 1], 1
            )
            for side in (fixed, other)
        )
        found[group] = float(functional.cosine_similarity(one, two, dim=1).mean())
    return found


@dataclass(frozen=True)
class Zips:
    """Shares of the groups into which ZipIt merges the units of two networks."""

    same: float  # one unit of each, in the same place
    across: float  # units of both networks, in other places
    within: float  # units of one network alone
    single: float  # units that are merged with none


def zip_shares(seen: Iterable[tuple[Tensor, Tensor]]) -> Zips:
    """Merge units by their correlation on the same inputs and count the kinds of groups.

    Args:
        seen: values (rows, units) of both networks, batch by batch.

    Source: Stoica et al., ICLR 2024, arXiv:2305.03053, Algorithm 1.
    """
    moments = PairedMoments()
    for one, two in seen:
        both = torch.cat([one, two], dim=1)
        moments.add(both, both)
    member = zip_units(moments.correlation).unmerge > 0
    half = len(member) // 2
    first, second = member[:half], member[half:]
    counts, of_first = member.sum(dim=0), first.sum(dim=0)
    mixed = (of_first > 0) & (of_first < counts)
    same = mixed & (counts == 2) & (first & second).any(dim=0)
    total = member.shape[1]
    return Zips(
        same=float(same.sum()) / total,
        across=float((mixed & ~same).sum()) / total,
        within=float((~mixed & (counts > 1)).sum()) / total,
        single=float((counts == 1).sum()) / total,
    )


def in_place(order: Tensor) -> float:
    """Return the share of units that an order leaves where they are."""
    return float((order == torch.arange(len(order))).double().mean())


def undone(order: Mapping[str, Tensor], shuffle: Mapping[str, Tensor]) -> dict[str, float]:
    """Return by group the share of units that a matching puts back to where a shuffle took them from."""
    return {group: in_place(shuffle[group][found]) for group, found in order.items() if group in shuffle}
