"""Measures of task vectors and merges, layer by layer: the table of measures with their meaning.

Arrays are sums over the entries of a layer (``engine.analysis.weights``), so a total is the measure of their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class LayerMeasure:
    """A number for every layer and expert, or for every layer alone (``together``)."""

    title: str
    unit: str
    says: str  # what it means, for people
    compute: Callable[[Arrays], np.ndarray]  # → (L, K), or (L, 1) if it is of all experts together
    signed: bool = False
    together: bool = False
    digits: int = 3


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Divide, NaN where there is nothing to divide by."""
    above, below = np.broadcast_arrays(np.asarray(above, float), np.asarray(below, float))
    return np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)


def _squares(arrays: Arrays) -> np.ndarray:
    return np.diagonal(arrays["inner"], axis1=-2, axis2=-1)


def cosines(arrays: Arrays) -> np.ndarray:
    """Return the cosines between task vectors, (L, K, K); NaN where one of them is zero."""
    norms = np.sqrt(_squares(arrays))
    return ratio(arrays["inner"], norms[..., :, None] * norms[..., None, :])


def conflicts(arrays: Arrays) -> np.ndarray:
    """Return the percent of the entries that two experts both move whose signs differ, (L, K, K)."""
    return 50 * ratio(arrays["both"] - arrays["signed"], arrays["both"])


def _with_others(pairs: np.ndarray) -> np.ndarray:
    """Return the mean over the other experts of a matrix of pairs (L, K, K) → (L, K)."""
    count = pairs.shape[-1]
    if count < 2:
        return np.full(pairs.shape[:-1], np.nan)
    others = pairs[..., ~np.eye(count, dtype=bool)].reshape(*pairs.shape[:-1], count - 1)
    known = np.isfinite(others)
    return ratio(np.where(known, others, 0).sum(axis=-1), known.sum(axis=-1))


GEOMETRY: dict[str, LayerMeasure] = {
    "relative": LayerMeasure(
        "Norm, relative to the base",
        "‖τ‖ / ‖θ₀‖ in percent",
        "How far fine-tuning moved a layer, measured by the length of its pretrained weights.",
        lambda a: 100 * ratio(np.sqrt(_squares(a)), np.sqrt(a["base"])[:, None]),
        digits=2,
    ),
    "norm": LayerMeasure(
        "Norm",
        "‖τ‖, Euclidean",
        "The length of the change. Large matrices are long because they have many entries.",
        lambda a: np.sqrt(_squares(a)),
        digits=4,
    ),
    "rms": LayerMeasure(
        "Change per parameter",
        "Root mean square of τ",
        "How far a single parameter moved, so that small layers compare with large ones.",
        lambda a: np.sqrt(ratio(_squares(a), a["size"][:, None])),
        digits=6,
    ),
    "cosine": LayerMeasure(
        "Cosine with the other experts",
        "Mean cosine between task vectors",
        "Zero: the experts moved the layer in unrelated directions, so their sum keeps every one of them. Positive: "
        "they moved it alike, and a sum counts that direction several times.",
        lambda a: _with_others(cosines(a)),
        signed=True,
    ),
    "elected": LayerMeasure(
        "Agreement with the elected sign",
        "Percent of the expert's moved entries",
        "Entries with the sign of the summed task vectors. A merge that elects signs (TIES) can keep these only; "
        "with unrelated experts a little more than half of them agree.",
        lambda a: 100 * ratio(a["elected"], np.diagonal(a["both"], axis1=-2, axis2=-1)),
        digits=1,
    ),
    "conflict": LayerMeasure(
        "Sign conflict with the other experts",
        "Percent of entries that both move, mean over pairs",
        "Fifty percent is what unrelated experts have; less means that they pull the same way.",
        lambda a: _with_others(conflicts(a)),
        digits=1,
    ),
    "cancelled": LayerMeasure(
        "Lost to cancellation",
        "1 − ‖Σ τ‖₁ / Σ ‖τ‖₁ in percent",
        "How much of the summed magnitudes is gone once opposite signs have cancelled each other out.",
        lambda a: 100 * (1 - ratio(a["absolute_sum"], a["absolute"].sum(axis=1)))[:, None],
        together=True,
        digits=1,
    ),
}

KEPT: dict[str, LayerMeasure] = {
    "coefficient": LayerMeasure(
        "Effective coefficient",
        "⟨m, τ⟩ / ‖τ‖²",
        "How much of an expert's own direction is in the merged model. Task Arithmetic of unrelated experts has λ "
        "everywhere; one would be the expert itself, and what other experts add in the same direction counts too.",
        lambda a: ratio(a["inner"], a["square"]),
        signed=True,
    ),
    "kept_norm": LayerMeasure(
        "Norm kept",
        "‖τ where m has its sign‖ / ‖τ‖ in percent",
        "The share of the expert's length that lies in entries which the merge moves the same way.",
        lambda a: 100 * np.sqrt(ratio(a["kept_square"], a["square"])),
        digits=1,
    ),
    "zeroed": LayerMeasure(
        "Zeroed",
        "Percent of the expert's moved entries",
        "Entries that the merge gives back to the base: trimmed, masked, or in a pruned layer.",
        lambda a: 100 * ratio(a["zeroed"], a["moved"]),
        digits=1,
    ),
    "flipped": LayerMeasure(
        "Flipped",
        "Percent of the expert's moved entries",
        "Entries that the merge moves against the expert, because other experts outweigh it there.",
        lambda a: 100 * ratio(a["flipped"], a["moved"]),
        digits=1,
    ),
    "cosine": LayerMeasure(
        "Cosine with the merged vector",
        "cos(m, τ)",
        "One: the merged vector points where the expert's does. For K unrelated experts of equal length it is 1/√K.",
        lambda a: ratio(a["inner"], np.sqrt(a["merged_square"] * a["square"])),
        signed=True,
    ),
}


def totals(arrays: Arrays, measure: LayerMeasure) -> np.ndarray:
    """Return a measure over all layers together, (K,) or (1,)."""
    return measure.compute({name: values.sum(axis=0, keepdims=True) for name, values in arrays.items()})[0]
