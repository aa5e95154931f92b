"""TIES: trim, elect sign, merge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor

from ..catalog.sparse import TiesParams
from ..errors import MergeError
from ..types import Context, Static, TaskVectors, Weights
from .assemble import COLUMNS, Changed, add_to_base, all_pieces, flat, in_pieces, pieces
from .selection import order_statistics


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
    """Return a function from a layer's name to its trimmed, elected and merged vector."""
    limits = trim_limits(task_vectors, density, scope, context, frozen_parameters)
    majority = signs_of_ties(task_vectors, limits, scope)

    def vector(name: str) -> Tensor:
        bounds = limits(name)
        return in_pieces(task_vectors, name, lambda part: disjoint_merge(trimmed(part, bounds), how, majority))

    return vector


def trim_limits(
    task_vectors: TaskVectors, density: float, scope: str, context: Context, frozen_parameters: int = 0
) -> Callable[[str], list[float]]:
    """Return a function from a layer's name to the magnitude that each expert's entries must reach to be kept."""
    experts = len(task_vectors.experts)
    if density >= 1:
        return lambda name: [0.0] * experts
    if scope == "tensor":
        return lambda name: [_tensor_threshold(vector, density) for vector in task_vectors.stack(name)]
    found = magnitude_thresholds(task_vectors, density, context, frozen_parameters)
    limits = [found[expert].item() for expert in task_vectors.experts]
    return lambda name: limits


def trimmed(part: Tensor, limits: Sequence[float]) -> Tensor:
    """Zero, in place, every entry of (K, n) below its expert's limit."""
    for row, bound in zip(part, _below(tuple(limits), part.dtype), strict=True):
        if bound is not None:
            torch.hardshrink(row, bound, out=row)
    return part


@lru_cache(maxsize=256)
def _below(limits: tuple[float, ...], dtype: torch.dtype) -> list[float | None]:
    """The largest number below each limit: hardshrink drops magnitudes up to its bound, and those at a limit stay."""
    zero = torch.zeros((), dtype=dtype)
    return [torch.nextafter(torch.tensor(x, dtype=dtype), zero).item() if x > 0 else None for x in limits]


def magnitude_thresholds(
    task_vectors: TaskVectors, density: float, context: Context, frozen_parameters: int = 0
) -> dict[str, Tensor]:
    """Find, exactly, the magnitude at or above which entries are among the largest share of each expert's.

    Args:
        task_vectors: whose entries are ranked, all layers together.
        density: the share to keep.
        context: keeps the thresholds of experts it has seen.
        frozen_parameters: zeros outside the layers that count in the share; below 0, zeros inside that do not.

    Raises:
        MergeError: more zeros are taken out than there are entries.
    """
    entries = sum(math.prod(task_vectors.shape(name)) for name in task_vectors.names)
    count = entries + frozen_parameters
    if count < 0:
        raise MergeError(f"frozen_parameters takes {-frozen_parameters} of {entries} entries out; take out fewer.")
    return thresholds_at(task_vectors, count - int(count * density) - frozen_parameters, context)


def thresholds_at(task_vectors: TaskVectors, rank: int, context: Context) -> dict[str, Tensor]:
    """Return the rank-th smallest magnitude of every expert's entries (0 below rank 1), kept by the context."""
    count = sum(math.prod(task_vectors.shape(name)) for name in task_vectors.names)

    @cache
    def compute() -> Tensor:
        """Those of all experts from the same passes: whoever reads one expert has to read the base too."""

        def report(fraction: float, layer: str) -> None:
            context.progress(fraction, f"Ranking entries of {layer}")

        def magnitudes(step: int) -> Iterable[Tensor]:
            return (piece.abs_() for piece in all_pieces(task_vectors, step, report))

        if rank < 1:
            return torch.zeros(len(task_vectors.experts), dtype=task_vectors.dtype)
        return order_statistics(magnitudes, count, [rank])[0]

    key = {"rank": rank, "entries": count, "dtype": str(task_vectors.dtype)}
    thresholds = {}
    for row, expert in enumerate(task_vectors.experts):
        found = context.cached(
            expert, "magnitude_threshold", key, lambda row=row: {"threshold": compute()[row].reshape(1)}
        )
        thresholds[expert] = found["threshold"].reshape(())
    return thresholds


