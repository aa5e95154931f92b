"""Singular value decompositions and what is made of them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import MergeError
from ..types import Context, TaskVectors


def is_matrix(name: str, shape: tuple[int, ...], matrices: str = "all") -> bool:
    """Tell whether low-rank methods treat a tensor as a matrix.

    ``all``: every 2-D tensor but the text projection, positional embedding and output projection included, as in the
    authors' codes. ``blocks``: only those inside transformer blocks.
    """
    return len(shape) == 2 and "text_projection" not in name and (matrices == "all" or ".resblocks." in name)


def svd(matrix: Tensor, where: str = "a task matrix") -> tuple[Tensor, Tensor, Tensor]:
    """Return the thin singular value decomposition U (m, r), σ (r,), Vᵀ (r, n).

    Args:
        matrix: (m, n); where float32 does not converge, float64 is tried.
        where: which matrix it is, for the error.

    Raises:
        MergeError: the decomposition does not converge.
    """
    if matrix.shape[0] < matrix.shape[1]:  # a tall matrix takes a third of the time of its transpose
        right, values, left = svd(matrix.T, where)
        return left.T, values, right.T
    for dtype in dict.fromkeys((matrix.dtype, torch.float64)):
        try:
            found = torch.linalg.svd(matrix.to(dtype), full_matrices=False)
        except torch.linalg.LinAlgError:
            continue
        return tuple(part.to(matrix.dtype) for part in found)
    largest = matrix.abs().max().item()
    raise MergeError(
        f"The singular value decomposition of {where}, {matrix.shape[0]} × {matrix.shape[1]} with entries up to "
        f"{largest:.3g}, does not converge. Check that the experts were fine-tuned from this base and are not damaged, "
        "or choose a method without decompositions, such as TIES."
    )


def leading_svd(
    task_vectors: TaskVectors, name: str, expert: str, rank: int, context: Context
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first ``rank`` singular triples of one expert's layer, computed once and kept by the context."""

    def compute() -> dict[str, Tensor]:
        left, values, right = svd(task_vectors.vector(name, expert), f"{name} of expert '{expert}'")
        return {
            "left": left[:, :rank].contiguous(),
            "values": values[:rank].contiguous(),
            "right": right[:rank].contiguous(),
        }

    key = {"layer": name, "rank": rank, "dtype": str(task_vectors.dtype)}
    found = context.cached(expert, "svd", key, compute)
    return found["left"], found["values"], found["right"]


def rank_of(values: Tensor, shape: tuple[int, ...]) -> int:
    """Count singular values (descending) above rounding error; directions of the others are arbitrary."""
    if values.numel() == 0:
        return 0
    return int((values > values[0] * max(shape) * torch.finfo(values.dtype).eps).sum())


def polar(matrix: Tensor) -> Tensor:
    """Return the nearest matrix with orthonormal columns or rows: PQᵀ of the decomposition P D Qᵀ."""
    left, _, right = svd(matrix)
    return left @ right
