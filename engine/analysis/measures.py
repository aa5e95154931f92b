"""Measures of answers beside accuracy, each by its published name; all in percent, 100 for perfect answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from ..errors import DataError

Labels = Int[np.ndarray, " n"] | Float[np.ndarray, " n"]


def matthews(labels: Labels, predicted: Labels) -> float:
    """Return Matthews' correlation of predictions with labels, times 100; 0 where either never varies.

    Source: Matthews, BBA 405 (1975), pp. 442–451; for several classes Gorodkin, 2004. Computed by scikit-learn.
    """
    from sklearn.metrics import matthews_corrcoef

    return 100 * float(matthews_corrcoef(labels, predicted))


def f1(labels: Labels, predicted: Labels, classes: int = 0) -> float:
    """Return F1 times 100: of class 1 where there are two classes, as in GLUE, else the mean over classes.

    A class that is neither there nor predicted is left out of the mean. Computed by scikit-learn.

    Args:
        labels: true classes.
        predicted: classes that were said.
        classes: that the task has; 0: as many as occur.
    """
    from sklearn.metrics import f1_score

    two = (classes or 1 + int(max(labels.max(initial=0), predicted.max(initial=0)))) <= 2
    return 100 * float(f1_score(labels, predicted, average="binary" if two else "macro", zero_division=0))


def pearson(labels: Labels, predicted: Labels) -> float:
    """Return Pearson's correlation of class numbers times 100, for classes that are grades; 0 where either is constant.

    Computed by scipy.
    """
    from scipy.stats import pearsonr

    return 100 * float(pearsonr(labels, predicted).statistic) if labels.std() and predicted.std() else 0.0


def spearman(labels: Labels, predicted: Labels) -> float:
    """Return Spearman's rank correlation of class numbers times 100, for grades; 0 where either is constant.

    Computed by scipy.
    """
    from scipy.stats import spearmanr

    return 100 * float(spearmanr(labels, predicted).statistic) if labels.std() and predicted.std() else 0.0


def accuracy(labels: Labels, predicted: Labels) -> float:
    """Return the percent of predictions that are the label."""
    return 100 * float((labels == predicted).mean())


MEASURES: Mapping[str, Callable[[Labels, Labels], float]] = {
    "accuracy": accuracy,
    "matthews": matthews,
    "f1": f1,
    "pearson": pearson,
    "spearman": spearman,
}


CORRELATIONS = ("pearson", "spearman")  # the measures of answers that are numbers
GRADED = "answers are numbers, which are near or far; accuracy, Matthews and F1 know right and wrong answers only"


def measured(name: str, labels: Labels, predicted: Labels, classes: int = 0) -> float:
    """Return one measure of predictions.

    Args:
        name: one of ``MEASURES``.
        labels: true classes, or numbers for correlations.
        predicted: classes or numbers that were said.
        classes: that the task has, where that is known.

    Raises:
        DataError: no samples, or not one prediction for each label.
    """
    if len(labels) != len(predicted) or not len(labels):
        raise DataError(f"{len(predicted)} predictions and {len(labels)} labels; equally many, at least one, needed.")
    return f1(labels, predicted, classes) if name == "f1" else MEASURES[name](labels, predicted)


def mean_in_words(measures: Sequence[str]) -> str:
    """Return what a mean over tasks is a mean of, which says so where their measures are unlike."""
    kinds = list(dict.fromkeys(measures))
    if len(kinds) == 1:
        return f"mean {kinds[0]}"
    return f"mean of unlike measures ({', '.join(kinds)})"
