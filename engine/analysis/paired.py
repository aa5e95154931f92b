"""Differences of accuracies on the same images, with intervals, and what they allow to say.

The unit is the image. Correctness of both sides is compared image by image, tasks are fixed, and what was left to
chance is resampled: training seeds, and within each task images.
"""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri, stdtrit

from ..errors import DataError

RESAMPLES = 10_000
CONFIDENCE = 0.95
MARGIN = 0.5  # percentage points up to which a difference counts as none
Outcome = Literal["seen", "opposite seen", "no difference", "undecided"]
Correct = Bool[np.ndarray, "seeds images"]
Values = Float[np.ndarray, "seeds units"]
CHUNK = 2_000_000  # counts that are drawn at once
FEW = 30  # units of a part, below which resampling them tells too little of their spread
SHARED = 2_500  # units up to which parts share their draws
SHIFT = 617  # draws between one part and the next


@dataclass(frozen=True)
class Difference:
    """A difference of two accuracies in percentage points, mean over tasks, with its interval."""

    mean: float
    low: float
    high: float
    images: int  # over all tasks
    seeds: int
    agreeing: int = 0  # right answers that tell nothing of their spread, since all changed alike; 0 where they do

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the interval that judgements go by; where all answers changed alike, by :func:`otherwise`."""
        if not self.agreeing:
            return self.low, self.high
        share = otherwise(self.agreeing)
        return self.mean - share * (100 + self.mean), self.mean + share * (100 - self.mean)

    def outcome(self, margin: float = MARGIN) -> Outcome:
        """Return what the interval allows to say.

        Args:
            margin: percentage points; "no difference" is an equivalence test, the whole interval within ± margin.
        """
        low, high = self.bounds
        if low > 0:
            return "seen"
        if high < 0:
            return "opposite seen"
        return "no difference" if -margin <= low and high <= margin else "undecided"


def otherwise(images: int) -> float:
    """Return the share of images that may well be otherwise where all that were seen are alike: 3 of n, 95 % sure.

    So 0 changes on n images leave room for 300 / n points, and one image decides nothing; that all changed alike shows
    a difference from 7 images on.

    Source: Hanley and Lippman-Hand, JAMA 249 (1983), pp. 1743–1745: the rule of three.
    """
    return min(3 / images, 1.0)


def paired_difference(
    left: Mapping[str, Correct], right: Mapping[str, Correct], *, resamples: int = RESAMPLES, seed: int = 0
) -> Difference:
    """Compare two sides on the same images of the same tasks.

    Args:
        left: by task which images were classified correctly, a row a training seed.
        right: the same of what is subtracted; one row stands for all seeds where nothing was trained.
        resamples: of the bootstrap.
        seed: of the bootstrap.

    Returns:
        Left minus right. The interval (95 %) is that of a hierarchical bootstrap over training seeds and, within
        tasks, images; because few seeds say little about their spread, deviations are scaled by √(S / (S − 1)) and
        the interval is widened by Student's quantile at Satterthwaite's degrees of freedom. Answers that all changed
        alike have no spread to resample: their interval is that of :func:`otherwise`.

    Raises:
        DataError: no task in common, or other numbers of images or seeds.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapters 8 and 13; Satterthwaite, Biometrics
    Bulletin 2 (1946), pp. 110–114.
    """
    found = interval_of(_differences(left, right), resamples=resamples, seed=seed, right=True)
    low, high = found.bounds
    return replace(found, low=low, high=high, agreeing=0)


def interval_of(
    parts: Mapping[str, Values],
    *,
    mean: float | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    right: bool = False,
) -> Difference:
    """Return the mean over parts of their means, with its interval, see :func:`paired_difference`.

    Where a part has fewer than :data:`FEW` units (groups of experts, layers), the interval is Student's of the same
    variances and degrees of freedom: a bootstrap of a handful is too narrow.

    Args:
        parts: by task (or any other group that is fixed) a value for each training seed and unit, such as the
            difference of an image between two sides; all with equally many seeds.
        mean: what the interval lies around, where the values are a linear approximation of it.
        resamples: of the bootstrap.
        seed: of the bootstrap.
        right: whether the values are differences of right answers, in percentage points.

    Raises:
        DataError: no values, or different numbers of seeds.
    """
    if not parts or not all(matrix.size for matrix in parts.values()):
        raise DataError("There are no values to take an interval of.")
    if len(found := {len(matrix) for matrix in parts.values()}) > 1:
        raise DataError(f"The parts have {' and '.join(map(str, sorted(found)))} seeds; they need equally many.")
    seeds = found.pop()
    by_seed = np.mean([matrix.mean(axis=1) for matrix in parts.values()], axis=0)
    centre, generator = float(by_seed.mean()), np.random.default_rng(seed)
    around, tail = centre if mean is None else mean, (1 - CONFIDENCE) / 2
    count = sum(matrix.shape[1] for matrix in parts.values())
    variance, degrees = _variance(parts, by_seed)
    if right and variance == 0:
        alike = len(parts) * min(matrix.shape[1] for matrix in parts.values())
        return Difference(around, around, around, count, seeds, alike)
    student = stdtrit(degrees, 1 - tail)
    if min(matrix.shape[1] for matrix in parts.values()) < FEW:
        half = float(student * np.sqrt(variance))
        return Difference(around, around - half, around + half, count, seeds)
    drawn = np.mean(_resampled(list(parts.values()), resamples, seed, generator), axis=0)
    weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds
    if seeds > 1:
        weights = 1 / seeds + (weights - 1 / seeds) * np.sqrt(seeds / (seeds - 1))
    found_means = (weights * drawn).sum(axis=1)
    low, high = np.quantile(found_means, [tail, 1 - tail])
    wider = student / ndtri(1 - tail)
    return Difference(
        around, around + wider * (float(low) - centre), around + wider * (float(high) - centre), count, seeds
    )


def _differences(
    left: Mapping[str, Correct], right: Mapping[str, Correct]
) -> dict[str, Float[np.ndarray, "seeds images"]]:
    """Subtract correctness task by task, in percentage points."""
    tasks = [task for task in left if task in right and left[task].size]
    if not tasks:
        raise DataError("Both sides have no task with images in common, so there is nothing to compare.")
    found = {}
    for task in tasks:
        ours, theirs = np.atleast_2d(left[task]), np.atleast_2d(right[task])
        if ours.shape[1] != theirs.shape[1]:
            raise DataError(
                f"Task '{task}' has {ours.shape[1]} images on one side and {theirs.shape[1]} on the other; paired "
                "differences need the same images."
            )
        rows = max(len(ours), len(theirs))
        if not {len(ours), len(theirs)} <= {1, rows}:
            raise DataError(f"Task '{task}' has {len(ours)} seeds on one side and {len(theirs)} on the other.")
        found[task] = np.broadcast_to(100.0 * (ours.astype(float) - theirs), (rows, ours.shape[1]))
    rows = max(map(len, found.values()))
    return {task: np.broadcast_to(matrix, (rows, matrix.shape[1])) for task, matrix in found.items()}


def _resampled(
    matrices: Sequence[Values], resamples: int, seed: int, generator: np.random.Generator
) -> list[Float[np.ndarray, "resamples seeds"]]:
    """Draw units of every part with replacement and average them, for every seed.

    Parts with equally many units share their draws, each from another one on, so that no two use the same draw at once;
    the draws, which are many megabytes, are read once for all of them. Of many units those that agree in all seeds are
    drawn as one: how often each pattern occurs is drawn.
    """
    alike: dict[int, list[int]] = {}
    for place, matrix in enumerate(matrices):
        alike.setdefault(matrix.shape[1], []).append(place)
    found: dict[int, Float[np.ndarray, "resamples seeds"]] = {}
    for units, places in alike.items():
        if units > SHARED:
            continue
        values = np.concatenate([matrices[place] for place in places]).T.astype(np.float32)
        drawn = np.hsplit(_counts(units, resamples, seed) @ values / units, len(places))
        found.update({place: np.roll(means, place * SHIFT, axis=0) for place, means in zip(places, drawn, strict=True)})
    for place, matrix in enumerate(matrices):
        if place not in found:
            found[place] = _of_patterns(matrix, resamples, generator)
    return [found[place] for place in range(len(matrices))]


def _of_patterns(
    matrix: Values, resamples: int, generator: np.random.Generator
) -> Float[np.ndarray, "resamples seeds"]:
    """Average resampled units by drawing how often each pattern of values over the seeds occurs."""
    units = matrix.shape[1]
    patterns, counts = np.unique(matrix, axis=1, return_counts=True)
    rows, chances = max(CHUNK // len(counts), 1), counts / units
    sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    return np.concatenate([generator.multinomial(units, chances, size=size) @ patterns.T / units for size in sizes])


@lru_cache(maxsize=4)
def _counts(units: int, resamples: int, seed: int) -> Float[np.ndarray, "resamples units"]:
    """Return how often every unit is in every resample."""
    drawn = np.random.default_rng([seed, units]).integers(units, size=(resamples, units), dtype=np.int32)
    drawn += (np.arange(resamples, dtype=np.int32) * units)[:, None]
    found = np.bincount(drawn.ravel(), minlength=resamples * units).reshape(resamples, units).astype(np.float32)
    found.flags.writeable = False
    return found


def _variance(
    differences: Mapping[str, Float[np.ndarray, "seeds images"]], by_seed: Float[np.ndarray, " seeds"]
) -> tuple[float, float]:
    """Return the sum of both variances, of images and of seeds, and Satterthwaite's degrees of freedom of it."""
    tasks = len(differences)
    of_images = [
        matrix.mean(axis=0).var(ddof=1) / matrix.shape[1] if matrix.shape[1] > 1 else 0.0
        for matrix in differences.values()
    ]
    images = sum(of_images) / tasks**2
    free = sum(
        (value / tasks**2) ** 2 / max(matrix.shape[1] - 1, 1)
        for value, matrix in zip(of_images, differences.values(), strict=True)
    )
    seeds = by_seed.var(ddof=1) / len(by_seed) if len(by_seed) > 1 else 0.0
    free += seeds**2 / max(len(by_seed) - 1, 1)
    return float(images + seeds), float((images + seeds) ** 2 / free) if free > 0 else np.inf
