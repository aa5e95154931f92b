"""Matching units by weights: no data is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..types import Tensors
from .assignment import assign, assign_heads, score_of
from .symmetry import Permutations, Symmetry, check_same_shapes, identity, permuted

GAIN = 1e-12
Solver = Callable[[Sequence[Tensor]], list[Tensor]]


def weight_matching(
    fixed: Tensors,
    other: Tensors,
    symmetry: Symmetry,
    sweeps: int = 100,
    order: Sequence[tuple[str, ...]] | None = None,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Tensor]:
    """Find the order of units whose weights have the largest inner product with another network's.

    Groups are visited in turn; each is ordered as well as it can be while the others stay. The inner product never
    falls; with more than one group the result is a local optimum that depends on the order of visits.

    Args:
        fixed: θ_A, which stays.
        other: θ_B, whose units are reordered.
        symmetry: of both.
        sweeps: visits of every group at most.
        order: of visits; that of the symmetry by default. Groups with heads in common stand together.
        progress: told how many sweeps are done, parts of one included.

    Returns:
        Permutations for :func:`~.symmetry.permuted`, one for each group.

    Source: Ainsworth et al., ICLR 2023, arXiv:2209.04836, Algorithm 1; for transformers Rinaldi et al., ICML 2025,
        arXiv:2505.22697, §3. Departure: groups are visited in a fixed order, not a random one. Heads and the channels
        inside them are ordered at once and exactly, where the latter pairs heads by singular values; queries with
        keys and values with outputs have maps of their own inside a head.

    Raises:
        AlignmentError: widths differ, or weights are not finite.
    """
    check_same_shapes(fixed, other)
    found, visits = identity(symmetry, other), order or symmetry.units()
    for sweep in range(sweeps):
        gained = False
        for place, groups in enumerate(visits):
            if progress is not None:
                progress(sweep + place / len(visits))
            scores = [_scores(fixed, other, symmetry, found, group) for group in groups]
            before = sum(score_of(part, found[group]) for part, group in zip(scores, groups, strict=True))
            orders = best_orders(scores, symmetry, groups)
            after = sum(score_of(part, order) for part, order in zip(scores, orders, strict=True))
            if after > before + GAIN:
                found.update(zip(groups, orders, strict=True))
                gained = True
        if not gained:
            break
    return found


def best_orders(scores: Sequence[Tensor], symmetry: Symmetry, groups: tuple[str, ...]) -> list[Tensor]:
    """Return the best order of each group, by whole heads where they lie in heads."""
    heads = symmetry.heads_of(groups)
    return [assign(scores[0])] if heads is None else assign_heads(scores, heads.width)[0]


def objective(fixed: Tensors, other: Tensors) -> float:
    """Return Σ ⟨θ_A, θ_B⟩ over all tensors."""
    return sum(float((tensor.double() * other[name].double()).sum()) for name, tensor in fixed.items())


def _scores(fixed: Tensors, other: Tensors, symmetry: Symmetry, found: Permutations, group: str) -> Tensor:
    """Score how well each unit of the fixed network fits each of the other's, (n, n), while other groups stay."""
    names = {name for name, _ in symmetry.groups[group]}
    rest = {
        key: order
        for key, order in found.items()
        if key != group and any(name in names for name, _ in symmetry.groups[key])
    }
    moved = permuted({name: other[name] for name in names}, _only(symmetry, names), rest)
    total: Tensor | float = 0.0
    for name, axis in symmetry.groups[group]:
        one, two = (side[name].double().movedim(axis, 0).reshape(side[name].shape[axis], -1) for side in (fixed, moved))
        total = total + one @ two.T
    assert isinstance(total, torch.Tensor)
    return total


def _only(symmetry: Symmetry, names: set[str]) -> Symmetry:
    """The symmetry of some tensors."""
    return Symmetry({key: tuple(axis for axis in axes if axis[0] in names) for key, axes in symmetry.groups.items()})
