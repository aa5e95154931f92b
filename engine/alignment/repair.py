"""REPAIR: give the units of an interpolated network the statistics that its ends have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..features.blocks import present

EPSILON = 1e-5


@dataclass(frozen=True)
class Statistics:
    """Mean and unbiased variance of each unit of a layer, (units,)."""

    mean: Tensor
    variance: Tensor


def unit_statistics(network: nn.Module, layers: Sequence[str], inputs: Tensor) -> dict[str, Statistics]:
    """Return the statistics of linear layers' outputs, over inputs and tokens that are there, by the layers' names."""
    found: dict[str, Statistics] = {}
    there = present(network, inputs)

    def see(name: str, output: Tensor) -> None:
        found[name] = statistics_of(rows_of(output, there))

    with _hooked(network, layers, see), torch.no_grad():
        network(inputs)
    return found


def goals(start: Mapping[str, Statistics], end: Mapping[str, Statistics], alpha: float = 0.5) -> dict[str, Statistics]:
    """Return what a network between two others should have: interpolated means and standard deviations.

    Source: Jordan et al., ICLR 2023, arXiv:2211.08403, Eq. (2)–(3).
    """
    found = {}
    for name, first in start.items():
        second = end[name]
        deviation = (1 - alpha) * first.variance.sqrt() + alpha * second.variance.sqrt()
        found[name] = Statistics((1 - alpha) * first.mean + alpha * second.mean, deviation.square())
    return found


def average(parts: Sequence[Mapping[str, Statistics]]) -> dict[str, Statistics]:
    """Return what a network between several others should have: mean means and mean standard deviations.

    Source: Jordan et al., ICLR 2023, arXiv:2211.08403, Eq. (2)–(3). Departure: of any number of networks, each counting
        as much; of two it is the middle of their path.
    """
    found = {}
    for name in parts[0]:
        deviation = torch.stack([part[name].variance.sqrt() for part in parts]).mean(dim=0)
        found[name] = Statistics(torch.stack([part[name].mean for part in parts]).mean(dim=0), deviation.square())
    return found


def statistics_of(output: Tensor) -> Statistics:
    """Return the statistics of a layer's outputs (…, units), over all but the last dimension."""
    rows = output.reshape(-1, output.shape[-1])
    return Statistics(rows.mean(dim=0), rows.var(dim=0))


def corrected(output: Tensor, found: Statistics, goal: Statistics, count: int) -> Tensor:
    """Return a layer's outputs (…, units) with wanted statistics, normalised by the biased variance of so many rows."""
    factor = ((goal.variance + EPSILON) / (found.variance * ((count - 1) / count) + EPSILON)).sqrt()
    return (output - found.mean) * factor + goal.mean


def repaired_layer(weight: Tensor, bias: Tensor, found: Statistics, goal: Statistics) -> tuple[Tensor, Tensor]:
    """Return a linear layer's weight (units, in) and bias (units,) with the correction of its outputs folded in."""
    factor = ((goal.variance + EPSILON) / (found.variance + EPSILON)).sqrt()
    return weight * factor[:, None], (bias - found.mean) * factor + goal.mean


def how_far(found: Mapping[str, Statistics], wanted: Mapping[str, Statistics]) -> dict[str, Tensor]:
    """Return for each layer the ratio of each unit's standard deviation to the wanted one."""
    return {
        name: ((found[name].variance + EPSILON) / (goal.variance + EPSILON)).sqrt() for name, goal in wanted.items()
    }


@torch.no_grad()
def repair(network: nn.Module, wanted: Mapping[str, Statistics], inputs: Tensor) -> dict[str, Tensor]:
    """Rescale linear layers so that their outputs have wanted statistics, and return how far they were off.

    All layers are corrected in one pass, so that deeper ones see corrected inputs; the corrections are then folded
    into weights and biases, in place.

    Args:
        network: whose layers are changed; each needs a bias.
        wanted: statistics by the layers' names.
        inputs: one batch.

    Returns:
        For each layer the ratio of each unit's standard deviation before the repair to the wanted one.

    Source: Jordan et al., ICLR 2023, arXiv:2211.08403, §3. Departure: none; like the authors' program, the pass
        normalises by the biased variance and the folded layers by the unbiased one.
    """
    before: dict[str, Statistics] = {}
    there = present(network, inputs)

    def correct(name: str, output: Tensor) -> Tensor:
        rows = rows_of(output, there)
        before[name] = statistics_of(rows)
        return corrected(output, before[name], wanted[name], len(rows))

    with _hooked(network, list(wanted), correct):
        network(inputs)
    for name, goal in wanted.items():
        layer = network.get_submodule(name)
        weight, bias = repaired_layer(layer.weight, layer.bias, before[name], goal)
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return how_far(before, wanted)


def rows_of(output: Tensor, there: Tensor | None) -> Tensor:
    """Return a layer's output as one row a token that is there."""
    rows = output.reshape(-1, output.shape[-1])
    return rows if there is None else rows[there]


@contextmanager
def _hooked(network: nn.Module, layers: Sequence[str], see: Callable[[str, Tensor], Tensor | None]) -> Iterator[None]:
    """Show the layers' outputs while the block lasts; what ``see`` returns takes an output's place."""
    hooks = [
        network.get_submodule(name).register_forward_hook(lambda module, given, output, name=name: see(name, output))
        for name in layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
