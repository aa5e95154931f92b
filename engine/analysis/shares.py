"""The shares of experts in a merged vector, layer by layer, and the fate of their entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from ..merging.assemble import flat
from ..merging.attribution import Layer
from ..types import Progress, TaskVectors

COLUMNS = 2**16  # entries of a layer that are looked at together
REST = 1e-3  # share of the squared norm that may be left over by experts whose contributions are found in the result
FATES = ("kept", "trimmed", "outvoted", "dropped", "unmoved")
Attribution = Literal["entries", "layers", "none"]


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of K experts in the merged vector Δ of L layers, as sums over a layer's entries (float64).

    An expert's share of a layer is ⟨c_k, Δ⟩ / ⟨Δ, Δ⟩, the length of its contribution c_k along Δ in units of ‖Δ‖. It
    is negative where the contribution points against Δ. Where Δ = Σ_k c_k shares sum to one; ``rest`` is what is left.

    ``products`` (L, K) is ⟨c_k, Δ⟩; ``along`` (L, K) is ⟨τ_k, Δ⟩ and ``squares`` (L, K) is ‖τ_k‖², of the experts' own
    task vectors; ``merged`` (L,) is ‖Δ‖²; ``entries`` (L,) counts parameters. ``fates`` (L, K, 5) counts the entries of
    an expert that were kept; trimmed by the method for their size or by chance; outvoted, as they went against the
    elected sign or too few others agreed; dropped by a transform (a layer that LwPTV pruned, DARE); and those that
    fine-tuning had not moved.
    """

    attribution: Attribution
    products: np.ndarray
    along: np.ndarray
    squares: np.ndarray
    merged: np.ndarray
    entries: np.ndarray
    fates: np.ndarray

    def share(self, layers: slice = slice(None)) -> np.ndarray:
        """Return the experts' shares (K,) of some layers together; NaN where nothing was merged."""
        merged = self.merged[layers].sum()
        return self.products[layers].sum(axis=0) / merged if merged > 0 else np.full(self.products.shape[1], np.nan)

    def cosine(self, layers: slice = slice(None)) -> np.ndarray:
        """Return the cosines (K,) of the merged vector with the experts' own, over some layers; NaN where one is 0."""
        lengths = np.sqrt(self.squares[layers].sum(axis=0) * self.merged[layers].sum())
        found = np.full(lengths.shape, np.nan)
        return np.divide(self.along[layers].sum(axis=0), lengths, out=found, where=lengths > 0)

    def fate(self, layers: slice = slice(None)) -> np.ndarray:
        """Return the fractions (K, 5) of the experts' entries that met each fate, in the order of FATES."""
        return self.fates[layers].sum(axis=0) / max(int(self.entries[layers].sum()), 1)


def shares(
    task_vectors: TaskVectors,
    changed: TaskVectors,
    merged: Callable[[str], Tensor],
    layer: Layer | None,
    rescaled: bool = False,
    progress: Progress | None = None,
) -> Shares:
    """Measure the experts' shares in a merged vector.

    Args:
        task_vectors: the experts' own, τ_k.
        changed: those that the merge method saw, after transforms.
        merged: maps a layer's name to Δ, what the merged model adds to the base there.
        layer: the experts' contributions as the method's row states them. Without it, each layer's Δ is written as
            Σ_k a_k τ_k with the a_k of least squares, which is exact for every method that gives an expert one
            coefficient a layer. Where that leaves more than a thousandth of ‖Δ‖² over, the entries of the merged vector
            belong to no single expert and there are no shares.
        rescaled: a transform scaled the merged layers afterwards, and contributions with them.
        progress: told how far it is.

    Returns:
        Shares; of attribution ``none``, with zeros for products, where there are none.
    """
    rows = []
    for number, name in enumerate(task_vectors.names):
        if progress:
            progress(number / len(task_vectors.names), f"Shares of {name}")
        rows.append(_layer(name, task_vectors, changed, merged(name), layer, rescaled))
    products, along, squares, total, entries, fates = (np.array(column) for column in zip(*rows, strict=True))
    rest = 1 - products.sum() / total.sum() if total.sum() > 0 else 0.0
    attribution: Attribution = "entries" if layer else "layers" if abs(rest) <= REST else "none"
    if attribution == "none":
        products = np.zeros_like(products)
    return Shares(attribution, products, along, squares, total, entries, fates)


def _layer(
    name: str, task_vectors: TaskVectors, changed: TaskVectors, merged: Tensor, layer: Layer | None, rescaled: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, int, np.ndarray]:
    """Return the rows of one layer, in the order of the record's arrays."""
    own, seen = flat(task_vectors.stack(name)), flat(changed.stack(name))
    parts = layer(name) if layer else None
    count = len(own)
    products, along, squares = np.zeros(count), np.zeros(count), np.zeros(count)
    gram, fates = np.zeros((count, count)), np.zeros((count, len(FATES)), np.int64)
    total = added = 0.0
    for columns in _columns(own.shape[1]):
        tau, used = own[:, columns].double().numpy(), seen[:, columns].double().numpy()
        delta = merged.reshape(-1)[columns].double().numpy()
        total += (delta * delta).sum()
        along += (tau * delta).sum(axis=1)
        squares += (tau * tau).sum(axis=1)
        moved, left = (tau != 0) | (used != 0), used != 0
        if parts is None:
            gram += used @ used.T
            products += (used * delta).sum(axis=1)
            survived = kept = left
        else:
            part = parts.vectors[:, columns].double().numpy()
            products += (part * delta).sum(axis=1)
            added += (part.sum(axis=0) ** 2).sum()
            survived, kept = (mask[:, columns].numpy() & left for mask in (parts.survived, parts.kept))
        counts = (kept, left & ~survived, survived & ~kept, moved & ~left, ~moved)
        fates += np.stack([mask.sum(axis=1) for mask in counts], axis=1)
    if parts is None:
        products *= np.linalg.lstsq(gram, products, rcond=1e-12)[0]
    elif rescaled and added > 0:
        products *= products.sum() / added
    return products, along, squares, total, own.shape[1], fates


def _columns(size: int) -> Iterator[slice]:
    return (slice(first, first + COLUMNS) for first in range(0, size, COLUMNS))
