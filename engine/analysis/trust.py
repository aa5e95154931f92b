"""Trustworthiness of neighbourhoods in a projection."""

# ruff: noqa: F722
from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from .neighbours import distances

NEIGHBOURHOOD = 15
ANCHORS = 500
CHUNK = 250


def trust(
    features: Float[np.ndarray, "n dim"],
    points: Float[np.ndarray, "n 2"],
    size: int = NEIGHBOURHOOD,
    anchors: int = ANCHORS,
) -> dict[str, Any]:
    """Compare Euclidean neighbourhoods in feature space and in the plane.

    Args:
        features: of the projected points.
        points: where they went.
        size: neighbours k; lowered to (n − 1) / 2 where there are few points.
        anchors: at most so many points, spread evenly over the rows, are asked for their neighbourhoods, so that
            memory and time grow with n, not with n².

    Returns:
        ``trustworthiness``: 1 if every neighbour in the plane is one in feature space, less by how far in feature
        space the intruders are; ``neighbour_overlap``: mean share of the k neighbours that are the same;
        ``neighbourhood`` k and ``anchors`` used.

    Source: Venna and Kaski, ICANN 2001 (trustworthiness). Departure: a mean over anchors instead of all points.
    """
    n = len(features)
    size = max(1, min(size, (n - 1) // 2))
    chosen = np.unique(np.linspace(0, n - 1, min(n, anchors)).astype(np.int64))
    intrusion, shared = 0.0, 0
    for start in range(0, len(chosen), CHUNK):
        rows = chosen[start : start + CHUNK]
        ranks = _ranks(features, rows)
        near = np.argsort(_away(points, rows), axis=1, kind="stable")[:, :size]
        found = np.take_along_axis(ranks, near, axis=1)
        intrusion += float(np.maximum(found - size, 0).sum())
        shared += int((found <= size).sum())
    worst = len(chosen) * size * (2 * n - 3 * size - 1) / 2
    return {
        "trustworthiness": float(1.0 - intrusion / worst) if worst > 0 else 1.0,
        "neighbour_overlap": float(shared / (len(chosen) * size)),
        "neighbourhood": int(size),
        "anchors": len(chosen),
    }


def _away(positions: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the distances of some rows to all, infinite to themselves."""
    away = distances(positions[rows], positions, "euclidean")
    away[np.arange(len(rows)), rows] = np.inf
    return away


def _ranks(features: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the rank of every point among the neighbours of some rows: 1 is the nearest, n the row itself."""
    order = np.argsort(_away(features, rows), axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(1, order.shape[1] + 1)[None].repeat(len(rows), 0), axis=1)
    return ranks
