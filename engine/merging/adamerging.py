"""AdaMerging: coefficients learned by minimising the entropy of predictions on unlabelled images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..catalog.optimisation import AdaMergingParams
from ..types import Context, Head, MergeInfo, Static, TaskVectors, Weights
from ..weights.on_device import on_device
from .assemble import add_to_base, flat
from .ties import elected


def adamerging(base: Weights, task_vectors: TaskVectors, params: AdaMergingParams, context: Context) -> Static:
    """Learn one coefficient a task, or one a task and layer, without labels.

    The gradient of a coefficient is the inner product of the loss's gradient in the weights with the task vector, so
    one backward pass a batch is enough and the merge itself is never differentiated.

    Source: Yang et al., ICLR 2024, arXiv:2310.02575.
    Departure: the authors' code draws two batches a task and step (a preset); here it is one unless told otherwise.
        Coefficients are clamped to [0, 1] in the forward pass as in the authors' code, which stops those that leave the
        interval.
    """
    if params.plus_plus:
        task_vectors = elected(task_vectors, params.density, context)
    coefficients, losses = learn_coefficients(base, task_vectors, params, context)
    rows = dict(zip(task_vectors.names, coefficients, strict=True))
    info = learned_info(task_vectors, coefficients, losses, params.granularity)
    return add_to_base(base, task_vectors, lambda name: combine(rows[name], task_vectors.stack(name)), info)


def learned_info(task_vectors: TaskVectors, coefficients: Tensor, losses: list[float], granularity: str) -> MergeInfo:
    """Return the report of learned coefficients (L, K): them, by expert, and the loss of every step."""
    by_layer = granularity == "layer"
    return MergeInfo(
        details={
            "layers": list(task_vectors.names) if by_layer else [],
            "coefficients": {
                expert: column.tolist() if by_layer else column[0].item()
                for expert, column in zip(task_vectors.experts, coefficients.T, strict=True)
            },
            "loss": [round(loss, 6) for loss in losses],
        }
    )


def combine(coefficients: Tensor, stack: Tensor) -> Tensor:
    """Return Σ_k λ_k τ_k of a layer: coefficients (K,), stack (K, *shape)."""
    return (coefficients.to(stack) @ flat(stack)).view(stack.shape[1:])


def entropy(logits: Tensor) -> Tensor:
    """Return the mean Shannon entropy (nats) of the softmax of logits (n, classes)."""
    logs = functional.log_softmax(logits, dim=-1)
    return -(logs.exp() * logs).sum(dim=-1).mean()


def predict(features: Tensor, head: Head) -> Tensor:
    """Return the logits (n, classes) of features (n, dim) under a head, zero-shot or a classifier's."""
    if (affine := getattr(head, "affine", None)) is not None:
        cast = affine.each(lambda tensor: tensor.to(features.dtype))
        return cast.logits(features, head.weight.to(features.dtype))
    return head.scale * functional.normalize(features, dim=-1) @ head.weight.to(features.dtype).T


def learn_coefficients(
    base: Weights, task_vectors: TaskVectors, params: AdaMergingParams, context: Context, start: Tensor | None = None
) -> tuple[Tensor, list[float]]:
    """Return the coefficients (L, K) after training, as they are used, and the loss of every step.

    ``start`` are other start values than ``params.initial``: (L, K), or (1, K) for one a task.
    """
    layers, experts = len(task_vectors.names), len(task_vectors.experts)
    rows = layers if params.granularity == "layer" else 1
    given = torch.full((rows, experts), params.initial, dtype=torch.float64) if start is None else start
    learned = given.double().clone().requires_grad_()
    optimiser = torch.optim.Adam([learned], lr=params.learning_rate)
    streams = {task: context.batches(task, "adapt", params.batch_size) for task in dict.fromkeys(context.tasks)}
    base, task_vectors = on_device(base, task_vectors, context.head(context.tasks[0]).weight.device)
    losses = []
    for step in range(params.steps):
        context.progress(step / params.steps, f"Learning coefficients, step {step + 1} of {params.steps}")
        used = bounded(learned, params, layers)
        total, slope = 0.0, torch.zeros_like(used)
        for _ in range(params.batches_per_step):
            batches = {task: next(stream)[0] for task, stream in streams.items()}
            loss, gradient = coefficient_gradient(base, task_vectors, used.detach(), batches, context)
            total += loss
            slope += gradient
        optimiser.zero_grad()
        used.backward(slope)
        optimiser.step()
        losses.append(total)
    return bounded(learned, params, layers).detach(), losses


def bounded(learned: Tensor, params: AdaMergingParams, layers: int) -> Tensor:
    """Return the coefficients (L, K) as they are used, from what is learned: (L, K), or (1, K) for one a task."""
    within = learned.clamp(0, 1) if params.clamp else learned
    return within.expand(layers, -1)


def coefficient_gradient(
    base: Weights, task_vectors: TaskVectors, coefficients: Tensor, batches: dict[str, Tensor], context: Context
) -> tuple[float, Tensor]:
    """Return the summed loss of all tasks at these coefficients (L, K), and its gradient in them."""
    device = next(iter(batches.values())).device
    weights = _merged(base, task_vectors, coefficients, device)
    total = 0.0
    for task, images in batches.items():
        loss = entropy(predict(context.forward(weights, images), context.head(task)))
        loss.backward()
        total += loss.item()
    gradient = torch.zeros_like(coefficients)
    for row, name in zip(gradient, task_vectors.names, strict=True):
        slope = weights[name].grad
        if slope is not None:
            stack = flat(task_vectors.stack(name))
            row.copy_(stack @ slope.reshape(-1).to(stack))
    return total, gradient


def _merged(base: Weights, task_vectors: TaskVectors, coefficients: Tensor, device: torch.device) -> dict[str, Tensor]:
    weights = {}
    for name in base.names:
        if name not in task_vectors.names:
            kept = base.tensor(name)
            weights[name] = kept.to(device, task_vectors.dtype if kept.is_floating_point() else kept.dtype)
    for row, name in zip(coefficients, task_vectors.names, strict=True):
        merged = combine(row, task_vectors.stack(name)).add_(base.tensor(name).to(task_vectors.dtype))
        weights[name] = merged.to(device).requires_grad_()
    return weights
