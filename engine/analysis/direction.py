"""Shifts of features seen by a head: toward which wrong class, and how much of a shift the head can see at all."""

# ruff: noqa: F722
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from .pairs import paired

TOLERANCE = 1e-6  # of the largest singular value: directions below are none


@dataclass(frozen=True, eq=False)
class Directions:
    """The shifts of n images from an expert's feature to a state's, both of unit length; C classes, d dimensions.

    ``rival`` is the wrong class that the state likes best. ``push`` is what the shift adds to the rival's logit less
    what it adds to the true class's; ``chance`` is the same of another image's shift of the task: the control, which
    one image alone lacks (NaN).
    ``inside`` is the share of the squared shift that lies in the span of the head's differences, so that it can change
    a verdict; ``along`` the share on the line from the true class's row to the rival's.
    """

    rival: Int[np.ndarray, " n"]
    length: Float[np.ndarray, " n"]
    push: Float[np.ndarray, " n"]
    chance: Float[np.ndarray, " n"]
    inside: Float[np.ndarray, " n"]
    along: Float[np.ndarray, " n"]
    margin: Float[np.ndarray, " n"]  # true class's logit less the rival's, of the state
    expert_margin: Float[np.ndarray, " n"]
    rank: int  # of the span; rank / d of a random shift's square lies in it


def directions(
    state: Float[np.ndarray, "n dim"],
    expert: Float[np.ndarray, "n dim"],
    labels: Int[np.ndarray, " n"],
    weight: Float[np.ndarray, "classes dim"],
    scale: float,
    *,
    seed: int = 0,
) -> Directions:
    """Return where each image's feature went, as its head sees it.

    Args:
        state: un-normalised features of a state.
        expert: the expert's of the same images.
        labels: true classes.
        weight: the head, rows of unit length; at least two.
        scale: exp(logit_scale).
        seed: of the other images that the control takes shifts from.

    Raises:
        UnpairedFeatures: shapes differ, or there are no images.
    """
    state, expert = paired(state, expert)
    moved, start = _unit(state), _unit(expert)
    shift, rows = moved - start, np.arange(len(state))
    scores = scale * moved @ weight.T
    wrong = scores.copy()
    wrong[rows, labels] = -np.inf
    rival = wrong.argmax(1)
    toward = weight[rival] - weight[labels]
    order = np.random.default_rng(seed).permutation(len(shift))
    another = np.empty_like(order)
    another[order] = np.roll(order, 1)
    basis = _span(weight)
    square = (shift**2).sum(1)
    safe = np.where(square > 0, square, 1.0)
    lines = np.linalg.norm(toward, axis=1)
    on_line = (shift * toward).sum(1) / np.where(lines > 0, lines, 1.0)
    return Directions(
        rival=rival,
        length=np.sqrt(square),
        push=scale * (shift * toward).sum(1),
        chance=scale * (shift[another] * toward).sum(1) if len(shift) > 1 else np.full(1, np.nan),
        inside=((shift @ basis.T) ** 2).sum(1) / safe,
        along=on_line**2 / safe,
        margin=scores[rows, labels] - scores[rows, rival],
        expert_margin=scale * (start * -toward).sum(1),
        rank=len(basis),
    )


def _unit(features: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(lengths > 0, lengths, 1.0)


def _span(weight: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis (rank, dim) of the differences between a head's rows."""
    _, values, rows = np.linalg.svd(weight - weight.mean(0), full_matrices=False)
    return rows[values > TOLERANCE * values.max()] if values.size and values.max() > 0 else rows[:0]
