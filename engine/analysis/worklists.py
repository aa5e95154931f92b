"""Images worth a look, as row numbers: those that two models judge differently, and those with the highest values."""

# ruff: noqa: F722
from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

Right = Bool[np.ndarray, " n"]


def lost(before: Right, after: Right, among: Right) -> Int[np.ndarray, " k"]:
    """Return the images that were right before and are wrong after.

    Args:
        before: whether the first model is right about each image.
        after: whether the second one is.
        among: whether an image counts; others are left out.
    """
    return np.flatnonzero(among & before & ~after)


def gained(before: Right, after: Right, among: Right) -> Int[np.ndarray, " k"]:
    """Return the images that were wrong before and are right after; arguments as of :func:`lost`."""
    return lost(after, before, among)


def highest(values: Float[np.ndarray, " n"], among: Right, count: int) -> Int[np.ndarray, " k"]:
    """Return the images with the highest known values, at most ``count``, in ascending order of their rows.

    Of equal values the first rows count.
    """
    rows = np.flatnonzero(among & np.isfinite(values))
    return np.sort(rows[np.argsort(-values[rows], kind="stable")[:count]])
