"""MetaGPT and Model Stock: coefficients from norms and angles."""

from __future__ import annotations

import torch
from torch import Tensor

from ..catalog import NoParams
from ..catalog.weighted import ModelStockParams
from ..types import Context, MergeInfo, Static, TaskVectors, Weights
from .assemble import add_to_base, flat


def metagpt(base: Weights, task_vectors: TaskVectors, params: NoParams, context: Context) -> Static:
    """Weight every expert by its share of the squared norms.

    Source: Zhou et al., EMNLP 2024, arXiv:2406.11385, Eq. (14).
    Departure: experts that all equal the base are weighted equally.
    """
    norms = torch.zeros(len(task_vectors.experts), dtype=torch.float64)
    for index, name in enumerate(task_vectors.names):
        norms += flat(task_vectors.stack(name)).square_().sum(dim=1, dtype=torch.float64)
        context.progress((index + 1) / len(task_vectors.names), f"Norm of {name}")
    shares = norms / norms.sum() if norms.any() else torch.full_like(norms, 1 / len(norms))
    factors = shares.to(task_vectors.dtype)
    info = MergeInfo(details={"coefficients": dict(zip(task_vectors.experts, shares.tolist(), strict=True))})

    def vector(name: str) -> Tensor:
        return (factors @ flat(task_vectors.stack(name))).view(task_vectors.shape(name))

    return add_to_base(base, task_vectors, vector, info)


def model_stock(base: Weights, task_vectors: TaskVectors, params: ModelStockParams, context: Context) -> Static:
    """Move from the base towards the mean expert as far as the experts agree.

    Meant for several fine-tunings of one task; experts of different tasks agree little and stay near the base. With
    ``by_task`` the experts of each task are combined so, and the tasks are added: θ₀ + λ Σ_t τ_t. A task's only expert
    is added as it is.

    Source: Jang, Yun & Han, ECCV 2024, arXiv:2403.19522, Eq. (6); by task: Zhang et al., 2025, arXiv:2506.09093,
        Tables 3, 10 and 11.
    Departure: the paper covers two experts; for more, angles are averaged as FusionBench does, or cosines as mergekit
        does. Negative ratios, which opposite vectors give, are clamped unless ``clamp`` is off.
    """
    groups: dict[str, list[int]] = {}
    for row, task in enumerate(context.tasks if params.by_task else [""] * len(task_vectors.experts)):
        groups.setdefault(task, []).append(row)

    def combined(stack: Tensor) -> Tensor:
        if stack.numel() == 0 or len(stack) == 1:
            return stack[0]
        by_row = params.scope == "row" and stack.dim() > 2
        rows = flat(stack).unflatten(1, (stack.shape[1] if by_row else 1, -1))
        ratio = _agreement(rows, params)
        return (rows.mean(dim=0) * ratio[:, None]).view(stack.shape[1:])

    def vector(name: str) -> Tensor:
        stack = task_vectors.stack(name)
        if not params.by_task:
            return combined(stack)
        return params.scaling * sum(combined(stack[rows]) for rows in groups.values())

    return add_to_base(base, task_vectors, vector)


def _agreement(rows: Tensor, params: ModelStockParams) -> Tensor:
    """Return the ratio t = K c / (1 + (K − 1) c) of each row of (K, rows, n), where c is the experts' mean cosine."""
    count = len(rows)
    norms = torch.linalg.vector_norm(rows, dim=2)
    # Zero vectors have no angle; as in the references they count as orthogonal.
    cosines = []
    for i in range(count):
        for j in range(i + 1, count):
            product = (norms[i] * norms[j]).clamp(min=torch.finfo(rows.dtype).tiny)
            cosines.append((rows[i] * rows[j]).sum(dim=1) / product)
    pairs = torch.stack(cosines).clamp_(-1, 1)
    mean = pairs.acos().mean(dim=0).cos() if params.average == "angles" else pairs.mean(dim=0)
    divisor = 1 + (count - 1) * mean
    ratio = torch.where(divisor.abs() > 1e-6, count * mean / divisor, 0.0)
    return ratio.clamp_(0, 1) if params.clamp else ratio
