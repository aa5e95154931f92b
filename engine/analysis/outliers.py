"""Distances to class prototypes, and how well they tell images that belong to no known class."""

# ruff: noqa: F722
from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from ..errors import DataError


def prototypes(features: Float[np.ndarray, "n dim"], classes: Int[np.ndarray, " n"]) -> Float[np.ndarray, "k dim"]:
    """Return the mean feature of every class that occurs, in ascending order of the classes."""
    if len(features) != len(classes) or not len(features):
        raise DataError(
            f"{len(features)} features and {len(classes)} classes were given; one class a feature is needed."
        )
    return np.stack([features[classes == number].mean(0) for number in np.unique(classes)])


def prototype_distance(
    features: Float[np.ndarray, "n dim"], centres: Float[np.ndarray, "k dim"]
) -> Float[np.ndarray, " n"]:
    """Return the Euclidean distance of every feature to the nearest prototype, in feature units."""
    squares = (features**2).sum(1)[:, None] - 2 * features @ centres.T + (centres**2).sum(1)
    return np.sqrt(np.maximum(squares, 0).min(1))


def auroc(inside: Float[np.ndarray, " n"], outside: Float[np.ndarray, " m"]) -> float:
    """Return the probability that an outside score is above an inside one, ties counting half; 0.5 is chance.

    Raises:
        DataError: a side is empty.
    """
    if not len(inside) or not len(outside):
        raise DataError(f"AUROC compares two sets of scores; found {len(inside)} and {len(outside)}.")
    from sklearn.metrics import roc_auc_score

    truth = np.repeat([0, 1], [len(inside), len(outside)])
    return float(roc_auc_score(truth, np.concatenate([inside, outside])))


def placements(
    inside: Float[np.ndarray, " n"], outside: Float[np.ndarray, " m"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]]:
    """Return for every inside score the share of outside ones above it, and for every outside score those below it.

    Ties count half; the mean of either is the AUROC.

    Raises:
        DataError: a side is empty.

    Source: DeLong et al., Biometrics 44 (1988), pp. 837–845.
    """
    if not len(inside) or not len(outside):
        raise DataError(f"AUROC compares two sets of scores; found {len(inside)} and {len(outside)}.")

    def below(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
        ordered = np.sort(others)
        places = [np.searchsorted(ordered, scores, side) for side in ("left", "right")]
        return (places[0] + places[1]) / (2 * len(others))

    return 1.0 - below(inside, outside), below(outside, inside)


def plane_of(
    known: Float[np.ndarray, "n dim"], centres: Float[np.ndarray, "k dim"]
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "2 dim"], float]:
    """Return the plane in which a task's features spread most: its origin, two directions, its share of the variance.

    Args:
        known: features that the prototypes were made of.
        centres: the prototypes; their mean is the origin.
    """
    origin = centres.mean(0)
    _, strengths, directions = np.linalg.svd(known - origin, full_matrices=False)
    plane = np.zeros((2, known.shape[1]), dtype=known.dtype)
    plane[: min(2, len(directions))] = directions[:2]
    total = float((strengths**2).sum())
    return origin, plane, float((strengths[:2] ** 2).sum()) / total if total else 1.0
