"""ZipIt: merging the most alike units, also within one network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .assignment import assign

EPSILON = 1e-5
VANISHING = 1e-6


@dataclass(frozen=True)
class Zipped:
    """Two matrices between units of both networks, A's before B's, and merged ones.

    ``merge`` (merged, units) averages the units of each group; ``unmerge`` (units, merged) copies back.
    """

    merge: Tensor
    unmerge: Tensor

    @classmethod
    def of(cls, unmerge: Tensor) -> Zipped:
        """Build from the membership of units (rows) in groups (columns)."""
        return cls((unmerge / (unmerge.sum(dim=0) + EPSILON)).T, unmerge)


def zip_units(correlation: Tensor, again: float = 0.3, budget: float = 0.125) -> Zipped:
    """Merge the most alike pair of units, again and again, until half of all are left.

    Args:
        correlation: (2n, 2n) of the units of A and B on the same inputs; 0 for units that never change.
        again: what the likeness of a merged group to others is multiplied by; 0 stands for a vanishing factor, so
            that groups come after all fresh pairs that are alike at all.
        budget: share of a network's merges that may be between units of its own.

    Source: Stoica et al., ICLR 2024, arXiv:2305.03053, Algorithm 1 and Appendix B. Departure: none.
    """
    alike = correlation.double().clone().fill_diagonal_(-torch.inf)
    total = len(alike)
    member = torch.eye(total, dtype=torch.float64)
    origin = torch.arange(total) * 2 // total
    allowed = [int(total // 4 * budget + 1e-4) if budget > 0 else -1] * 2
    while member.shape[1] > total // 2:
        place = int(alike.argmax())
        keep, gone = sorted((place // len(alike), place % len(alike)))
        member[:, keep] += member[:, gone]
        alike[keep] = alike[:, keep] = torch.minimum(alike[keep], alike[gone]) * max(again, VANISHING)
        rest = torch.arange(len(alike)) != gone
        own = bool(origin[keep] == origin[gone])
        member, alike, origin = member[:, rest], alike[rest][:, rest], origin[rest]
        if own:
            network = int(origin[keep])
            allowed[network] -= 1
            if allowed[network] <= 0:
                inside = origin == network
                alike[inside[:, None] & inside[None, :]] = -torch.inf
    return Zipped.of(member)


def pair_units(correlation: Tensor) -> Zipped:
    """Merge every unit of A with one of B by the best assignment, as a permutation would.

    Args:
        correlation: (2n, 2n) of the units of A and B.

    Source: the baseline of Stoica et al., ICLR 2024, arXiv:2305.03053.
    """
    half = len(correlation) // 2
    order = assign(correlation[:half, half:])
    unmerge = torch.zeros(2 * half, half, dtype=torch.float64)
    unmerge[torch.arange(half), torch.arange(half)] = 1
    unmerge[half + order, torch.arange(half)] = 1
    return Zipped.of(unmerge)
