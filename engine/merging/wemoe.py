"""WEMoE: perceptrons of a transformer become mixtures of experts' task vectors, weighed by their own input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..catalog.routing import WemoeParams
from ..errors import MergeError
from ..layouts import LAYOUTS
from ..types import Context, Forward, MergeInfo, PerSample, TaskVectors, Tensors, Weights
from .adamerging import combine, entropy, predict
from .routed import (
    EXPERTS,
    ROUTER,
    VECTOR,
    RoutedEncoder,
    by_name,
    generator_of,
    per_image,
    shared_weights,
    tensors_under,
)

LAYERS = tuple(dict.fromkeys(layout.perceptron for layout in LAYOUTS if all(layout.perceptron)))
GROUP = "group"  # how many images share their gates; 0: every image has its own


def wemoe(base: Weights, task_vectors: TaskVectors, params: WemoeParams, context: Context) -> PerSample:
    """Merge everything but the perceptrons by task arithmetic; weigh the experts' perceptrons for every image.

    Source: Tang et al., ICML 2024, arXiv:2402.00433, Eq. (4) to (7), Algorithm 1; tanganke/fusion_bench.
    Departure: the paper has gates for every image. The CLIP configuration of the code averages them over a batch,
        which here is ``routing: batch``: images of one task must then come together. Blocks that share gates are
        always ``batch_size`` images, so that features do not depend on how images are fed.
    """
    blocks = perceptrons(task_vectors)
    parts: dict[str, Tensor] = {}
    inside = {name for names in blocks.values() for name in names}
    for name in task_vectors.names:
        stack = task_vectors.stack(name)
        if name in inside:
            parts[EXPERTS + name] = stack
        else:
            parts[VECTOR + name] = stack.sum(dim=0).mul_(params.scaling)
    gates = _start(task_vectors, blocks, params, context)
    parts[GROUP] = torch.tensor(params.batch_size if params.routing == "batch" else 0)
    losses = _train(base, parts, gates, params, context)
    parts |= {ROUTER + name: gate.detach().cpu() for name, gate in gates.items()}
    stored = sum(parts[EXPERTS + name].numel() for name in inside)
    info = MergeInfo(
        needs_task_id=params.routing == "batch",
        extra_parameters=stored + sum(gate.numel() for gate in gates.values()),
        details={"experts": list(task_vectors.experts), "blocks": len(blocks), "loss": losses},
    )
    return PerSample(parts, rebuild, info)


def perceptrons(task_vectors: TaskVectors) -> dict[str, tuple[str, ...]]:
    """Return the four tensors of every block's perceptron, by the prefix of their names.

    Raises:
        MergeError: there are none.
    """
    found = {}
    for first in task_vectors.names:
        for layers in LAYERS:
            block, marker, _ = first.rpartition(f"{layers[0]}.weight")
            names = tuple(f"{block}{layer}.{kind}" for layer in layers for kind in ("weight", "bias"))
            if marker and set(names) <= set(task_vectors.names):
                found[block] = names
    if not found:
        raise MergeError("WEMoE mixes the perceptrons of transformer blocks, and these weights have none.")
    return found


def _place(layer: str) -> tuple[str, bool]:
    """Return the block that a perceptron's layer lies in, and whether the layer is its first."""
    for first, last in LAYERS:
        for own in (first, last):
            if layer.endswith(f"{own}."):
                return layer.removesuffix(f"{own}."), own == first
    raise MergeError(f"{layer.rstrip('.')} is no dense layer of a perceptron.")


def rebuild(base: Weights, parts: Tensors, forward: Forward) -> EnsembleEncoder:
    """Rebuild the encoder: ``vector/`` of shared layers, ``experts/`` and ``router/`` of perceptrons."""
    tensors = {f"weights/{name}": tensor for name, tensor in _shared(base, parts).items()}
    tensors |= {name: tensor for name, tensor in parts.items() if name.startswith((EXPERTS, ROUTER))}
    return EnsembleEncoder(tensors, forward, int(parts[GROUP]))


class EnsembleEncoder(RoutedEncoder):
    """A transformer whose perceptrons are mixed anew for every image, or for every group of images."""

    def __init__(self, tensors: Tensors, forward: Forward, group: int) -> None:
        """Hold shared weights, every expert's perceptrons (K, *shape) and the gates."""
        super().__init__(tensors, forward)
        self.group = group

    def weights_of(self, image: Tensor) -> dict[str, Tensor]:
        """Return the weights that one image (3, h, w) is encoded with."""
        mode = self._mode()
        with mode:
            self.encode(mode.weights, image[None])
        return mode.weights | {name: mode.mixed(name) for name in mode.experts}

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (n, dim) of images (n, 3, h, w)."""
        return ensemble(self._mode(), self.encode, images, self.group)

    def _mode(self) -> Mixing:
        tensors = self.tensors
        weights, experts, gates = (tensors_under(tensors, prefix) for prefix in ("weights/", EXPERTS, ROUTER))
        return Mixing(weights, experts, gates)


class Mixing(TorchFunctionMode):
    """Replaces the linear layers of perceptrons by mixtures while an encoder runs.

    A layer is recognised by its weight, so that any encoder can run; the gates of a block follow from what enters its
    first layer, averaged over everything but the last axis.
    """

    def __init__(self, weights: Mapping[str, Tensor], experts: Tensors, gates: Tensors) -> None:
        """Bind weights by name, the perceptrons' task vectors (K, *shape) and the gates' parameters."""
        super().__init__()
        self.weights, self.experts, self.gates = dict(weights), experts, gates
        entered = [_place(name.removesuffix("weight")) for name in experts if name.endswith("weight")]
        self.blocks = {block for block, first in entered if first}
        self._names = {id(weights[name]): name for name in experts if name.endswith("weight")}
        self.chosen: dict[str, Tensor] = {}

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Mix before a perceptron's linear layer; leave everything else alone."""
        if function is functional.linear and (name := self._names.get(id(args[1]))):
            layer = name.removesuffix("weight")
            block, first = _place(layer)
            if first:
                gate = gate_values(args[0], tensors_under(self.gates, block))
                self.chosen[block] = gate.flatten(0, -2).mean(dim=0)
            return function(args[0], self.mixed(name), self.mixed(layer + "bias"))
        return function(*args, **(kwargs or {}))

    def mixed(self, name: str) -> Tensor:
        """Return θ_0 + Σ_k g_k τ_k of a perceptron's tensor."""
        block = next(block for block in self.blocks if name.startswith(block))
        return self.weights[name] + combine(self.chosen[block], self.experts[name])


