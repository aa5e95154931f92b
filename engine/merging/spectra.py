"""Singular value decompositions and what is made of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import MergeError
from ..layouts import block_of
from ..types import Context, TaskVectors

ROUNDINGS = 100  # rounding errors that a factor's residual may have; one with a larger residual is computed otherwise
GRAM_BLOCKS = 4  # so that a Gram matrix takes five eighths of the products
SMALLEST = {torch.float32: 1e-2, torch.float64: 1e-9}  # least ratio of a Gram matrix's eigenvalues whose root is taken


def is_matrix(name: str, shape: tuple[int, ...], matrices: str = "all") -> bool:
    """Tell whether low-rank methods treat a tensor as a matrix.

    ``all``: every 2-D tensor but the text projection, positional embedding and output projection included, as in the
    authors' codes. ``blocks``: only those inside transformer blocks.
    """
    return len(shape) == 2 and "text_projection" not in name and (matrices == "all" or block_of(name) is not None)


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


def leading_triples(matrix: Tensor, rank: int, where: str = "a task matrix") -> tuple[Tensor, Tensor, Tensor]:
    """Return the first ``rank`` singular triples U (m, rank), σ (rank,), Vᵀ (rank, n).

    The leading eigenvectors of the Gram matrix span the right singular vectors, and the small matrix in that basis is
    decomposed. Where Uᵀ A and σ Vᵀ differ by more than rounding, the whole matrix is decomposed.

    Args:
        matrix: (m, n).
        rank: at most min(m, n).
        where: which matrix it is, for the error.

    Raises:
        MergeError: the decomposition does not converge.
    """
    if matrix.shape[0] < matrix.shape[1]:
        right, values, left = leading_triples(matrix.T, rank, where)
        return left.T, values, right.T
    found = _from_gram(matrix, rank) if 0 < 2 * rank <= matrix.shape[1] else None
    if found is None:
        left, values, right = svd(matrix, where)
        found = left[:, :rank], values[:rank], right[:rank]
    return found


def _from_gram(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the leading triples of a tall matrix, or None where they are not good to rounding."""
    scale = 2.0 ** math.frexp(matrix.abs().max().item())[1]  # a power of two, which rounds nothing
    matrix = matrix / scale  # so that squares neither vanish nor overflow
    try:
        basis = _leading_vectors(_gram(matrix), rank)
        left, values, turned = torch.linalg.svd(matrix @ basis, full_matrices=False)
    except torch.linalg.LinAlgError:
        return None
    right = turned @ basis.T
    residual = torch.linalg.vector_norm(left.T @ matrix - values[:, None] * right, dim=1).max()
    good = residual <= ROUNDINGS * torch.finfo(matrix.dtype).eps * values[0]
    return (left, values * scale, right) if good else None


def _leading_vectors(gram: Tensor, rank: int) -> Tensor:
    """Return an orthonormal basis (n, rank) of a symmetric matrix's leading eigenvectors, read off its lower triangle.

    LAPACK's xSYEVR finds only those, in half the time of all; in float32 they are orthogonal to a few roundings more.

    Raises:
        LinAlgError: the decomposition does not converge.
    """
    from scipy import linalg

    size = len(gram)
    try:  # what scipy reads without copying is the transpose
        vectors = linalg.eigh(
            gram.numpy().T,
            lower=False,
            overwrite_a=True,
            check_finite=False,
            subset_by_index=(size - rank, size - 1),
            driver="evr",
        )[1]
    except linalg.LinAlgError as error:
        raise torch.linalg.LinAlgError(str(error)) from None
    if vectors.shape[1] < rank:  # LAPACK finds none where a number is not finite
        raise torch.linalg.LinAlgError(f"{vectors.shape[1]} eigenvectors of {rank} were found")
    return torch.linalg.qr(torch.from_numpy(vectors)).Q


def leading_svd(
    task_vectors: TaskVectors, name: str, expert: str, rank: int, context: Context
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first singular triples of one expert's layer, computed once and kept by the context.

    They are at most ``rank``; a low-rank expert has fewer, since its further directions are arbitrary.
    """

    def compute() -> dict[str, Tensor]:
        found = leading_triples(task_vectors.vector(name, expert), rank, f"{name} of expert '{expert}'")
        return dict(zip(("left", "values", "right"), (part.contiguous() for part in found), strict=True))

    key = {"layer": name, "rank": rank, "dtype": str(task_vectors.dtype)}
    found = context.cached(expert, "svd", key, compute)
    there = rank_of(found["values"], task_vectors.shape(name))
    return found["left"][:, :there], found["values"][:there], found["right"][:there]


def rank_of(values: Tensor, shape: tuple[int, ...], rounded: float = 0.0) -> int:
    """Count singular values (descending) above rounding error; directions of the others are arbitrary.

    Args:
        values: of a matrix.
        shape: of the matrix.
        rounded: norm of the matrix that it is the rest of, where that is larger than its own.
    """
    if values.numel() == 0:
        return 0
    return int((values > max(values[0].item(), rounded) * max(shape) * torch.finfo(values.dtype).eps).sum())


def polar(matrix: Tensor) -> Tensor:
    """Return the nearest matrix with orthonormal columns or rows: PQᵀ of the decomposition P D Qᵀ.

    For a tall matrix A it is A (AᵀA)^(-1/2), in float64 unless A is far from square, which random directions make well
    conditioned. Where that is not orthonormal to rounding, A is decomposed. Where columns repeat, the nearest is not
    one: directions that A lacks are left out, so that experts that are equal share theirs.
    """
    if matrix.shape[0] < matrix.shape[1]:
        return polar(matrix.T).T
    eye = torch.eye(matrix.shape[1], dtype=matrix.dtype)
    quick = [matrix.dtype] if matrix.shape[0] >= 2 * matrix.shape[1] else []
    for dtype in dict.fromkeys((*quick, torch.float64)):
        found = _inverse_root(matrix.to(dtype))
        if found is None:
            continue
        factor = (matrix.to(dtype) @ found).to(matrix.dtype)
        if _gram(factor).sub_(eye).abs_().max() <= ROUNDINGS * torch.finfo(matrix.dtype).eps:
            return factor
    left, values, right = svd(matrix)
    rank = rank_of(values, matrix.shape)
    return left[:, :rank] @ right[:rank]


def _gram(matrix: Tensor) -> Tensor:
    """Return the lower triangle of AᵀA, which is all that eigh reads, by blocks of rows; what is above is not AᵀA's."""
    size = matrix.shape[1]
    found = torch.zeros((size, size), dtype=matrix.dtype)
    width = max(1, -(-size // GRAM_BLOCKS))
    for first in range(0, size, width):
        last = min(first + width, size)
        found[first:last, :last] = matrix[:, first:last].T @ matrix[:, :last]
    return found


def _inverse_root(matrix: Tensor) -> Tensor | None:
    """Return (AᵀA)^(-1/2); None where that is too badly conditioned."""
    if not matrix.numel():
        return None
    try:
        values, vectors = torch.linalg.eigh(_gram(matrix))
    except torch.linalg.LinAlgError:
        return None
    well = values[0] > SMALLEST[matrix.dtype] * values[-1]
    return (vectors * values.rsqrt()) @ vectors.T if well else None