def limits_by_share(task_vectors: TaskVectors, shares: Sequence[float], context: Context) -> Tensor:
    """Find, exactly and in the same passes, the magnitudes that several shares of each expert's entries reach.

    Args:
        task_vectors: whose entries are ranked, all layers together.
        shares: of entries to keep, above 0; 1 keeps all.
        context: told how far it is.

    Returns:
        A tensor (S, K): a row for each share.
    """
    count = sum(math.prod(task_vectors.shape(name)) for name in task_vectors.names)
    ranks = [count - int(count * share) for share in shares]

    def magnitudes(step: int) -> Iterable[Tensor]:
        def report(fraction: float, layer: str) -> None:
            context.progress(fraction, f"Ranking entries of {layer}")

        return (piece.abs_() for piece in all_pieces(task_vectors, step, report))

    found = torch.zeros((len(ranks), len(task_vectors.experts)), dtype=task_vectors.dtype)
    places = [place for place, rank in enumerate(ranks) if rank >= 1]
    if places:
        found[places] = order_statistics(magnitudes, count, [ranks[place] for place in places])
    return found


def elected(task_vectors: TaskVectors, density: float, context: Context) -> Changed:
    """Return trimmed task vectors without the entries that disagree with the elected sign (for AdaMerging++)."""
    return agreeing_above(task_vectors, trim_limits(task_vectors, density, "model", context))


def agreeing_above(task_vectors: TaskVectors, limits: Callable[[str], list[float]]) -> Changed:
    """Return task vectors whose entries reach their expert's limit and agree with the elected sign; else zeros."""
    majority = _majority(task_vectors, limits)

    def agree(name: str, stack: Tensor, experts: Iterable[str]) -> Tensor:
        for part in flat(stack).split(COLUMNS, dim=1):
            total = trimmed(part, limits(name)).sum(dim=0)
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
            bounds = limits(name)
            for part in pieces(task_vectors, name):
                balance += int(trimmed(part, bounds).sum(dim=0).sign_().sum())
        return float((balance > 0) - (balance < 0))

    return majority


def signs_of_ties(task_vectors: TaskVectors, limits: Callable[[str], list[float]], scope: str) -> Callable[[], float]:
    """Return a function that gives the sign of entries whose trimmed sum is zero: the majority's, or 1 per tensor."""
    return _majority(task_vectors, limits) if scope == "model" else lambda: 1.0


def agreeing(part: Tensor, how: str, majority: Callable[[], float]) -> Tensor:
    """Return what each expert adds to a disjoint merge: entries (K, n) whose sum over experts is the merged one.

    Args:
        part: trimmed entries (K, n), which are left as they are.
        how: ``sum``, ``mean`` (divided by the number of experts that agree) or ``max`` (shared by equals).
        majority: as in :func:`disjoint_merge`.
    """
    up, undecided = _elect(part.sum(dim=0), part.clamp(min=0).sum(dim=0), majority)
    kept = part * torch.where(up > 0, part > 0, part < 0)
    if how == "mean":
        return kept.div_((kept != 0).sum(dim=0).clamp_(min=1))
    if how == "sum":
        return kept
    largest = (kept.abs() == kept.abs().amax(dim=0)) & (kept != 0)
    kept = kept.mul_(largest).div_(largest.sum(dim=0).clamp_(min=1))
    return kept if undecided is None else kept.masked_fill_(undecided, 0)


def disjoint_merge(part: Tensor, how: str, majority: Callable[[], float]) -> Tensor:
    """Merge trimmed entries (K, n), which are overwritten, into (n,): those with the sign of their sum, by ``how``.

    Args:
        part: the entries.
        how: ``sum``, ``mean`` or ``max``.
        majority: asked for the sign (1, 0 or −1) of entries whose sum is zero; 0 keeps negative ones, or none (max).
    """
    total = part.sum(dim=0)
    if how == "max":
        positive, negative = part.amax(dim=0).clamp_(min=0), part.amin(dim=0).clamp_(max=0)
    else:
        signs = part.sign() if how == "mean" else None
        positive = part.clamp_(min=0).sum(dim=0)
        negative = total - positive
    up, undecided = _elect(total, positive, majority)
    down = 1 - up  # as numbers: choosing by multiplication is many times faster than by booleans
    merged = positive.mul_(up).add_(negative.mul_(down))
    if how == "mean":
        balance = signs.sum(dim=0)
        upward = signs.clamp_(min=0).sum(dim=0)
        merged.div_(upward.mul(up).add_((upward - balance).mul_(down)).clamp_(min=1))
    return merged.masked_fill_(undecided, 0) if how == "max" and undecided is not None else merged


def _elect(total: Tensor, positive: Tensor, majority: Callable[[], float]) -> tuple[Tensor, Tensor | None]:
    """1 where positive entries are kept and 0 where negative ones; and where the majority has no sign either."""
    up = total.sign().clamp_(min=0)
    # Where the sum is zero and nothing was left, every choice gives zero; only exact cancellation needs the majority.
    found = np.equal(total.numpy(), 0) & np.greater(positive.numpy(), 0)
    if not found.any():
        return up, None
    tied = torch.from_numpy(found)
    up[tied] = max(majority(), 0.0)
    return up, None if majority() else tied
