"""Symmetries of networks: which axes of which tensors may be reordered together without changing the function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import AlignmentError
from ..types import Tensors

Axis = tuple[str, int]
Permutations = Mapping[str, Tensor]


@dataclass(frozen=True)
class Heads:
    """Groups whose units lie in heads of one width that move as wholes, in the same order for all these groups."""

    groups: tuple[str, ...]
    width: int


@dataclass(frozen=True)
class Symmetry:
    """Groups of units that may be reordered.

    ``groups`` maps a group's name onto every axis that it orders; no tensor has two axes in one group. ``heads`` says
    which groups are reordered within heads and by whole heads only. ``features`` names the group in whose order
    features come out, so that whoever reads them has to be reordered too; '' where features keep their order.
    """

    groups: Mapping[str, tuple[Axis, ...]]
    heads: tuple[Heads, ...] = ()
    features: str = ""

    @property
    def within(self) -> Symmetry:
        """Return the groups whose reordering leaves the features as they are."""
        return Symmetry({group: axes for group, axes in self.groups.items() if group != self.features}, self.heads)

    def order_of_features(self, permutations: Permutations) -> Tensor | None:
        """Return the order in which a reordered network gives its features; None where it is as before."""
        return permutations.get(self.features)

    def sizes(self, tensors: Tensors) -> dict[str, int]:
        """Return how many units each group has.

        Raises:
            AlignmentError: a tensor is missing, or axes of one group differ in length.
        """
        found: dict[str, int] = {}
        for group, axes in self.groups.items():
            for name, axis in axes:
                if name not in tensors:
                    raise AlignmentError(f"The network has no tensor {name}, which its symmetry names.")
                size = tensors[name].shape[axis]
                if found.setdefault(group, size) != size:
                    raise AlignmentError(
                        f"Axis {axis} of {name} has {size} units; other axes of '{group}' have {found[group]}."
                    )
        return found

    def units(self) -> list[tuple[str, ...]]:
        """Return the groups in order; those with heads in common stand together."""
        together = {group: heads.groups for heads in self.heads for group in heads.groups}
        return list(dict.fromkeys(together.get(group, (group,)) for group in self.groups))

    def heads_of(self, groups: tuple[str, ...]) -> Heads | None:
        """Return the heads that groups lie in."""
        return next((heads for heads in self.heads if heads.groups == groups), None)


def check_same_shapes(fixed: Tensors, other: Tensors) -> None:
    """Refuse networks of different widths.

    Raises:
        AlignmentError: naming the first tensor that differs.
    """
    for name in fixed:
        if name not in other or fixed[name].shape != other[name].shape:
            found = f"shape {tuple(other[name].shape)}" if name in other else "no such tensor"
            raise AlignmentError(
                f"Units are matched one to one, so both networks need equal widths: {name} has shape "
                f"{tuple(fixed[name].shape)} in one and {found} in the other. Choose networks of one architecture."
            )


def permuted(tensors: Tensors, symmetry: Symmetry, permutations: Permutations) -> dict[str, Tensor]:
    """Reorder units: along every axis of a group, new[i] = old[permutation[i]].

    Groups that ``permutations`` does not name keep their order.
    """
    found = dict(tensors)
    for group, permutation in permutations.items():
        for name, axis in symmetry.groups[group]:
            found[name] = found[name].index_select(axis, permutation.to(found[name].device))
    return found


def identity(symmetry: Symmetry, tensors: Tensors) -> dict[str, Tensor]:
    """Return the permutations that change nothing."""
    return {group: torch.arange(size) for group, size in symmetry.sizes(tensors).items()}


def random_permutations(symmetry: Symmetry, tensors: Tensors, seed: int) -> dict[str, Tensor]:
    """Return permutations drawn from all that keep the function, as a control."""
    generator = torch.Generator().manual_seed(seed)
    sizes, found = symmetry.sizes(tensors), {}
    for groups in symmetry.units():
        heads = symmetry.heads_of(groups)
        if heads is None:
            found[groups[0]] = torch.randperm(sizes[groups[0]], generator=generator)
            continue
        order = torch.randperm(sizes[groups[0]] // heads.width, generator=generator)
        for group in groups:
            inner = [head * heads.width + torch.randperm(heads.width, generator=generator) for head in order.tolist()]
            found[group] = torch.cat(inner)
    return found
