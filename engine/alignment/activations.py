"""Matching units by what they do on images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import AlignmentError
from .symmetry import Symmetry
from .weight_matching import best_orders

By = Literal["moment", "correlation"]


class PairedMoments:
    """Means, variances and cross moments of two networks' units over the same inputs, summed up batch by batch."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.count = 0
        self._one: Tensor | float = 0.0
        self._two: Tensor | float = 0.0
        self._cross: Tensor | float = 0.0
        self._squares: tuple[Tensor | float, Tensor | float] = (0.0, 0.0)

    def add(self, one: Float[Tensor, "n a"], two: Float[Tensor, "n b"]) -> None:  # noqa: F722
        """Count the units' values on some inputs, rows in the same order."""
        one, two = one.detach().double().cpu(), two.detach().double().cpu()
        self.count += len(one)
        self._one, self._two = self._one + one.sum(dim=0), self._two + two.sum(dim=0)
        self._cross = self._cross + one.T @ two
        self._squares = tuple(
            total + part.square().sum(dim=0) for total, part in zip(self._squares, (one, two), strict=True)
        )

    @property
    def covariance(self) -> Tensor:
        """Return the unbiased covariance (a, b)."""
        return (self._cross - torch.outer(self._one, self._two) / self.count) / (self.count - 1)

    @property
    def moment(self) -> Tensor:
        """Return E[a bᵀ] (a, b): covariance plus the outer product of means.

        Source: the program of Ainsworth et al., ICLR 2023, arXiv:2209.04836, §3.1.
        """
        return self.covariance + torch.outer(self._one, self._two) / self.count**2

    @property
    def deviations(self) -> tuple[Tensor, Tensor]:
        """Return the unbiased standard deviations of both networks' units; 0 for what rounding may leave."""
        found = []
        for total, squares in zip((self._one, self._two), self._squares, strict=True):
            left = squares - total.square() / self.count  # a sum of n terms is known up to n·eps of their sum
            sure = left > self.count * torch.finfo(left.dtype).eps * squares
            found.append(torch.where(sure, left / (self.count - 1), 0.0).sqrt())
        return found[0], found[1]

    @property
    def correlation(self) -> Tensor:
        """Return the correlation (a, b); 0 where a unit never changes."""
        one, two = self.deviations
        scale = torch.outer(one, two)
        return torch.where(scale > 0, self.covariance / scale.clamp(min=torch.finfo(scale.dtype).tiny), 0.0)

    @property
    def dead(self) -> tuple[int, int]:
        """Count the units of each network that never change."""
        one, two = self.deviations
        return int((one == 0).sum()), int((two == 0).sum())


@dataclass(frozen=True)
class Matched:
    """Orders of units, and what they were assigned on."""

    permutations: dict[str, Tensor]
    scores: dict[str, Tensor]  # (n, n) by group


def activation_matching(
    seen: Iterable[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]], symmetry: Symmetry, by: By = "moment"
) -> Matched:
    """Find the order of units that behave most like another network's on the same inputs; each group once.

    Units that never change have no partner of their own; they get whatever is left.

    Args:
        seen: for batches of inputs, values (rows, units) by group of the fixed network and of the other.
        symmetry: says which groups lie in heads. Only groups that were seen are ordered.
        by: score pairs by E[a bᵀ] (the authors' program) or by correlation.

    Source: Ainsworth et al., ICLR 2023, arXiv:2209.04836, §3.1; for heads Verma & Elbayad, 2024, arXiv:2403.00986.
        Departure: signed, where the latter's default takes magnitudes.

    Raises:
        AlignmentError: nothing was seen.
    """
    moments: dict[str, PairedMoments] = {}
    for one, two in seen:
        for group in one:
            moments.setdefault(group, PairedMoments()).add(one[group], two[group])
    if not moments:
        raise AlignmentError("Units can only be matched by activations with at least one image.")
    scores = {group: found.moment if by == "moment" else found.correlation for group, found in moments.items()}
    permutations: dict[str, Tensor] = {}
    for groups in symmetry.units():
        if all(group in scores for group in groups):
            orders = best_orders([scores[group] for group in groups], symmetry, groups)
            permutations.update(zip(groups, orders, strict=True))
    return Matched(permutations, scores)
