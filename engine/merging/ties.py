"""TIES: trim, elect sign, merge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor

from ..catalog.sparse import TiesParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import COLUMNS, Changed, add_to_base, flat, in_columns
from .selection import order_statistic


def ties(base: Weights, task_vectors: TaskVectors, params: TiesParams, context: Context) -> Static:
    """Trim small entries of every task vector, elect a sign for every entry, and merge what agrees with it.

    Source: Yadav et al., NeurIPS 2023, arXiv:2306.01708, Algorithm 1.
    Departure: the paper takes the mean of agreeing entries with λ around 1; published vision numbers take their sum
        with λ = 0.3 or 0.4. Both are presets. Entries tied at the threshold are all kept, and an entry whose trimmed
        sum is zero takes the majority sign of all entries, as in the authors' code. A density of 1 keeps everything
        (the authors' code fails there). ``scope: tensor`` is the variant of mergekit: trimmed within each tensor,
        and a zero sum counts as positive.
    """
    merge = merge_trimmed(task_vectors, params.density, params.merge, context, params.scope, params.frozen_parameters)
    return add_to_base(base, task_vectors, lambda name: merge(name).mul_(params.scaling))


def merge_trimmed(
    task_vectors: TaskVectors,
    density: float,
    how: str,
    context: Context,
    scope: str = "model",
    frozen_parameters: int = 0,
) -> Callable[[str], Tensor]:
    """A function from a layer's name to its trimmed, elected and merged vector."""
    limits = trim_limits(task_vectors, density, scope, context, frozen_parameters)
    majority = _majority(task_vectors, limits) if scope == "model" else lambda: 1.0

    def vector(name: str) -> Tensor:
        stack = task_vectors.stack(name)
        bounds = limits(stack)
        return in_columns(stack, lambda part: disjoint_merge(trimmed(part, bounds), how, majority))

    return vector


def trim_limits(
    task_vectors: TaskVectors, density: float, scope: str, context: Context, frozen_parameters: int = 0
) -> Callable[[Tensor], list[float]]:
    """A function from a layer's stack to the magnitude that each expert's entries must reach to be kept."""
    experts = len(task_vectors.experts)
    if density >= 1:
        return lambda stack: [0.0] * experts
    if scope == "tensor":
        return lambda stack: [_tensor_threshold(vector, density) for vector in stack]
    found = magnitude_thresholds(task_vectors, density, context, frozen_parameters)
    return lambda stack: [found[expert].item() for expert in task_vectors.experts]


def trimmed(part: Tensor, limits: Iterable[float]) -> Tensor:
    """Zero, in place, every entry of (K, n) below its expert's limit."""
    for row, limit in zip(part, limits, strict=True):
        if limit > 0:
            # hardshrink drops magnitudes up to its bound; entries at the limit are to be kept.
            below = torch.nextafter(torch.tensor(limit, dtype=part.dtype), torch.zeros((), dtype=part.dtype))
            torch.hardshrink(row, below.item(), out=row)
    return part


def magnitude_thresholds(
    task_vectors: TaskVectors, density: float, context: Context, frozen_parameters: int = 0
) -> dict[str, Tensor]:
    """The magnitude above or at which an expert's entries belong to its largest share, exactly, per expert.

    Args:
        task_vectors: whose entries are ranked, all layers together.
        density: the share to keep.
        context: keeps the thresholds of experts it has seen.
        frozen_parameters: zeros outside the layers that count in the share.
    """
    count = sum(math.prod(task_vectors.shape(name)) for name in task_vectors.names) + frozen_parameters
    return thresholds_at(task_vectors, count - int(count * density) - frozen_parameters, context)


def thresholds_at(task_vectors: TaskVectors, rank: int, context: Context) -> dict[str, Tensor]:
    """The rank-th smallest magnitude of every expert's entries (0 for a rank below 1), kept by the context."""
    sizes = [math.prod(task_vectors.shape(name)) for name in task_vectors.names]

    def compute(expert: str) -> dict[str, Tensor]:
        def magnitudes() -> Iterable[Tensor]:
            return (task_vectors.vector(name, expert).view(-1).abs_() for name in task_vectors.names)

        if rank < 1:
            return {"threshold": torch.zeros(1, dtype=task_vectors.dtype)}
        return {"threshold": order_statistic(magnitudes, sum(sizes), rank).reshape(1)}

    key = {"rank": rank, "entries": sum(sizes), "dtype": str(task_vectors.dtype)}
    thresholds = {}
    for index, expert in enumerate(task_vectors.experts):
        found = context.cached(expert, "magnitude_threshold", key, lambda expert=expert: compute(expert))
        thresholds[expert] = found["threshold"].reshape(())
        context.progress((index + 1) / len(task_vectors.experts), f"Threshold of {expert}")
    return thresholds


def elected(task_vectors: TaskVectors, density: float, context: Context) -> Changed:
    """Trimmed task vectors without the entries that disagree with the elected sign (the input of AdaMerging++)."""
    limits = trim_limits(task_vectors, density, "model", context)
    majority = _majority(task_vectors, limits)

    def agree(name: str, stack: Tensor, experts: Iterable[str]) -> Tensor:
        for part in flat(stack).split(COLUMNS, dim=1):
            total = trimmed(part, limits(stack)).sum(dim=0)
            sign = torch.where(total == 0, majority(), total.sign())
            part.mul_(torch.where(sign > 0, part > 0, part < 0))
        return stack

    return Changed(task_vectors, agree, together=True)


def _tensor_threshold(vector: Tensor, density: float) -> float:
    """The magnitude of the last of the int(n · density) largest entries, at least one."""
    size = vector.numel()
    kept = max(int(size * density), 1)
    return vector.abs().view(-1).kthvalue(size - kept + 1).values.item() if size else 0.0


def _majority(task_vectors: TaskVectors, limits: Callable[[Tensor], list[float]]) -> Callable[[], float]:
    """The sign that most elected signs have; read from all layers, once, and only if some entry needs it."""

    @cache
    def majority() -> float:
        balance = 0
        for name in task_vectors.names:
            stack = task_vectors.stack(name)
            for part in flat(stack).split(COLUMNS, dim=1):
                balance += int(trimmed(part, limits(stack)).sum(dim=0).sign().sum(dtype=torch.float64))
        return float((balance > 0) - (balance < 0))

    return majority


def disjoint_merge(part: Tensor, how: str, majority: Callable[[], float]) -> Tensor:
    """Merge trimmed entries (K, n) into (n,): those with the sign of their sum, by ``how`` (sum, mean or max).

    ``majority`` is asked for the sign (1, 0 or −1) of entries whose sum is zero; 0 keeps negative ones, or none (max).
    """
    total = part.sum(dim=0)
    positive = part.clamp(min=0).sum(dim=0)
    up = total > 0
    # Where the sum is zero and nothing was left, every choice gives zero; only exact cancellation needs the majority.
    tied = (total == 0) & (positive > 0)
    undecided = False
    if tied.any():
        undecided = majority() == 0
        up |= tied & (majority() > 0)
    if how == "max":
        largest = torch.where(up, part.amax(dim=0), part.amin(dim=0))
        return largest.masked_fill_(tied, 0) if undecided else largest
    merged = torch.where(up, positive, total.sub_(positive))
    if how == "mean":
        signs = part.sign()
        balance = signs.sum(dim=0)
        upward = signs.clamp_(min=0).sum(dim=0)
        merged.div_(torch.where(up, upward, upward - balance).clamp_(min=1))
    return merged
