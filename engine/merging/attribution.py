"""Contributions: the part of a merged vector that comes from each expert, entry by entry.

Many merges add up one vector per expert: Δ = Σ_k c_k, where c_k holds entries of expert k's own task vector, scaled or
left out. For those, a function here gives the c_k of a layer and says which of the expert's entries survived the
method's own trimming, before signs were compared. A row of the catalog names its function (``attribution``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..catalog import NoParams
from ..catalog.basic import TaskArithmeticParams
from ..catalog.sparse import BreadcrumbsParams, ConsensusParams, DellaParams, LocalizeParams, PcbParams, TiesParams
from ..catalog.weighted import SceParams
from ..types import Context, TaskVectors
from .assemble import flat
from .consensus import tall_masks
from .localize import largest_entries
from .pcb import Competition
from .row_pruning import dropped_at_random, middle
from .sce import weighted_entries
from .ties import agreeing, signs_of_ties, trim_limits, trimmed


@dataclass(frozen=True)
class Parts:
    """Contributions of K experts to a layer of n entries, all (K, n)."""

    vectors: Tensor  # c_k, which sum to the merged vector
    survived: Tensor  # entries that the method's own trimming left, as booleans
    kept: Tensor  # those of them that are in the merged vector, as booleans


Layer = Callable[[str], Parts]  # of a layer's name


def task_arithmetic(task_vectors: TaskVectors, params: TaskArithmeticParams, context: Context) -> Layer:
    """Return c_k = λ τ_k."""
    return lambda name: _whole(flat(task_vectors.stack(name)), params.scaling)


def weight_average(task_vectors: TaskVectors, params: NoParams, context: Context) -> Layer:
    """Return c_k = τ_k / K."""
    return lambda name: _whole(flat(task_vectors.stack(name)), 1 / len(task_vectors.experts))


def ties(task_vectors: TaskVectors, params: TiesParams, context: Context) -> Layer:
    """Return the trimmed entries that agree with the elected sign, times λ, by the number of experts for a mean."""
    limits = trim_limits(task_vectors, params.density, params.scope, context, params.frozen_parameters)
    majority = signs_of_ties(task_vectors, limits, params.scope)

    def layer(name: str) -> Parts:
        part = trimmed(flat(task_vectors.stack(name)), limits(name))
        return _some(agreeing(part, params.merge, majority), part, params.scaling)

    return layer


def breadcrumbs(task_vectors: TaskVectors, params: BreadcrumbsParams, context: Context) -> Layer:
    """Return α times the entries between the smallest and the largest."""

    def layer(name: str) -> Parts:
        rows = [middle(task_vectors.vector(name, expert), params).reshape(-1) for expert in task_vectors.experts]
        return _whole(torch.stack(rows), params.scaling)

    return layer


def della(task_vectors: TaskVectors, params: DellaParams, context: Context) -> Layer:
    """Return the entries that chance left, those that agree with the elected sign where signs are elected."""

    def layer(name: str) -> Parts:
        part = flat(dropped_at_random(task_vectors, name, params, context))
        return _some(agreeing(part, "mean", lambda: 1.0) if params.elect else part, part, params.scaling)

    return layer


def consensus(task_vectors: TaskVectors, params: ConsensusParams, context: Context) -> Layer:
    """Return α τ_k at the entries that serve enough tasks."""

    def layer(name: str) -> Parts:
        stack = task_vectors.stack(name)
        serve = tall_masks(stack, stack.sum(dim=0), params.mask_strictness).sum(dim=0) >= params.agreeing
        return _some(flat(stack * serve), flat(stack), params.scaling)

    return layer


def localize_and_stitch(task_vectors: TaskVectors, params: LocalizeParams, context: Context) -> Layer:
    """Return each expert's largest entries, by the number of experts that keep the same one."""
    masks = largest_entries(task_vectors, params.density, context)

    def layer(name: str) -> Parts:
        kept = flat(masks(name))
        return Parts(flat(task_vectors.stack(name)).mul_(kept).div_(kept.sum(dim=0).clamp_(min=1)), kept, kept)

    return layer


def pcb(task_vectors: TaskVectors, params: PcbParams, context: Context) -> Layer:
    """Return the clipped entries times their share of the scores."""
    competition = Competition(task_vectors, params, context)

    def layer(name: str) -> Parts:
        scores, clipped = competition.scores(flat(task_vectors.stack(name)))
        chosen = scores != 0
        vectors = clipped.mul_(scores).div_(scores.sum(dim=0).clamp_(min=1e-12)).mul_(params.scaling)
        return Parts(vectors, chosen, chosen)

    return layer


def sce(task_vectors: TaskVectors, params: SceParams, context: Context) -> Layer:
    """Return the entries that agree with the sum, times their share of the weights."""

    def layer(name: str) -> Parts:
        merged, weights = weighted_entries(task_vectors.stack(name), params)
        total = weights.sum(dim=0)
        vectors = (merged * weights).div_(torch.where(total > 0, total, 1.0))
        return _some(flat(vectors), flat(merged), params.scaling)

    return layer


def _whole(vectors: Tensor, scaling: float) -> Parts:
    """Return contributions of a merge that compares no signs."""
    return _some(vectors, vectors, scaling)


def _some(vectors: Tensor, survived: Tensor, scaling: float) -> Parts:
    """Return contributions, not yet scaled, of what the trimming left."""
    return Parts(vectors * scaling, survived != 0, vectors != 0)
