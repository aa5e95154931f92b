"""Fisher Merging."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..catalog.optimisation import FisherParams
from ..types import Context, Static, TaskVectors, Weights
from .adamerging import predict
from .assemble import add_to_base


def fisher(base: Weights, task_vectors: TaskVectors, params: FisherParams, context: Context) -> Static:
    """Average the experts with their diagonal Fisher information as weights.

    Source: Matena & Raffel, NeurIPS 2022, arXiv:2111.09832, Eq. (4).
    Departure: the expectation over labels takes one label drawn from the expert's own prediction, and gradients are
        squared image by image; a published implementation squares sums over batches, which is another quantity.
    """
    information = {}
    for index, (expert, task) in enumerate(zip(task_vectors.experts, context.tasks, strict=True)):
        key: dict[str, Any] = {"task": task, "examples": params.examples, "seed": context.seed}
        key |= {"dtype": str(task_vectors.dtype), "seen": context.seen(task)}
        information[expert] = context.cached(
            expert,
            "fisher",
            key,
            lambda expert=expert, task=task, index=index: _information(
                base, task_vectors, expert, task, params.examples, context, index
            ),
        )
    shares = [_share(information[expert], params) for expert in task_vectors.experts]
    shares = [share / sum(shares) for share in shares]

    def vector(name: str) -> Tensor:
        total = torch.zeros(task_vectors.shape(name), dtype=task_vectors.dtype)
        divisor = torch.zeros_like(total)
        for share, expert in zip(shares, task_vectors.experts, strict=True):
            weight = (information[expert][name].to(total.dtype) + params.smallest) * share
            total.addcmul_(weight, task_vectors.vector(name, expert))
            divisor.add_(weight)
        return total.div_(divisor)

    return add_to_base(base, task_vectors, vector)


def _share(information: dict[str, Tensor], params: FisherParams) -> float:
    if not params.normalise:
        return 1.0
    square = sum(tensor.square().sum(dtype=torch.float64).item() for tensor in information.values())
    return 1 / (square**0.5 + params.smallest)


def _information(
    base: Weights, task_vectors: TaskVectors, expert: str, task: str, examples: int, context: Context, index: int
) -> dict[str, Tensor]:
    """Return the diagonal Fisher information of one expert on its task's images."""
    stream = context.batches(task, "adapt", min(examples, 32))
    images = next(stream)[0]
    device = images.device
    weights = {name: base.tensor(name).to(device) for name in base.names if name not in task_vectors.names}
    for name in task_vectors.names:
        whole = task_vectors.vector(name, expert).add_(base.tensor(name).to(task_vectors.dtype))
        weights[name] = whole.to(device).requires_grad_()
    total = {name: torch.zeros_like(weights[name]) for name in task_vectors.names}
    generator = torch.Generator().manual_seed(context.seed)
    done = 0
    while done < examples:
        for image in images[: examples - done]:
            logits = predict(context.forward(weights, image[None]), context.head(task))
            label = torch.multinomial(logits.detach().softmax(dim=1).cpu(), 1, generator=generator)[0]
            functional.cross_entropy(logits, label.to(device)).backward()
            for name, square in total.items():
                slope = weights[name].grad
                if slope is not None:
                    square.addcmul_(slope, slope)
                    weights[name].grad = None
            done += 1
        context.progress((index + done / examples) / len(task_vectors.experts), f"Fisher information of {expert}")
        images = next(stream)[0] if done < examples else images
    return {name: square.div_(examples).cpu() for name, square in total.items()}
