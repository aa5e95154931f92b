"""From features to accuracy, and what accuracies say together. All accuracies and shares are percentages."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import NormalDist

import numpy as np
from jaxtyping import Float, Int

from ..errors import DataError
from ..types import Head


def logits(
    features: Float[np.ndarray, "n dim"], weight: Float[np.ndarray, "classes dim"], scale: float
) -> Float[np.ndarray, "n classes"]:
    """Return the scores of a zero-shot head: scale · (z / ‖z‖₂) · Wᵀ.

    Args:
        features: un-normalised; the head normalises them. A zero feature scores 0 everywhere.
        weight: one row of unit norm per class.
        scale: exp(logit_scale), 100 for CLIP.

    Source: Radford et al., ICML 2021, arXiv:2103.00020, Fig. 3.
    """
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return scale * (features / np.where(lengths > 0, lengths, 1.0)) @ weight.T


def scores(features: Float[np.ndarray, "n dim"], head: Head, *, scaled: bool = True) -> Float[np.ndarray, "n classes"]:
    """Return the scores of a head: of a zero-shot one as :func:`logits`, of a classifier by its own layers.

    Args:
        features: un-normalised.
        head: of tensors on the CPU, or of arrays.
        scaled: multiply the cosines of a zero-shot head by its scale.
    """
    if (affine := getattr(head, "affine", None)) is not None:
        return affine.each(np.asarray).logits(features, np.asarray(head.weight))
    return logits(features, np.asarray(head.weight), head.scale if scaled else 1.0)


def probabilities(scores: Float[np.ndarray, "n classes"]) -> Float[np.ndarray, "n classes"]:
    """Return the softmax over classes."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def entropy(scores: Float[np.ndarray, "n classes"]) -> Float[np.ndarray, " n"]:
    """Return the entropy −Σ p ln p of the softmax of every image, in nats."""
    shifted = scores - scores.max(1, keepdims=True)
    log_total = np.log(np.exp(shifted).sum(1))
    return log_total - (probabilities(scores) * shifted).sum(1)


def predictions(scores: Float[np.ndarray, "n classes"]) -> Int[np.ndarray, " n"]:
    """Return the class with the highest score; the first of equals."""
    return scores.argmax(1)


def top1(predicted: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"]) -> float:
    """Return the percent of images whose prediction is the label.

    Raises:
        DataError: no images, or not one label for each.
    """
    _check(predicted, labels)
    return 100.0 * float((predicted == labels).mean())


def confusion(
    predicted: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"], classes: int
) -> Int[np.ndarray, "classes classes"]:
    """Return the counts of images by label (rows) and prediction (columns).

    Raises:
        DataError: no images, not one label for each, or a number that is not a class.
    """
    _check(predicted, labels)
    numbers = np.concatenate([predicted, labels])
    if numbers.min() < 0 or numbers.max() >= classes:
        raise DataError(f"Found class numbers {numbers.min()} to {numbers.max()}; the task has {classes} classes.")
    return np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def wilson_interval(percent: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of an accuracy that was measured on n images, in percent.

    Args:
        percent: measured accuracy.
        n: images, at least 1.
        confidence: between 0 and 1.

    Raises:
        DataError: no images.

    Source: Wilson, JASA 22 (1927), pp. 209–212.
    """
    if n < 1:
        raise DataError("An accuracy without images has no interval.")
    z, share = NormalDist().inv_cdf(0.5 + confidence / 2), percent / 100
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return 100 * max(0.0, float(centre - half)), 100 * min(1.0, float(centre + half))


def mean_interval(parts: Iterable[tuple[float, int]], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of a mean of accuracies over tasks, in percent; of one task alone Wilson's.

    Args:
        parts: by task the accuracy in percent and the number of images that it was measured on.
        confidence: between 0 and 1.

    Raises:
        DataError: no tasks, or one without images.

    Source: Zou, Huang and Zhang, Computational Statistics & Data Analysis 53 (2009), pp. 1080–1085: squared distances
        of the accuracies to the ends of their Wilson intervals add up.
    """
    ends = np.array([(percent, *wilson_interval(percent, n, confidence)) for percent, n in parts])
    if not len(ends):
        raise DataError("A mean over no tasks has no interval.")
    centre = float(ends[:, 0].mean())
    down, up = (float(np.linalg.norm(ends[:, 0] - ends[:, end])) / len(ends) for end in (1, 2))
    return max(0.0, centre - down), min(100.0, centre + up)


def deltas(accuracy: Mapping[str, float | None], reference: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return task → accuracy minus that of a reference state, in percentage points; None where either is missing."""
    pairs = {task: (value, reference.get(task)) for task, value in accuracy.items()}
    return {task: None if a is None or b is None else a - b for task, (a, b) in pairs.items()}


def recovered_share(before: float, after: float, expert: float) -> float | None:
    """Return the percent of the gap between a merged model and the expert that a calibrator closes.

    Returns:
        100 · (after − before) / (expert − before); negative if it made things worse, above 100 if it beats the
        expert; None where there is no gap to close (expert ≤ before).
    """
    gap = expert - before
    return 100.0 * (after - before) / gap if gap > 1e-9 else None


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that exist, None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def h_score(within: float | None, out: float | None) -> float | None:
    """Return the harmonic mean of in- and out-of-domain accuracy; 0 if both are, None where one is missing.

    Source: LwPTV, arXiv:2506.09093, §5.
    """
    if within is None or out is None:
        return None
    return 2 * within * out / (within + out) if within + out > 0 else 0.0


def averages(accuracy: Mapping[str, float | None], domains: Mapping[str, str]) -> dict[str, float | None]:
    """Return the averages of one state over tasks.

    Args:
        accuracy: task → percent.
        domains: task → ``in``, ``out``, or something else for a task that no average takes.

    Returns:
        ``in``, ``out`` and ``h_score``.
    """
    within = mean(value for task, value in accuracy.items() if domains[task] == "in")
    out = mean(value for task, value in accuracy.items() if domains[task] == "out")
    return {"in": within, "out": out, "h_score": h_score(within, out)}


def _check(predicted: np.ndarray, labels: np.ndarray) -> None:
    if len(predicted) != len(labels) or len(labels) == 0:
        raise DataError(f"{len(predicted)} predictions and {len(labels)} labels; equally many, at least one, needed.")
