"""LoRA experts merged by their factors in place of their products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..catalog.low_rank import LoraFactorsParams
from ..errors import MergeError
from ..types import Adapter, Context, Static, TaskVectors, Weights
from .assemble import add_to_base, total


def lora_factors(base: Weights, task_vectors: TaskVectors, params: LoraFactorsParams, context: Context) -> Static:
    """Add task vectors of the factors A and B, so that one expert's B also meets the changes of the others' A.

    Matrices without adapters get the sum of task vectors, which is zero there for experts that trained adapters alone.

    Source: Tang et al., ICLR 2024, arXiv:2310.04742, §3, where LoRA experts are so added as the baseline of L-LoRA.
    Departure: none; with λ = 1/K both factors are averaged.

    Raises:
        MergeError: experts whose adapters lie beside other matrices, are of other ranks, or started from another A.
    """
    found = {expert: context.adapters(expert) for expert in task_vectors.experts}
    matrices = dict.fromkeys(name for adapters in found.values() for name in adapters)
    parts: dict[str, list[tuple[int, Tensor]]] = {}
    for matrix in matrices:
        if lacking := next((expert for expert, adapters in found.items() if matrix not in adapters), None):
            raise MergeError(
                f"Factors are added matrix by matrix, and '{lacking}' has no adapter at {matrix}. Choose experts whose "
                "adapters lie beside the same matrices."
            )
        own = [adapters[matrix] for adapters in found.values()]
        down, up = summed_factors(own, params.scaling)
        parts.setdefault(own[0].tensor, []).append((own[0].first, up @ down))

    def vector(name: str) -> Tensor:
        whole = total(task_vectors, name, params.scaling)
        for first, product in parts.get(name, ()):
            whole[first : first + len(product)] = product.to(whole.dtype)
        return whole

    return add_to_base(base, task_vectors, vector)


def summed_factors(adapters: Sequence[Adapter], scaling: float) -> tuple[Tensor, Tensor]:
    """Return A_0 + λ Σ (A_k − A_0) and λ Σ B_k of one matrix.

    Raises:
        MergeError: factors of other shapes, or of another start.
    """
    first = adapters[0]
    for other in adapters[1:]:
        if other.down.shape != first.down.shape:
            raise MergeError(
                f"Factors of {first.tensor} have ranks {len(first.down)} and {len(other.down)}; they can be added only "
                "where all have the same."
            )
        if not torch.equal(other.start, first.start):
            raise MergeError(
                f"Factors of {first.tensor} started from different A, so their B do not belong together. Train the "
                "experts with one seed, or merge products (any other method)."
            )
    down = first.start + scaling * sum(adapter.down - adapter.start for adapter in adapters)
    return down, scaling * sum(adapter.up for adapter in adapters)
