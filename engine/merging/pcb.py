"""PCB-Merging: entries weighted by their standing within a task and among tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..catalog.sparse import PcbParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base, flat
from .selection import order_statistics


def pcb(base: Weights, task_vectors: TaskVectors, params: PcbParams, context: Context) -> Static:
    """Weight every entry by parameter competition, drop low scores, and take the weighted mean.

    Source: Du et al., NeurIPS 2024, arXiv:2410.02396, §3.
    Departure: magnitudes are clipped to quantiles and the competition within a task is exp(K · m²) of min–max
        normalised magnitudes m, as in the authors' code; the paper writes a softmax. ``balance: normalised`` is their
        vision script's variant.
    """
    competition = Competition(task_vectors, params, context)

    def vector(name: str) -> Tensor:
        scores, clipped = competition.scores(name)
        weighted = scores.mul(clipped).sum(dim=0).div_(scores.sum(dim=0).clamp_(min=1e-12))
        return weighted.view(task_vectors.shape(name)).mul_(params.scaling)

    return add_to_base(base, task_vectors, vector)


class Competition:
    """Scores of all entries, from a few numbers a task that are measured first."""

    def __init__(self, task_vectors: TaskVectors, params: PcbParams, context: Context) -> None:
        self._vectors, self._params, self._context = task_vectors, params, context
        count = sum(math.prod(task_vectors.shape(name)) for name in task_vectors.names)
        lowest, highest = int(count * params.clip), int(count * (1 - params.clip) - 1)
        magnitudes = self._pass(lambda name: flat(task_vectors.stack(name)).abs_())
        self._low = order_statistics(magnitudes, count, lowest + 1)[:, None]
        self._high = order_statistics(magnitudes, count, highest + 1)[:, None]
        balances = self._pass(lambda name: self._balance(name)[0])
        self._floor = order_statistics(balances, count, min(int(count * (1 - params.density)), count - 1) + 1)[:, None]
        ceilings = [balance.amax(dim=1) for balance in balances() if balance.shape[1]]
        self._ceiling = torch.stack(ceilings).amax(dim=0)[:, None]

    def scores(self, name: str) -> tuple[Tensor, Tensor]:
        """The normalised scores of a layer's entries and its clipped task vectors, both (K, n)."""
        balance, clipped = self._balance(name)
        span = self._ceiling - self._floor
        scores = balance.clamp_(self._floor, self._ceiling).sub_(self._floor)
        return scores.div_(torch.where(span > 0, span, 1.0)), clipped

    def _balance(self, name: str) -> tuple[Tensor, Tensor]:
        vectors = flat(self._vectors.stack(name))
        clipped = vectors.abs().clamp_(self._low, self._high)
        span = self._high - self._low
        relative = (clipped - self._low).div_(torch.where(span > 0, span, 1.0))
        signs = vectors.sign()
        others = relative * signs if self._params.balance == "normalised" else vectors
        within = relative.square().mul_(len(vectors)).exp_()
        among = (vectors * others.sum(dim=0)).tanh_()
        return within.mul_(among), clipped.mul_(signs)

    def _pass(self, piece: Callable[[str], Tensor]) -> Callable[[], Iterable[Tensor]]:
        names = self._vectors.names

        def run() -> Iterable[Tensor]:
            for index, name in enumerate(names):
                self._context.progress(index / len(names), f"Scoring entries of {name}")
                yield piece(name)

        return run
