"""PCB-Merging: entries weighted by their standing within a task and among tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ..catalog.sparse import PcbParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base, all_pieces, in_pieces
from .selection import order_statistics


def pcb(base: Weights, task_vectors: TaskVectors, params: PcbParams, context: Context) -> Static:
    """Weight every entry by parameter competition, drop low scores, and take the weighted mean.

    Source: Du et al., NeurIPS 2024, arXiv:2410.02396, §3.
    Departure: magnitudes are clipped to quantiles and the competition within a task is exp(K · m²) of min–max
        normalised magnitudes m, as in the authors' code; the paper writes a softmax. ``balance: normalised`` is their
        vision script's variant.
    """
    competition = Competition(task_vectors, params, context)

    def merge(piece: Tensor) -> Tensor:
        scores, clipped = competition.scores(piece)
        return clipped.mul_(scores).sum(dim=0).div_(scores.sum(dim=0).clamp_(min=1e-12)).mul_(params.scaling)

    return add_to_base(base, task_vectors, lambda name: in_pieces(task_vectors, name, merge))


class Competition:
    """Scores of entries, from a few numbers a task that are measured first, in two passes over all layers."""

    def __init__(self, task_vectors: TaskVectors, params: PcbParams, context: Context) -> None:
        self._normalised = params.balance == "normalised"
        count = sum(math.prod(task_vectors.shape(name)) for name in task_vectors.names)
        lowest, highest = int(count * params.clip), int(count * (1 - params.clip) - 1)

        def report(fraction: float, layer: str) -> None:
            context.progress(fraction, f"Scoring entries of {layer}")

        def magnitudes(step: int) -> Iterable[Tensor]:
            return (piece.abs_() for piece in all_pieces(task_vectors, step, report))

        self._low, self._high = order_statistics(magnitudes, count, [lowest + 1, highest + 1])[:, :, None]
        self._span = torch.where(self._high > self._low, self._high - self._low, 1.0)
        highest_seen = torch.full_like(self._low, -torch.inf)

        def balances(step: int) -> Iterable[Tensor]:
            for piece in all_pieces(task_vectors, step, report):
                balance = self._balance(piece)[0]
                if balance.shape[1]:
                    torch.maximum(highest_seen, balance.amax(dim=1, keepdim=True), out=highest_seen)
                yield balance

        floor = min(int(count * (1 - params.density)), count - 1)
        self._floor, self._ceiling = order_statistics(balances, count, [floor + 1])[0][:, None], highest_seen

    def scores(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised scores of entries (K, n) and their clipped task vectors, both (K, n)."""
        balance, clipped = self._balance(vectors)
        span = self._ceiling - self._floor
        scores = balance.clamp_(self._floor, self._ceiling).sub_(self._floor)
        return scores.div_(torch.where(span > 0, span, 1.0)), clipped.mul_(vectors.sign_())

    def _balance(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Competition within and among tasks, of entries (K, n), and their clipped magnitudes."""
        clipped = vectors.abs().clamp_(self._low, self._high)
        relative = (clipped - self._low).div_(self._span)
        others = relative * vectors.sign() if self._normalised else vectors
        among = torch.mul(vectors, others.sum(dim=0)).tanh_()
        return relative.square_().mul_(len(vectors)).exp_().mul_(among), clipped
