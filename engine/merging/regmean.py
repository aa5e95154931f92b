"""RegMean: linear layers merged by least squares on their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..catalog.optimisation import RegMeanParams
from ..errors import MergeError
from ..types import Context, Static, TaskVectors, Tensors, Weights
from .assemble import add_to_base


def regmean(base: Weights, task_vectors: TaskVectors, params: RegMeanParams, context: Context) -> Static:
    """Merge every linear layer so that its outputs differ least from each expert's on that expert's inputs.

    Only sums over experts are held, so memory does not grow with their number.

    Source: Jin et al., ICLR 2023, arXiv:2212.09849, Eq. (2).
    Departure: inner products are divided by the number of tokens, so that tasks weigh the same, as in FusionBench;
        the paper takes raw sums. Tokens that pad a text do not count. Everything but linear layers is averaged, and so
        are columns of a linear layer that no input reaches.
    """
    pulls: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}
    for index, (expert, task) in enumerate(zip(task_vectors.experts, context.tasks, strict=True)):
        grams = input_products(base, task_vectors, expert, task, params.examples, context)
        for name, gram in grams.items():
            shrunk = gram.double() * params.off_diagonal
            shrunk.diagonal().copy_(gram.diagonal())
            pull = task_vectors.vector(name, expert).double() @ shrunk
            pulls[name] = pulls[name] + pull if name in pulls else pull
            sums[name] = sums[name] + shrunk if name in sums else shrunk
        context.progress((index + 1) / len(task_vectors.experts), f"Inner products of {expert}")

    for name, gram in sums.items():
        unreached = gram.diagonal() == 0
        gram.diagonal()[unreached] = 1
        pulls[name][:, unreached] = task_vectors.stack(name).mean(dim=0).double()[:, unreached]

    def vector(name: str) -> Tensor:
        if name not in sums:
            return task_vectors.stack(name).mean(dim=0)
        factor, failed = torch.linalg.cholesky_ex(sums[name])
        if failed:
            raise MergeError(
                f"The inputs of {name} do not span its columns, so RegMean has no unique solution. "
                "Use more images, or shrink the off-diagonal below 1."
            )
        return torch.cholesky_solve(pulls[name].mT, factor).mT.to(task_vectors.dtype).contiguous()

    return add_to_base(base, task_vectors, vector)


def input_products(
    base: Weights, task_vectors: TaskVectors, expert: str, task: str, examples: int, context: Context
) -> Tensors:
    """Return mean inner products XᵀX (in, in) of the inputs of an expert's linear layers, kept by the context.

    Tokens that pad a sample do not count.
    """
    key: dict[str, Any] = {"task": task, "examples": examples, "seed": context.seed, "dtype": str(task_vectors.dtype)}
    key |= {"counted": "present"} if context.padded else {}
    key["seen"] = context.seen(task)
    return context.cached(expert, "gram", key, lambda: _grams(base, task_vectors, expert, task, examples, context))


class LayerInputs(TorchDispatchMode):
    """Collects XᵀX and the sum of the inputs of every linear layer while an encoder runs.

    Linear layers are recognised by their weight's memory in matrix products, so that layers which are never called
    as modules (the projections inside attention) are seen as well.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        """Watch for matrix products with these weights (out, in)."""
        super().__init__()
        self._names = {tensor.data_ptr(): name for name, tensor in weights.items()}
        self._shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        self.products: dict[str, Tensor] = {}
        self.sums: dict[str, Tensor] = {}
        self.tokens: dict[str, int] = {}
        self.there: Tensor | None = None  # which rows count, bool (rows,), where a layer's inputs are as many

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
            inputs, transposed = args[-2:]
            name = self._names.get(transposed.data_ptr())
            if name and _is_transposed(transposed, self._shapes[name]):
                inputs = inputs.detach()
                if self.there is not None and len(self.there) == len(inputs):
                    inputs = inputs[self.there]
                self.products[name] = self.products.get(name, 0) + inputs.T @ inputs
                self.sums[name] = self.sums.get(name, 0) + inputs.sum(dim=0)
                self.tokens[name] = self.tokens.get(name, 0) + len(inputs)
        return function(*args, **(kwargs or {}))


def _is_transposed(matrix: Tensor, shape: tuple[int, ...]) -> bool:
    """Tell whether a factor is a weight (out, in) turned: one that is multiplied as it is, is no linear layer's."""
    return tuple(matrix.shape) == shape[::-1] and (1 in shape or matrix.stride(0) == 1)


def _grams(
    base: Weights, task_vectors: TaskVectors, expert: str, task: str, examples: int, context: Context
) -> Tensors:
    """Return the mean inner products of the inputs of every linear layer of one expert on its task's images."""
    stream = context.batches(task, "adapt", min(examples, 32))
    images = next(stream)[0]
    weights = {}
    for name in base.names:
        if name in task_vectors.names:
            whole = task_vectors.vector(name, expert).add_(base.tensor(name).to(task_vectors.dtype))
            # With a gradient to follow, attention takes the path that multiplies matrices one by one.
            weights[name] = whole.to(images.device).requires_grad_()
        else:
            weights[name] = base.tensor(name).to(images.device)
    matrices = {name: weights[name] for name in task_vectors.names if weights[name].dim() == 2}
    watched = LayerInputs(matrices)
    done = 0
    while done < examples:
        batch = images[: examples - done]
        watched.there = context.present(batch)
        with watched:
            context.forward(weights, batch)
        done += len(batch)
        images = next(stream)[0] if done < examples else images
    return {name: (product / watched.tokens[name]).cpu() for name, product in watched.products.items()}
