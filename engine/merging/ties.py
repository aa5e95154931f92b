"""TIES: trim, elect sign, merge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor

from ..catalog.sparse import TiesParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import Changed, add_to_base, flat
from .selection import order_statistic

COLUMNS = 2**16  # entries of a layer that are merged at once: eight experts' worth stays in the processor's cache


def ties(base: Weights, task_vectors: TaskVectors, params: TiesParams, context: Context) -> Static:
    """Trim small entries of every task vector, elect a sign for every entry, and merge what agrees with it.

    Source: Yadav et al., NeurIPS 2023, arXiv:2306.01708, Algorithm 1.
    Departure: the paper takes the mean of agreeing entries with λ around 1; published vision numbers take their sum
        with λ = 0.3 or 0.4. Both are presets. Entries tied at the threshold are all kept, and an entry whose trimmed
        sum is zero takes the majority sign of all entries, as in the authors' code. A density of 1 keeps everything
        (the authors' code fails there). ``scope: tensor`` is the variant of mergekit: trimmed within each tensor,
        and a zero sum counts as positive.
    """
    trim = trimmer(task_vectors, params.density, params.scope, context, params.frozen_parameters)
    majority = _majority(task_vectors, trim) if params.scope == "model" else lambda: 1.0

    def vector(name: str) -> Tensor:
        stack = trim(name, task_vectors.stack(name), task_vectors.experts)
        return in_columns(stack, lambda part: _merge(part, params.merge, majority)).mul_(params.scaling)

    return add_to_base(base, task_vectors, vector)


def trimmer(
    task_vectors: TaskVectors, density: float, scope: str, context: Context, frozen_parameters: int = 0
) -> Callable[[str, Tensor, Iterable[str]], Tensor]:
    """A function that zeroes, in place, every entry below its expert's magnitude threshold."""
    if density >= 1:
        return lambda name, stack, experts: stack
    if scope == "model":
        limits = magnitude_thresholds(task_vectors, density, context, frozen_parameters)

    def trim(name: str, stack: Tensor, experts: Iterable[str]) -> Tensor:
        for row, expert in zip(stack, experts, strict=True):
            limit = limits[expert] if scope == "model" else _tensor_threshold(row, density)
            for part in row.view(-1).split(COLUMNS):
                part.mul_(part.abs() >= limit)
        return stack

    return trim


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
    sizes = [torch.Size(task_vectors.shape(name)).numel() for name in task_vectors.names]
    count = sum(sizes) + frozen_parameters
    rank = count - int(count * density) - frozen_parameters

    def compute(expert: str) -> dict[str, Tensor]:
        def magnitudes() -> Iterable[Tensor]:
            return (task_vectors.vector(name, expert).view(-1).abs_() for name in task_vectors.names)

        if rank < 1:
            return {"threshold": torch.zeros(1, dtype=task_vectors.dtype)}
        return {"threshold": order_statistic(magnitudes, sum(sizes), rank).reshape(1)}

    key = {"rank": rank, "dtype": str(task_vectors.dtype)}
    thresholds = {}
    for index, expert in enumerate(task_vectors.experts):
        found = context.cached(expert, "magnitude_threshold", key, lambda expert=expert: compute(expert))
        thresholds[expert] = found["threshold"].reshape(())
        context.progress((index + 1) / len(task_vectors.experts), f"Threshold of {expert}")
    return thresholds


def elected(task_vectors: TaskVectors, density: float, context: Context) -> Changed:
    """Trimmed task vectors without the entries that disagree with the elected sign (the input of AdaMerging++)."""
    trim = trimmer(task_vectors, density, "model", context)
    majority = _majority(task_vectors, trim)

    def agree(name: str, stack: Tensor, experts: Iterable[str]) -> Tensor:
        stack = trim(name, stack, experts)
        total = stack.sum(dim=0)
        sign = torch.where(total == 0, majority(), total.sign())
        return stack.mul_(torch.where(sign > 0, stack > 0, stack < 0))

    return Changed(task_vectors, agree, together=True)


def in_columns(stack: Tensor, merge: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply an elementwise merge (K, n) → (n,) piece by piece and return the layer's shape."""
    out = torch.empty(stack.shape[1:], dtype=stack.dtype)
    for target, part in zip(out.view(-1).split(COLUMNS), flat(stack).split(COLUMNS, dim=1), strict=True):
        target.copy_(merge(part))
    return out


def _tensor_threshold(vector: Tensor, density: float) -> Tensor:
    """The magnitude of the last of the int(n · density) largest entries, at least one."""
    size = vector.numel()
    kept = max(int(size * density), 1)
    return vector.abs().view(-1).kthvalue(size - kept + 1).values if size else vector.new_zeros(())


def _majority(task_vectors: TaskVectors, trim: Callable[[str, Tensor, Iterable[str]], Tensor]) -> Callable[[], float]:
    """The sign that most elected signs have; read from all layers, once, and only if some entry needs it."""

    @cache
    def majority() -> float:
        balance = 0
        for name in task_vectors.names:
            total = trim(name, task_vectors.stack(name), task_vectors.experts).sum(dim=0)
            balance += int((total > 0).count_nonzero()) - int((total < 0).count_nonzero())
        return float((balance > 0) - (balance < 0))

    return majority


def _merge(part: Tensor, how: str, majority: Callable[[], float]) -> Tensor:
    """Merge trimmed entries (K, n) into (n,)."""
    positive = part.clamp(min=0)
    negative = part.clamp(max=0)
    total = part.sum(dim=0)
    up = total > 0
    # Where the sum is zero and nothing was left, every choice gives zero; only exact cancellation needs the majority.
    tied = (total == 0) & (positive.amax(dim=0) > 0)
    undecided = False
    if tied.any():
        undecided = majority() == 0
        up = up | (tied & (majority() > 0))
    if how == "max":
        merged = torch.where(up, positive.amax(dim=0), negative.amin(dim=0))
        return merged.masked_fill_(tied, 0) if undecided else merged
    summed = torch.where(up, positive.sum(dim=0), negative.sum(dim=0))
    if how == "sum":
        return summed
    agreeing = torch.where(up, (part > 0).sum(dim=0), (part < 0).sum(dim=0))
    return summed.div_(agreeing.clamp_(min=1))
