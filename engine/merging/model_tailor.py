"""Model Tailor: a sparse patch of every expert, its remaining columns compensated for what was given back."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog.sparse import ModelTailorParams
from ..errors import MergeError
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base
from .regmean import input_products


def model_tailor(base: Weights, task_vectors: TaskVectors, params: ModelTailorParams, context: Context) -> Static:
    """Give most entries of each expert's linear layers back to the base, adjust the rest, and add the patches.

    Source: Zhu et al., ICML 2024, arXiv:2402.12048, §3; didizhu-zju/Model-Tailor.
    Departure: as in the authors' code, scores are standardised by row and block, thresholds are taken by block, and
        compensation is added with the sign written there. The paper treats one model; patches of several are summed,
        and tensors that are not linear layers are averaged. Labels are not used.
    """
    patches: dict[str, Tensor] = {}
    experts = task_vectors.experts
    for index, (expert, task) in enumerate(zip(experts, context.tasks, strict=True)):
        products = input_products(base, task_vectors, expert, task, params.examples, context)
        for done, (name, gram) in enumerate(products.items()):
            context.progress((index + done / len(products)) / len(experts), f"Tailoring {name} of {expert}")
            before = base.tensor(name).double()
            vector = task_vectors.vector(name, expert).double()
            patch = tailor(before + vector, before, gram.double(), params, name).sub_(before)
            patches[name] = patches[name].add_(patch) if name in patches else patch

    def vector(name: str) -> Tensor:
        if name not in patches:
            return task_vectors.stack(name).mean(dim=0)
        return patches[name].to(task_vectors.dtype, copy=True).mul_(params.scaling)

    return add_to_base(base, task_vectors, vector)


def tailor(weight: Tensor, before: Tensor, gram: Tensor, params: ModelTailorParams, name: str = "a layer") -> Tensor:
    """Move a fine-tuned weight (out, in) back to the base, except for its most important entries.

    Args:
        weight: fine-tuned.
        before: of the base.
        gram: inner products XᵀX (in, in) of the layer's inputs; their scale does not matter.
        params: of the method.
        name: of the layer, for errors.
    """
    weight, moved = weight.clone(), (weight - before).abs()
    root = _inverse_root(gram, params.damping, name)
    for start in range(0, weight.shape[1], params.block):
        block = slice(start, min(start + params.block, weight.shape[1]))
        part, inner = weight[:, block], root[block, block]
        sensitivity = (part / inner.diagonal()).square()
        score = params.magnitude_share * standardised(moved[:, block])
        score += (1 - params.magnitude_share) * standardised(sensitivity)
        given_back = score <= score.flatten().sort().values[int(score.numel() * params.sparsity)]
        tailored, errors = torch.empty_like(part), torch.empty_like(part)
        for column in range(part.shape[1]):
            kept = torch.where(given_back[:, column], before[:, start + column], part[:, column])
            error = (part[:, column] - kept) / inner[column, column]
            tailored[:, column], errors[:, column] = kept, error
            part[:, column:] += error[:, None] * inner[column, column:]
        weight[:, block] = tailored
        weight[:, block.stop :] += errors @ root[block, block.stop :]
    return weight


def standardised(values: Tensor) -> Tensor:
    """Return the rows less their mean, over their standard deviation; 0 where a row is constant."""
    if values.shape[1] < 2:
        return torch.zeros_like(values)
    spread = values.std(dim=1, keepdim=True)
    return torch.where(spread > 0, (values - values.mean(dim=1, keepdim=True)) / spread, 0.0)


def _inverse_root(gram: Tensor, damping: float, name: str) -> Tensor:
    """Return the upper factor R of the damped inverse, RᵀR = (XᵀX + damping)⁻¹."""
    gram = gram.clone()
    gram.diagonal()[gram.diagonal() == 0] = 1
    gram.diagonal().add_(damping * gram.diagonal().mean())
    factor, failed = torch.linalg.cholesky_ex(gram)
    if not failed:
        root, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(factor), upper=True)
    if failed:
        raise MergeError(f"The inputs of {name} cannot be inverted. Use more images, or more damping.")
    return root
