"""REPAIR: give the units of an interpolated network the statistics that its ends have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

EPSILON = 1e-5


@dataclass(frozen=True)
class Statistics:
    """Mean and unbiased variance of each unit of a layer, (units,)."""

    mean: Tensor
    variance: Tensor


def unit_statistics(network: nn.Module, layers: Sequence[str], inputs: Tensor) -> dict[str, Statistics]:
    """Return the statistics of linear layers' outputs, over inputs and tokens, by the layers' names."""
    found: dict[str, Statistics] = {}

    def see(name: str, output: Tensor) -> None:
        rows = output.reshape(-1, output.shape[-1])
        found[name] = Statistics(rows.mean(dim=0), rows.var(dim=0))

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

    def correct(name: str, output: Tensor) -> Tensor:
        rows = output.reshape(-1, output.shape[-1])
        before[name] = Statistics(rows.mean(dim=0), rows.var(dim=0))
        goal, spread = wanted[name], rows.var(dim=0, unbiased=False)
        factor = ((goal.variance + EPSILON) / (spread + EPSILON)).sqrt()
        return (output - before[name].mean) * factor + goal.mean

    with _hooked(network, list(wanted), correct):
        network(inputs)
    for name, goal in wanted.items():
        layer, found = network.get_submodule(name), before[name]
        factor = ((goal.variance + EPSILON) / (found.variance + EPSILON)).sqrt()
        layer.weight.mul_(factor[:, None])
        layer.bias.sub_(found.mean).mul_(factor).add_(goal.mean)
    return {
        name: ((before[name].variance + EPSILON) / (goal.variance + EPSILON)).sqrt() for name, goal in wanted.items()
    }


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
