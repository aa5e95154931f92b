"""HO-GSVD: the task matrices of all experts decomposed at once, in one basis that they share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..catalog.low_rank import HoGsvdParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base
from .spectra import is_matrix, rank_of, svd

EQUAL = 1e-7  # gap between eigenvalues, relative to the greatest, up to which they count as one
NOTHING = 1e-6  # generalised singular values up to it are rounding, which is not raised


@dataclass(frozen=True)
class SharedBasis:
    """A_k = U_k Σ_k Vᵀ of K matrices (m, n), m ≥ n, with r directions.

    Of every direction the squares of the K generalised singular values sum to 1: equal ones mean that all experts use
    it alike, a single 1 that one expert has it to itself.
    """

    left: Tensor  # U, (K, m, r): unit columns, zero where an expert does not use a direction
    values: Tensor  # Σ, (K, r)
    right: Tensor  # Vᵀ, (r, n): not orthogonal; its rows carry the length

    @classmethod
    def of(cls, stack: Tensor, ridge: float, where: str = "the task matrices") -> SharedBasis:
        """Decompose matrices in float64.

        Args:
            stack: (K, m, n) with m ≥ n.
            ridge: π, which keeps the inverse of what an expert does not use finite; relative to 1, the greatest
                eigenvalue that an expert's share of the stack can have.
            where: which matrices they are, for the error.

        Raises:
            MergeError: the decomposition does not converge.

        Source: Kempf, Goulart and Duncan, 2021, arXiv:2102.09822.
        Departure: where the stacked matrices have less than full rank, directions that none of them has are left out;
            the authors' program pads the stack with them. Directions that one expert each has to itself share an
            eigenvalue, so that any mixture of them would do; here they are told apart by the experts' norms.
        """
        experts, rows, columns = stack.shape
        outer, values, basis = svd(stack.reshape(experts * rows, columns).double(), where)
        rank = rank_of(values.to(stack.dtype), (experts * rows, columns))
        parts = outer[:, :rank].reshape(experts, rows, rank)
        one = torch.eye(rank, dtype=torch.float64)
        shares = parts.mT @ parts
        weights = stack.double().square().sum(dim=(1, 2))
        turn = _directions(
            torch.linalg.inv(shares + ridge * one).mean(dim=0), torch.einsum("k,kij->ij", weights, shares)
        )
        parts = parts @ turn
        lengths = torch.linalg.vector_norm(parts, dim=1)
        left = torch.where(lengths[:, None] > NOTHING, parts / lengths[:, None].clamp(min=NOTHING), 0.0)
        return cls(left, lengths, turn.T @ (values[:rank, None] * basis[:rank]))

    def raised(self, share: float) -> Tensor:
        """Return the generalised singular values (K, r) with each expert's small ones raised to a floor.

        Args:
            share: values after those that make up this share of their sum are raised to the last of them.
        """
        ordered = self.values.sort(dim=1, descending=True).values
        total = ordered.sum(dim=1, keepdim=True)
        last = (ordered.cumsum(1) >= share * total * (1 - 1e-6)).int().argmax(dim=1, keepdim=True)
        return torch.where(self.values > NOTHING, self.values.maximum(ordered.gather(1, last)), self.values)

    def total(self, values: Tensor) -> Tensor:
        """Return Σ_k U_k diag(values_k) Vᵀ, (m, n)."""
        return (self.left * values[:, None]).sum(dim=0) @ self.right


def _directions(matrix: Tensor, within: Tensor) -> Tensor:
    """Return the eigenvectors (r, r) of a symmetric matrix; of equal eigenvalues those of another matrix among them."""
    values, vectors = torch.linalg.eigh(matrix)
    if not len(values):
        return vectors
    ends = [*((values.diff() > EQUAL * values[-1]).nonzero().flatten() + 1).tolist(), len(values)]
    parts = []
    for start, end in zip([0, *ends], ends, strict=False):
        part = vectors[:, start:end]
        parts.append(part @ torch.linalg.eigh(part.T @ within @ part).eigenvectors if end - start > 1 else part)
    return torch.cat(parts, dim=1)


def ho_gsvd(base: Weights, task_vectors: TaskVectors, params: HoGsvdParams, context: Context) -> Static:
    """Raise, in the basis that the experts share, what each of them uses little, and add the experts.

    Source: Skorobogat et al., 2025, arXiv:2506.16506; the decomposition: Kempf et al., 2021, arXiv:2102.09822.
    Departure: the paper compares experts by this decomposition and merges by Subspace Boosting; that a survey lists it
        among the merge methods is read here as Subspace Boosting of every expert in the shared basis. The basis is
        shared on a matrix's shorter side, where every expert can have full rank. π is a parameter; the decomposition's
        authors take 1/K. Other tensors are summed. With β = 1
        nothing is raised, and the result is Task Arithmetic's.
    """

    def vector(name: str) -> Tensor:
        stack, shape = task_vectors.stack(name), task_vectors.shape(name)
        if not is_matrix(name, shape, params.matrices) or not stack.any():
            return stack.sum(dim=0).mul_(params.scaling)
        wide = shape[0] < shape[1]
        basis = SharedBasis.of(stack.mT if wide else stack, params.ridge, f"the stacked task matrices of {name}")
        total = basis.total(basis.raised(params.share)).to(stack.dtype)
        return (total.T.contiguous() if wide else total).mul_(params.scaling)

    return add_to_base(base, task_vectors, vector)
