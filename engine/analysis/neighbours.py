"""Nearest neighbours in feature space, never in a projection."""

# ruff: noqa: F722
from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from ..errors import DataError

Metric = Literal["cosine", "euclidean"]


def distances(
    queries: Float[np.ndarray, "m dim"], features: Float[np.ndarray, "n dim"], metric: Metric = "cosine"
) -> Float[np.ndarray, "m n"]:
    """Return the distances of every query to every feature.

    Args:
        queries: features of the images asked about.
        features: features of the images searched.
        metric: ``cosine``: 1 − cos, 1 for a zero vector; ``euclidean``: in feature units.
    """
    queries, features = (np.asarray(array, dtype=np.float64) for array in (queries, features))
    if metric == "cosine":
        return 1.0 - np.clip(_directions(queries) @ _directions(features).T, -1.0, 1.0)
    squares = np.square(queries).sum(1)[:, None] + np.square(features).sum(1)[None] - 2 * queries @ features.T
    return np.sqrt(np.maximum(squares, 0.0))


def nearest_neighbours(
    features: Float[np.ndarray, "n dim"], row: int, count: int, metric: Metric = "cosine"
) -> tuple[Int[np.ndarray, " found"], Float[np.ndarray, " found"]]:
    """Return the images most like one image in feature space, nearest first, itself excluded.

    Args:
        features: of one state; un-normalised.
        row: the image asked about.
        count: how many; fewer are returned if there are fewer.
        metric: see :func:`distances`.

    Returns:
        Their rows and distances; of equal distances the lower row first.

    Raises:
        DataError: there is no such row.
    """
    if not 0 <= row < len(features):
        raise DataError(f"There is no image {row}: the features have {len(features)} rows.")
    away = distances(features[row : row + 1], features, metric)[0]
    away[row] = np.inf
    order = np.argsort(away, kind="stable")[: min(count, len(features) - 1)]
    return order, away[order]


def _directions(features: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(lengths > 0, lengths, 1.0)
