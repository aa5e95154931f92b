"""Separation of a task's classes by where their images lie in feature space."""

# ruff: noqa: F722
from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from ..errors import DataError
from .neighbours import distances

NEIGHBOURS = 10


def silhouette(features: Float[np.ndarray, "n dim"], labels: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return every image's silhouette coefficient among the classes, by cosine distance as the head sees features.

    Args:
        features: un-normalised.
        labels: of the same images.

    Returns:
        From −1 (the image lies nearer to another class) over 0 to 1 (its class is compact and far from others).

    Raises:
        DataError: fewer than two classes, or no two images of one.

    Source: Rousseeuw 1987, doi:10.1016/0377-0427(87)90125-7.
    """
    from sklearn.metrics import silhouette_samples

    _check(features, labels)
    return np.asarray(silhouette_samples(features, labels, metric="cosine"), dtype=np.float64)


def neighbours_of_own_class(
    features: Float[np.ndarray, "n dim"], labels: Int[np.ndarray, " n"], count: int = NEIGHBOURS
) -> Float[np.ndarray, " n"]:
    """Return for every image the percent of its nearest others, by cosine distance, that are of its class.

    Args:
        features: un-normalised.
        labels: of the same images.
        count: how many others; all where there are fewer.

    Raises:
        DataError: fewer than two classes, or no two images of one.
    """
    _check(features, labels)
    away = distances(features, features)
    np.fill_diagonal(away, np.inf)
    nearest = np.argsort(away, axis=1, kind="stable")[:, : min(count, len(features) - 1)]
    return 100 * np.mean(labels[nearest] == labels[:, None], axis=1)


def _check(features: np.ndarray, labels: np.ndarray) -> None:
    classes = len(np.unique(labels))
    if len(features) != len(labels) or not 1 < classes < len(labels):
        raise DataError(
            f"There are {len(features)} features and {len(labels)} labels of {classes} classes; it takes as many of "
            "both, and at least two classes with more images than classes."
        )
