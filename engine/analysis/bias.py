"""Representation bias: how far a state's features are from the expert's.

Every function takes un-normalised features of the same images in the same order, shape (n, dim), and raises
``UnpairedFeatures`` when they are not.
"""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float, Int

from ..errors import UnpairedFeatures
from .pairs import Features, paired

Measure = Callable[[Features, Features], float]


def l1(state: Features, expert: Features) -> float:
    """Return the mean over images and dimensions of |z − z_expert|, in feature units; 0 iff equal.

    Source: Yang et al., ICML 2024, arXiv:2402.02705, Eq. 2.
    """
    return float(sample_l1(state, expert).mean())


def l2(state: Features, expert: Features) -> float:
    """Return the mean over images of the Euclidean distance ‖z − z_expert‖₂, in feature units; 0 iff equal."""
    return float(sample_shift(state, expert).mean())


def cosine(state: Features, expert: Features) -> float:
    """Return the mean over images of 1 − cos(z, z_expert), from 0 (same direction) to 2.

    A zero vector has no direction: it counts 0 against another zero vector and 1 against anything else.
    """
    return float(sample_cosine(state, expert).mean())


def cka(state: Features, expert: Features) -> float:
    """Return the linear CKA of the centred features, from 0 (unrelated) to 1 (equal up to rotation, shift and scale).

    Returns:
        ‖XᵀY‖²_F / (‖XᵀX‖_F ‖YᵀY‖_F); NaN where a side does not vary (as with a single image).

    Source: Kornblith et al., ICML 2019, arXiv:1905.00414, §3.
    """
    z, target = paired(state, expert)
    z, target = z - z.mean(0), target - target.mean(0)
    if len(z) <= z.shape[1]:  # the same numbers from the smaller Gram matrices
        left, right = z @ z.T, target @ target.T
        cross = (left * right).sum()
    else:
        left, right = z.T @ z, target.T @ target
        cross = np.square(z.T @ target).sum()
    scale = np.linalg.norm(left) * np.linalg.norm(right)
    return float(min(cross / scale, 1.0)) if scale > 0 else float("nan")


def sample_l1(state: Features, expert: Features) -> Float[np.ndarray, " n"]:
    """Return for every image the mean over dimensions of |z − z_expert|, in feature units."""
    z, target = paired(state, expert)
    return np.abs(z - target).mean(axis=1, dtype=np.float64)


def sample_cosine(state: Features, expert: Features) -> Float[np.ndarray, " n"]:
    """Return 1 − cos(z, z_expert) of every image, see :func:`cosine`."""
    z, target = paired(state, expert)
    lengths, target_lengths = np.linalg.norm(z, axis=1), np.linalg.norm(target, axis=1)
    product = lengths * target_lengths
    similarity = np.divide((z * target).sum(1), product, out=np.zeros(len(z)), where=product > 0)
    similarity[(lengths == 0) & (target_lengths == 0)] = 1.0
    return 1.0 - np.clip(similarity, -1.0, 1.0)


def sample_shift(state: Features, expert: Features) -> Float[np.ndarray, " n"]:
    """Return the Euclidean distance of every image's feature to the expert's, in feature units."""
    z, target = paired(state, expert)
    return np.linalg.norm(z - target, axis=1)


BY_IMAGE = {"l1": sample_l1, "l2": sample_shift, "cosine": sample_cosine}  # measures that are means over images
MEASURES: dict[str, Measure] = {"l1": l1, "l2": l2, "cosine": cosine, "cka": cka}


def by_class(
    measure: Measure, state: Features, expert: Features, labels: Int[np.ndarray, " n"], classes: int
) -> tuple[float | None, ...]:
    """Return a measure on the images of each class, None for classes without images (or where it is undefined).

    Args:
        measure: one of ``MEASURES``.
        state: features of the state.
        expert: features of the expert.
        labels: class numbers, 0 ≤ label < classes.
        classes: number of classes of the task.
    """
    paired(state, expert)
    if len(labels) != len(state):
        raise UnpairedFeatures(f"{len(labels)} labels were given for {len(state)} features; one each is needed.")
    chosen = (labels == number for number in range(classes))
    return tuple(_or_none(measure(state[rows], expert[rows])) if rows.any() else None for rows in chosen)


def bias_of(
    features: Mapping[str, Features],
    expert: Mapping[str, Features],
    labels: Mapping[str, Int[np.ndarray, " n"]] | None = None,
    classes: Mapping[str, int] | None = None,
) -> dict[str, dict[str, float | tuple[float | None, ...] | None]]:
    """Return the report's bias part of one state.

    Args:
        features: task → features of the state.
        expert: task → features of the task's expert; tasks without one are left out of the result.
        labels: task → class numbers, for the part by class.
        classes: task → number of classes.

    Returns:
        ``l1``, ``l2``, ``cosine``, ``cka``: task → value (None where undefined); with labels also ``l1_by_class``:
        task → one value per class.
    """
    tasks = [task for task in features if task in expert]
    part: dict[str, dict] = {
        name: {task: _or_none(measure(features[task], expert[task])) for task in tasks}
        for name, measure in MEASURES.items()
    }
    if labels is not None and classes is not None:
        part["l1_by_class"] = {
            task: by_class(l1, features[task], expert[task], labels[task], classes[task]) for task in tasks
        }
    return part


def _or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None
