"""Measures of task vectors, layer by layer, and of a merge made of them. One tensor is held at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError
from ..types import Progress, TaskVectors, Weights

COLUMNS = 2**16  # entries of a layer that are looked at together; a count of them is exact in float32
MergedVector = Callable[[str, str], Tensor]  # (layer, expert) → what the merged model adds to the base there


@dataclass(frozen=True, eq=False)
class Sums:
    """Named arrays of sums over a layer's entries, so that sums over several layers are sums of rows."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, as they are stored."""
        return {item.name: np.ascontiguousarray(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> Self:
        """Return the record of stored arrays.

        Raises:
            CheckpointError: one is missing.
        """
        missing = [item.name for item in fields(cls) if item.name not in arrays]
        if missing:
            raise CheckpointError(f"The measured weights lack '{missing[0]}'. Measure them again.")
        return cls(**{item.name: arrays[item.name] for item in fields(cls)})


@dataclass(frozen=True, eq=False)
class Geometry(Sums):
    """Task vectors of K experts in L layers, as sums over a layer's entries (float64).

    ``inner`` (L, K, K) is ⟨τ_i, τ_j⟩; ``signed`` and ``both`` (L, K, K) are Σ sgn τ_i sgn τ_j and how many entries are
    non-zero in both; ``elected`` (L, K) counts the entries of an expert with the sign of Σ_j τ_j; ``absolute`` (L, K)
    is ‖τ_k‖₁ and ``absolute_sum`` (L,) is ‖Σ_k τ_k‖₁; ``base`` (L,) is ‖θ_0‖²; ``size`` (L,) counts parameters.
    """

    inner: np.ndarray
    signed: np.ndarray
    both: np.ndarray
    elected: np.ndarray
    absolute: np.ndarray
    absolute_sum: np.ndarray
    base: np.ndarray
    size: np.ndarray


@dataclass(frozen=True, eq=False)
class Kept(Sums):
    """Part of every expert in a merged vector m, as sums over the entries of a layer, each of shape (L, K).

    ``moved`` counts the expert's non-zero entries; of those ``zeroed`` are zero in m, ``same`` have m's sign and
    ``flipped`` the other one. ``kept_square`` is Σ τ_k² over the entries of the same sign, ``square`` over all;
    ``inner`` is ⟨m, τ_k⟩ and ``merged_square`` is ‖m‖² (per expert, since a merge may depend on the task).
    """

    moved: np.ndarray
    zeroed: np.ndarray
    same: np.ndarray
    flipped: np.ndarray
    kept_square: np.ndarray
    square: np.ndarray
    inner: np.ndarray
    merged_square: np.ndarray


def geometry(base: Weights, task_vectors: TaskVectors, progress: Progress | None = None) -> Geometry:
    """Measure norms, angles and signs of task vectors.

    Args:
        base: the pretrained weights.
        task_vectors: of K experts.
        progress: told how much is done.

    Returns:
        Sums over the entries of every layer.
    """
    count, names = len(task_vectors.experts), task_vectors.names
    rows: dict[str, list[np.ndarray]] = {item.name: [] for item in fields(Geometry)}
    for index, name in enumerate(names):
        stack = task_vectors.stack(name).reshape(count, -1)
        found = {key: torch.zeros(shape, dtype=torch.float64) for key, shape in _shapes(count).items()}
        for part in stack.split(COLUMNS, dim=1):
            for key, value in _geometry_of(part).items():
                found[key] += value
        start = base.tensor(name).double()
        rows["base"].append(np.asarray(float((start * start).sum())))
        rows["size"].append(np.asarray(float(stack.shape[1])))
        for key, value in found.items():
            rows[key].append(value.numpy())
        if progress:
            progress((index + 1) / len(names), f"Task vectors of {name}")
    return Geometry(**{key: np.stack(values) for key, values in rows.items()})


def kept(task_vectors: TaskVectors, merged: MergedVector, progress: Progress | None = None) -> Kept:
    """Compare a merged vector with every expert's task vector, entry by entry.

    An entry counts as zeroed where the merged weight equals the base's; an addition that is lost in the rounding of
    float32 looks the same.

    Args:
        task_vectors: of K experts.
        merged: maps a layer and an expert to the vector that the merged model adds to the base for that expert's task.
        progress: told how much is done.
    """
    names, experts = task_vectors.names, task_vectors.experts
    shape = (len(names), len(experts))
    found = {item.name: np.zeros(shape) for item in fields(Kept)}
    for row, name in enumerate(names):
        for column, expert in enumerate(experts):
            vector = task_vectors.vector(name, expert).reshape(-1)
            other = merged(name, expert).reshape(-1)
            for left, right in zip(vector.split(COLUMNS), other.split(COLUMNS), strict=True):
                for key, value in _kept_of(left, right).items():
                    found[key][row, column] += value
        if progress:
            progress((row + 1) / len(names), f"What was kept of {name}")
    return Kept(**found)


def singular_values(matrix: Tensor) -> np.ndarray:
    """Return the singular values of a matrix, descending, float64 of shape (min(m, n),).

    They are roots of the eigenvalues of the smaller Gram matrix in float64, so values below 1.5e-8 of the largest are
    not resolved; float32 weights do not resolve them either.
    """
    wide = matrix.double() if matrix.shape[0] <= matrix.shape[1] else matrix.double().T
    squares = torch.linalg.eigvalsh(wide @ wide.T).clamp_(min=0)
    return squares.sqrt_().flip(0).numpy()


def _shapes(count: int) -> dict[str, tuple[int, ...]]:
    pair = (count, count)
    return {
        "inner": pair,
        "signed": pair,
        "both": pair,
        "elected": (count,),
        "absolute": (count,),
        "absolute_sum": (),
    }


def _geometry_of(part: Tensor) -> dict[str, Tensor]:
    """Return the sums of some entries (K, n)."""
    exact, signs = part.double(), part.sign().float()
    there, total = signs.abs(), exact.sum(dim=0)
    agree = (signs != 0) & (signs == total.sign().float())
    return {
        "inner": exact @ exact.T,
        "signed": (signs @ signs.T).double(),
        "both": (there @ there.T).double(),
        "elected": agree.sum(dim=1).double(),
        "absolute": exact.abs().sum(dim=1),
        "absolute_sum": total.abs().sum(),
    }


def _kept_of(vector: Tensor, merged: Tensor) -> dict[str, float]:
    """Return the sums of some entries (n,)."""
    exact, other = vector.double(), merged.double()
    product = vector.sign() * merged.sign()
    moved, same, flipped = vector != 0, product > 0, product < 0
    square = exact * exact
    return {
        "moved": float(moved.sum()),
        "zeroed": float((moved & (merged == 0)).sum()),
        "same": float(same.sum()),
        "flipped": float(flipped.sum()),
        "kept_square": float((square * same).sum()),
        "square": float(square.sum()),
        "inner": float(exact @ other),
        "merged_square": float(other @ other),
    }
