"""Activations of a network's units on inputs, group by group."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from ..features.blocks import present
from ..layouts import OPEN_CLIP, Layout, place_of
from ..zoo.encoders.attention import plain_attention
from .perceptron import Perceptron
from .transformer import RESIDUAL, THIRDS

GROUPS = {"out": "values", "proj": "units"}  # the matrices that read a block's groups


def perceptron_units(network: Perceptron, inputs: Tensor) -> dict[str, Tensor]:
    """Return the values (n, units) of each hidden layer behind its ReLU, by group."""
    found: dict[str, Tensor] = {}
    for number in range(network.depth - 1):
        inputs = getattr(network, f"layer{number}")(inputs).relu()
        found[f"P_{number}"] = inputs
    return found


def transformer_units(encoder: nn.Module, samples: Tensor, layout: Layout = OPEN_CLIP) -> dict[str, Tensor]:
    """Return the values (tokens, units) of each group of a transformer.

    Hidden units behind the activation, values before the output projection, queries above keys, and the residual
    stream behind the last block; of tokens that are there.

    Args:
        encoder: the transformer.
        samples: prepared, (n, …).
        layout: how its tensors are named.
    """
    # With a gradient to follow, attention takes the path that multiplies matrices one by one.
    own = {name: parameter.detach().requires_grad_() for name, parameter in encoder.named_parameters()}
    parts = {layout.matrix(part).name: part for part in ("k", "q", "proj", "out")}
    places = {name: place for name in own if (place := place_of(name)) is not None and place.part in parts}
    there = present(encoder, samples)
    watched = _Products({name: own[name] for name in places})
    stream: list[Tensor] = []
    last = encoder.get_submodule(f"{layout.blocks}{max(place.block for place in places.values())}")
    with ExitStack() as stack:
        stack.callback(last.register_forward_hook(lambda module, given, output: stream.append(output)).remove)
        stack.enter_context(plain_attention())
        stack.enter_context(watched)
        functional_call(encoder, own, (samples,))
    left = stream[0][0] if isinstance(stream[0], tuple) else stream[0]
    found = {RESIDUAL: left.reshape(-1, left.shape[-1])}
    asked: dict[int, dict[str, Tensor]] = {}
    for name, (inputs, outputs) in watched.seen.items():
        number, part = places[name].block, parts[places[name].part]
        if part in GROUPS:
            found[f"{GROUPS[part]}_{number}"] = inputs
        elif layout.matrix(part).third is None:
            asked.setdefault(number, {})[part] = outputs
        else:
            asked[number] = dict(zip(THIRDS, outputs.chunk(3, dim=1), strict=True))
    found |= {f"keys_{number}": torch.cat([parts["q"], parts["k"]]) for number, parts in asked.items()}
    return {group: _kept(values.detach(), there) for group, values in found.items()}


def _kept(values: Tensor, there: Tensor | None) -> Tensor:
    """Return the rows of tokens that are there; queries above keys have as many rows again."""
    if there is None:
        return values
    return values[there.repeat(len(values) // len(there))]


class _Products(TorchDispatchMode):
    """Keeps what enters and leaves matrix products with some weights (out, in), known by their memory."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {tensor.data_ptr(): name for name, tensor in weights.items()}
        self._shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        self.seen: dict[str, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
            inputs, transposed = args[-2:]
            name = self._names.get(transposed.data_ptr())
            if name and tuple(transposed.shape) == self._shapes[name][::-1]:
                self.seen[name] = (inputs, result)
        return result
