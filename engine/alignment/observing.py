"""Activations of a network's units on inputs, group by group."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from ..zoo.encoders.attention import plain_attention
from .perceptron import Perceptron
from .transformer import RESIDUAL

INSIDE = {  # the tensor beside which a block's groups are seen
    "attn.in_proj_weight": "keys",
    "attn.out_proj.weight": "values",
    "mlp.c_proj.weight": "units",
}


def perceptron_units(network: Perceptron, inputs: Tensor) -> dict[str, Tensor]:
    """Return the values (n, units) of each hidden layer behind its ReLU, by group."""
    found: dict[str, Tensor] = {}
    for number in range(network.depth - 1):
        inputs = getattr(network, f"layer{number}")(inputs).relu()
        found[f"P_{number}"] = inputs
    return found


def transformer_units(encoder: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the values (tokens, units) of each group of an open_clip vision transformer.

    Hidden units behind the activation, values before the output projection, queries above keys, and the residual
    stream behind the last block.
    """
    # With a gradient to follow, attention takes the path that multiplies matrices one by one.
    own = {name: parameter.detach().requires_grad_() for name, parameter in encoder.named_parameters()}
    watched = _Products({name: tensor for name, tensor in own.items() if _place(name)[1] in INSIDE})
    stream: list[Tensor] = []
    last = encoder.transformer.resblocks[-1]
    with ExitStack() as stack:
        stack.callback(last.register_forward_hook(lambda module, given, output: stream.append(output)).remove)
        stack.enter_context(plain_attention())
        stack.enter_context(watched)
        functional_call(encoder, own, (images,))
    found = {RESIDUAL: stream[0].reshape(-1, stream[0].shape[-1])}
    for name, (inputs, outputs) in watched.seen.items():
        number, kind = _place(name)
        if INSIDE[kind] == "keys":
            query, key, _ = outputs.chunk(3, dim=1)
            found[f"keys_{number}"] = torch.cat([query, key])
        else:
            found[f"{INSIDE[kind]}_{number}"] = inputs
    return {group: values.detach() for group, values in found.items()}


def _place(name: str) -> tuple[str, str]:
    """The number of a tensor's block, and its name inside it; nothing where it is in none."""
    number, _, kind = name.partition(".resblocks.")[2].partition(".")
    return number, kind


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
