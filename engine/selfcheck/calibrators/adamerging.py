"""References of AdaMerging's learning, and of the trimmed vectors that AdaMerging++ starts from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...catalog.optimisation import AdaMergingParams
from ...merging.adamerging import bounded, coefficient_gradient, combine, entropy, learn_coefficients, predict
from ...merging.apply import merge
from ...merging.assemble import add_to_base
from ...merging.ties import elected, trim_limits, trimmed
from ...recipe import MethodCall
from ...types import TaskVectors, Tensors
from ...weights import LazyTaskVectors, Memory
from ..context import Offline, tensors_of
from ..measure import Check, Found
from ..reference import CalibratorReference

Numbers = Mapping[str, Tensor]


@dataclass
class Head:
    """A head of a reference, without a scale."""

    weight: Tensor
    scale: float = 1.0


@dataclass
class Perceptron(Offline):
    """A context whose encoder is fc2(tanh(fc1(x))) and whose batches are a reference's, in its order."""

    numbers: Numbers = None

    def batches(self, task: str, split: str, size: int) -> Iterator[tuple[Tensor, None]]:
        """Return the stored batches of the training."""
        return ((batch, None) for step in self.numbers[f"traj_x_{task}"] for batch in step)

    def forward(self, weights: Tensors, images: Tensor) -> Tensor:
        """Return the features of inputs."""
        inner = torch.nn.functional.linear(images, weights["fc1.weight"], weights["fc1.bias"])
        return torch.nn.functional.linear(inner.tanh(), weights["fc2.weight"], weights["fc2.bias"])

    def head(self, task: str) -> Head:
        """Return the task's head."""
        return Head(self.numbers[f"head{self.tasks.index(task)}.weight"])


def learning(reference: CalibratorReference, name: str, precision: str, granularity: str, plus_plus: bool) -> Found:
    """Return the merged weights, predictions, entropies and gradients at stored coefficients, and a stored training."""
    numbers, facts = reference.numbers(name, precision), reference.facts(name)
    order = [row.removeprefix("model.") for row in facts["row_order"]]
    tasks = tuple(sorted(key.removeprefix("traj_x_") for key in numbers if key.startswith("traj_x_")))
    context = Perceptron(tasks, numbers=numbers)
    base, given = _vectors(numbers, order, tasks, "raw_tv" if plus_plus else "tv", precision)
    vectors = elected(given, 0.2, context) if plus_plus else given
    batches = numbers["traj_x_" + tasks[0]].shape[1]
    params = AdaMergingParams(
        granularity=granularity,
        initial=numbers["init_lambdas_raw"].flatten()[0].item(),
        steps=len(numbers["traj_loss"]),
        batches_per_step=batches,
    )
    rows = slice(None) if granularity == "layer" else slice(0, 1)
    learned, losses = learn_coefficients(base, vectors, params, context)
    got: dict[str, Any] = {"traj_final_lambdas_raw": learned[rows], "traj_loss": losses}
    raw = numbers["lambdas_raw"].double().requires_grad_()
    used = bounded(raw, params, len(order))
    got["lambdas_effective"] = torch.cat([torch.ones(len(raw), 1), used[rows]], 1)
    total, slope = 0.0, torch.zeros_like(used)
    for number in range(batches):
        inputs = {task: numbers[f"x_{task}_{number}"] for task in tasks}
        loss, gradient = coefficient_gradient(base, vectors, used.detach(), inputs, context)
        total, slope = total + loss, slope + gradient
    used.backward(slope)
    got |= {"entropy_loss_sum": total, "grad_lambdas_raw": raw.grad}
    got |= _predicted(base, vectors, used.detach(), context, batches)
    got |= {f"tv{k}.{layer}": vectors.vector(layer, task) for k, task in enumerate(tasks) for layer in order}
    return Found(got, {key: numbers[key] for key in got})


def _vectors(
    numbers: Numbers, order: list[str], tasks: tuple[str, ...], prefix: str, precision: str
) -> tuple[Memory, LazyTaskVectors]:
    base = Memory({layer: numbers[f"base.{layer}"] for layer in order})
    experts = {
        task: Memory({layer: numbers[f"base.{layer}"] + numbers[f"{prefix}{k}.{layer}"] for layer in order})
        for k, task in enumerate(tasks)
    }
    return base, LazyTaskVectors(base, experts, dtype=getattr(torch, precision))


def _predicted(
    base: Memory, vectors: TaskVectors, coefficients: Tensor, context: Perceptron, batches: int
) -> dict[str, Tensor]:
    """Return the merged tensors, logits and entropies of every input."""
    rows = dict(zip(vectors.names, coefficients, strict=True))
    merged = tensors_of(add_to_base(base, vectors, lambda layer: combine(rows[layer], vectors.stack(layer))).weights)
    found = {f"merged.{layer}": tensor for layer, tensor in merged.items()}
    for task in context.tasks:
        for number in range(batches):
            logits = predict(context.forward(merged, context.numbers[f"x_{task}_{number}"]), context.head(task))
            found[f"logits_{task}_{number}"] = logits
            found[f"entropy_{task}_{number}"] = torch.stack([entropy(row[None]) for row in logits])
    return found


def trimmed_and_elected(reference: CalibratorReference, name: str, precision: str) -> Found:
    """Return TIES's parts on written-out vectors, and its three merges."""
    numbers = reference.numbers(name, precision)
    rows = numbers["flat_tv"]
    base = Memory({"w": torch.zeros_like(rows[0])})
    files = {f"e{k}": Memory({"w": row}) for k, row in enumerate(rows)}
    vectors = LazyTaskVectors(base, files, dtype=rows.dtype)
    context = Offline(vectors.experts)
    got = {
        "trimmed_k20": trimmed(vectors.stack("w"), trim_limits(vectors, 0.2, "model", context)("w")),
        "selected_k20": elected(vectors, 0.2, context).stack("w"),
    }
    for how in ("sum", "mean", "max"):
        call = MethodCall(method="ties", params={"density": 0.2, "merge": how, "scaling": 1.0})
        got[f"merged_{how}_k20"] = merge(base, vectors, [], call, context).weights.tensor("w")
    return Found(got, {key: numbers[key] for key in got})


CHECKS: dict[str, Check] = {
    f"adamerging{'pp' if plus_plus else ''}_{grain}wise": partial(learning, granularity=grain, plus_plus=plus_plus)
    for grain in ("task", "layer")
    for plus_plus in (False, True)
} | {"ties_split": trimmed_and_elected}
