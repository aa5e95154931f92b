"""REPAIR after a merge: hidden units of the merged model get the mean statistics that they have in the experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..catalog.transforms import RepairParams
from ..errors import MergeError
from ..layouts import LAYOUTS
from ..merging.assemble import Changed
from ..types import Context, Static, TaskVectors, Weights
from .repair import Statistics, average, corrected, how_far, repaired_layer, rows_of, statistics_of

WEIGHT, BIAS = ".weight", ".bias"
See = Callable[[str, Tensor], Tensor | None]  # a layer's name and outputs → others in their place


@dataclass(frozen=True)
class Replaced:
    """Weights of which some tensors are others."""

    inner: Weights
    tensors: Mapping[str, Tensor]  # in the inner dtype

    @property
    def names(self) -> tuple[str, ...]:
        """Return the inner names."""
        return self.inner.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self.inner.shape(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of one tensor."""
        return self.inner.dtype(name)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor."""
        return self.tensors[name].clone() if name in self.tensors else self.inner.tensor(name)


def repair_merge(
    base: Weights, task_vectors: TaskVectors, merged: Static, params: RepairParams, context: Context
) -> Static:
    """Rescale layers of the merged model so that their outputs have the experts' mean statistics.

    Every expert and the merged model see the same unlabelled images, those of all tasks together. Layers are corrected
    in the order in which the images reach them, so that deeper ones see corrected inputs; the corrections are folded
    into weights and biases.

    Source: Jordan et al., REPAIR, ICLR 2023, arXiv:2211.08403, §3.
    Departure: between any number of networks, whose means and standard deviations are averaged; the paper has two, of
        one task. Layers of a transformer's perceptrons take the place of convolutions and linear layers in front of a
        normalisation or an activation. Experts count as they take part in the merge, before other transforms. Tokens
        that pad a text do not count.
    """
    layers = perceptron_layers(base, params.layers)
    images = torch.cat([next(context.batches(task, "adapt", params.images))[0] for task in context.tasks])
    own, found, there = _own(task_vectors), [], context.present(images)
    for number, expert in enumerate(own.experts):
        context.progress(number / (len(own.experts) + 1), f"Statistics of {expert}")
        found.append(_statistics(_expert(base, own, expert), layers, images, there, context))
    wanted = average(found)
    weights = {name: merged.weights.tensor(name) for name in merged.weights.names}
    before: dict[str, Statistics] = {}

    def correct(name: str, output: Tensor) -> Tensor:
        rows = rows_of(output, there)
        before[name] = statistics_of(rows)
        return corrected(output, before[name], wanted[name], len(rows))

    context.progress(len(own.experts) / (len(own.experts) + 1), "Rescaling the merged model")
    _run(weights, layers, images, context, correct)
    changed: dict[str, Tensor] = {}
    for layer in layers:
        names = layer + WEIGHT, layer + BIAS
        whole = (_computed(weights[name]) for name in names)
        parts = repaired_layer(*whole, _moved(before[layer]), _moved(wanted[layer]))
        changed |= {name: part.to(weights[name].dtype) for name, part in zip(names, parts, strict=True)}
    off = {name: float(ratio.median()) for name, ratio in how_far(before, wanted).items()}
    details = {**merged.info.details, "repair": {"deviation": off, "images": len(images)}}
    return Static(Replaced(merged.weights, changed), replace(merged.info, details=details))


def perceptron_layers(base: Weights, which: str) -> list[str]:
    """Return the dense layers of an encoder's perceptrons, by name without their ending.

    Args:
        base: the encoder's tensors.
        which: ``hidden``: those in front of the activation; ``both``: those behind it as well.

    Raises:
        MergeError: there is none, or one without a bias to fold means into.
    """
    ends = {
        f".{end}{WEIGHT}"
        for layout in LAYOUTS
        for end in layout.perceptron[: 1 if which == "hidden" else 2]
        if end and any(name.startswith(layout.prefix) for name in base.names)
    }
    found = [name.removesuffix(WEIGHT) for name in base.names if any(name.endswith(end) for end in ends)]
    if not found:
        raise MergeError("REPAIR rescales the perceptrons of a transformer, and these weights have none. Leave it out.")
    known = set(base.names)
    if bare := next((layer for layer in found if layer + BIAS not in known), None):
        raise MergeError(f"REPAIR folds means into biases, and {bare} has none. Leave it out.")
    return found


def _own(task_vectors: TaskVectors) -> TaskVectors:
    """Return the task vectors as they were before transforms."""
    while isinstance(task_vectors, Changed):
        task_vectors = task_vectors.inner
    return task_vectors


def _expert(base: Weights, task_vectors: TaskVectors, expert: str) -> dict[str, Tensor]:
    """Return an expert's tensors θ_0 + τ."""
    moving = set(task_vectors.names)
    return {
        name: task_vectors.vector(name, expert).add_(base.tensor(name).to(task_vectors.dtype))
        if name in moving
        else base.tensor(name)
        for name in base.names
    }


def _statistics(
    weights: Mapping[str, Tensor], layers: list[str], images: Tensor, there: Tensor | None, context: Context
) -> dict[str, Statistics]:
    found: dict[str, Statistics] = {}

    def see(name: str, output: Tensor) -> None:
        found[name] = statistics_of(rows_of(output, there))

    _run(weights, layers, images, context, see)
    return found


def _run(weights: Mapping[str, Tensor], layers: list[str], images: Tensor, context: Context, see: See) -> None:
    """Encode images and show the outputs of some layers; what ``see`` returns takes an output's place.

    Raises:
        MergeError: a layer whose outputs the encoder does not compute as one product.
    """
    tensors = {name: _computed(tensor).to(images.device) for name, tensor in weights.items()}
    outputs = _Outputs({layer: tensors[layer + WEIGHT] for layer in layers}, see)
    with outputs, torch.no_grad():
        context.forward(tensors, images)
    if missing := next((layer for layer in layers if layer not in outputs.seen), None):
        raise MergeError(f"REPAIR looks at the outputs of {missing}, which this encoder does not compute by itself.")


class _Outputs(TorchDispatchMode):
    """Shows outputs (rows, units) of linear layers with a bias, known by their weights' memory, as they are made."""

    def __init__(self, weights: Mapping[str, Tensor], see: See) -> None:
        super().__init__()
        self._names = {tensor.data_ptr(): name for name, tensor in weights.items()}
        self._shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        self._see, self.seen = see, set[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is not torch.ops.aten.addmm.default:
            return result
        name = self._names.get(args[-1].data_ptr())
        if name is None or tuple(args[-1].shape) != self._shapes[name][::-1]:
            return result
        self.seen.add(name)
        changed = self._see(name, result)
        return result if changed is None else changed


def _computed(tensor: Tensor) -> Tensor:
    """Return a tensor in a dtype that the encoder computes in."""
    narrow = tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.float() if narrow else tensor


def _moved(statistics: Statistics) -> Statistics:
    return Statistics(statistics.mean.cpu(), statistics.variance.cpu())