def ensemble(mode: Mixing, encode: Forward, images: Tensor, group: int) -> Tensor:
    """Return the features (n, dim) of images; ``group`` images share their gates, or none where it is 0."""

    def together(some: Tensor) -> Tensor:
        with mode:
            return encode(mode.weights, some)

    if group:
        features = torch.cat([together(some) for some in images.split(group)])
    else:
        entries = sum(stack[0].numel() for stack in mode.experts.values())
        features = per_image(lambda image: together(image[None])[0], entries, images)
    if missing := mode.blocks - mode.chosen.keys():
        raise MergeError(f"The encoder does not run {min(missing).rstrip('.')} as a perceptron.")
    mode.chosen.clear()
    return features


def gate_values(tokens: Tensor, gate: Tensors) -> Tensor:
    """Return each expert's share in tokens (…, d), as a gate gives it: (…, K)."""
    if "fc1.weight" in gate:
        tokens = functional.linear(tokens, gate["fc1.weight"], gate["fc1.bias"]).relu()
    if "fc2.weight" not in gate:
        return gate["fc2.bias"].expand(*tokens.shape[:-1], -1)
    return functional.linear(tokens, gate["fc2.weight"], gate["fc2.bias"])


def _start(
    task_vectors: TaskVectors, blocks: Mapping[str, tuple[str, ...]], params: WemoeParams, context: Context
) -> dict[str, Tensor]:
    """Return gates that give λ to every expert, but for a little noise."""
    generator, dtype, experts = generator_of(context), task_vectors.dtype, len(task_vectors.experts)
    places = torch.tensor(by_name(task_vectors)).argsort()
    gates = {}
    for block in blocks:
        width = task_vectors.shape(blocks[block][0])[1]
        if params.gate_layers == 2:
            gates[block + "fc1.weight"] = torch.randn(width, width, generator=generator).mul_(0.01)
            gates[block + "fc1.bias"] = torch.zeros(width)
        if params.gate_layers > 0:
            gates[block + "fc2.weight"] = torch.randn(experts, width, generator=generator).mul_(0.01)[places]
        gates[block + "fc2.bias"] = torch.full((experts,), params.scaling)
    return {name: gate.to(dtype) for name, gate in gates.items()}


def _shared(base: Weights, parts: Tensors) -> dict[str, Tensor]:
    """Merge by task arithmetic outside the perceptrons, and keep the base inside."""
    vectors = tensors_under(parts, VECTOR)
    vectors |= {name: torch.zeros_like(stack[0]) for name, stack in tensors_under(parts, EXPERTS).items()}
    return dict(shared_weights(base, vectors))


def _train(
    base: Weights, parts: Tensors, gates: dict[str, Tensor], params: WemoeParams, context: Context
) -> list[float]:
    """Minimise the entropy of predictions over the gates, in place; the loss of every step."""
    tasks = sorted(set(context.tasks))
    streams = {task: context.batches(task, "adapt", params.batch_size) for task in tasks}
    losses: list[float] = []
    if not params.steps:
        return losses
    batches = {task: next(stream)[0] for task, stream in streams.items()}
    device = next(iter(batches.values())).device
    weights = {name: tensor.to(device) for name, tensor in _shared(base, parts).items()}
    experts = {name: stack.to(device) for name, stack in tensors_under(parts, EXPERTS).items()}
    gates |= {name: gate.to(device).requires_grad_() for name, gate in gates.items()}
    optimiser = torch.optim.Adam(list(gates.values()), lr=params.learning_rate)
    for step in range(params.steps):
        total = 0.0
        for done, (task, images) in enumerate(batches.items()):
            context.progress((step + done / len(tasks)) / params.steps, f"Training gates, step {step + 1}")
            features = ensemble(Mixing(weights, experts, gates), context.forward, images, int(parts[GROUP]))
            loss = entropy(predict(features, context.head(task)))
            loss.backward()
            total += loss.item()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(round(total, 6))
        batches = {task: next(stream)[0] for task, stream in streams.items()}
    return losses
