"""The part that experts share, and each expert's own part in less space: singular directions or single entries."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog.routing import TwinParams
from ..types import Context, TaskVectors, Tensors, Weights
from .chance import bernoulli
from .masked import pack, unpack
from .routed import EXPERTS, VECTOR, tensors_under
from .spectra import svd

LEFT, RIGHT, KEPT, VALUES = "left/", "right/", "kept/", "values/"


def separate(task_vectors: TaskVectors, params: TwinParams, context: Context) -> dict[str, Tensor]:
    """Split the experts into the shared vector λ Σ_k τ_k and, compressed, what is left of each."""
    parts: dict[str, Tensor] = {}
    for index, name in enumerate(task_vectors.names):
        stack = task_vectors.stack(name)
        shared = stack.sum(dim=0).mul_(params.scaling)
        parts[VECTOR + name] = shared
        own = stack - shared
        if own.dim() < 3 or params.density >= 1 or not own.numel():
            parts[EXPERTS + name] = own
        elif params.compression == "svd":
            parts |= _low_rank(name, own, params.density)
        else:
            parts |= _sparse(name, own, task_vectors.experts, params, context.seed)
        context.progress(0.5 * (index + 1) / len(task_vectors.names), f"Compressing {name}")
    return parts


def restored(base: Weights, parts: Tensors) -> dict[str, Tensor]:
    """Return every expert's own part (K, *shape) by layer: whole, of factors, or of packed places and values."""
    exclusive = tensors_under(parts, EXPERTS)
    for name, left in tensors_under(parts, LEFT).items():
        exclusive[name] = left @ parts[RIGHT + name]
    for name, values in tensors_under(parts, VALUES).items():
        shape = torch.Size(base.shape(name))
        kept = torch.stack([unpack(bits, shape) for bits in parts[KEPT + name]])
        exclusive[name] = torch.zeros(kept.shape, dtype=values.dtype)
        exclusive[name][kept] = values
    return exclusive


def _low_rank(name: str, stack: Tensor, density: float) -> dict[str, Tensor]:
    """Return leading singular directions of every expert's matrix of a stack (K, m, n); keep other tensors whole."""
    if stack.dim() != 3:
        return {EXPERTS + name: stack}
    rows, columns = stack.shape[1:]
    rank = int(density * min(rows, columns))
    left, right = stack.new_empty(len(stack), rows, rank), stack.new_empty(len(stack), rank, columns)
    for k, matrix in enumerate(stack):
        u, values, v = svd(matrix)
        left[k], right[k] = u[:, :rank] * values[:rank], v[:rank]
    if rank * (rows + columns) < rows * columns:
        return {LEFT + name: left, RIGHT + name: right}
    return {EXPERTS + name: left @ right}


def _sparse(name: str, stack: Tensor, experts: tuple[str, ...], params: TwinParams, seed: int) -> dict[str, Tensor]:
    """Return the single entries of every expert's tensor: the largest, or random ones that are scaled up; packed."""
    kept = torch.zeros(stack.shape, dtype=torch.bool)
    for mask, tensor, expert in zip(kept, stack, experts, strict=True):
        if params.compression == "random":
            mask.copy_(bernoulli(params.density, tuple(mask.shape), seed, "twin", expert, name))
        else:
            count = int(params.density * tensor.numel())
            mask.view(-1)[tensor.abs().flatten().topk(count).indices] = True
    values = stack[kept]
    if params.compression == "random" and params.density:
        values.div_(params.density)
    return {KEPT + name: torch.stack([pack(mask) for mask in kept]), VALUES + name: values}
