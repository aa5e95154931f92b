"""A table with one row per image and state."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ..errors import DataError
from .accuracy import predictions, probabilities, scores
from .bias import sample_shift

COLUMNS = ("task", "index", "split", "state", "label", "prediction", "probability", "margin", "shift", "sigma")


@runtime_checkable
class ArrayHead(Protocol):
    """A head as arrays: ``weight`` (classes, dim), rows of unit norm, and ``scale`` = exp(logit_scale)."""

    weight: Float[np.ndarray, "classes dim"]
    scale: float


def margin(scores: Float[np.ndarray, "n classes"], labels: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return the score of the label minus the best other score; positive iff the label wins alone.

    A task of one class has no other score: its margin is NaN.
    """
    rows = np.arange(len(scores))
    own = scores[rows, labels]
    others = np.array(scores, copy=True)
    others[rows, labels] = -np.inf
    best = others.max(1)
    return np.where(np.isfinite(best), own - best, np.nan)


def sample_table(
    task: str,
    states: Mapping[str, Float[np.ndarray, "n dim"]],
    head: ArrayHead,
    labels: Int[np.ndarray, " n"],
    index: Int[np.ndarray, " n"],
    split: str | Sequence[str],
    expert: Float[np.ndarray, "n dim"] | None = None,
    sigma: Mapping[str, Float[np.ndarray, " n"]] | None = None,
) -> pd.DataFrame:
    """Return one row per state and image of a task.

    Args:
        task: its name.
        states: state → features of the same images, un-normalised.
        head: the task's head.
        labels: class numbers.
        index: position of each image in the task's data.
        split: name of the split of all images, or of each.
        expert: features of the task's expert; without them ``shift`` is NaN.
        sigma: state → mean predicted σ of each image, for states that predict one.

    Returns:
        Columns ``COLUMNS``. ``probability`` is the softmax probability of the predicted class; ``margin`` the cosine
        similarity with the label's row of the head (of a classifier its score) minus the best other one, positive iff
        right; ``shift`` the Euclidean distance to the expert's feature.

    Raises:
        DataError: numbers of rows differ.
        UnpairedFeatures: a state's features and the expert's do.
    """
    frames = []
    for state, features in states.items():
        if not len(features) == len(labels) == len(index):
            raise DataError(
                f"'{task}' has {len(features)} features of '{state}', {len(labels)} labels and {len(index)} indices; "
                "equally many are needed."
            )
        said = scores(features, head, scaled=False)
        predicted = predictions(said)
        chances = probabilities(said * head.scale)
        frames.append(
            pd.DataFrame(
                {
                    "task": task,
                    "index": np.asarray(index, dtype=np.int64),
                    "split": split,
                    "state": state,
                    "label": np.asarray(labels, dtype=np.int64),
                    "prediction": predicted.astype(np.int64),
                    "probability": chances[np.arange(len(said)), predicted].astype(np.float64),
                    "margin": margin(said, labels).astype(np.float64),
                    "shift": np.nan if expert is None else sample_shift(features, expert),
                    "sigma": np.nan if sigma is None or state not in sigma else sigma[state].astype(np.float64),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)[list(COLUMNS)]


def correctness(tables: Sequence[pd.DataFrame], state: str) -> dict[str, pd.DataFrame]:
    """Return which evaluation images a state classifies correctly, by task.

    Args:
        tables: of samples, one a training seed.
        state: as the tables call it.

    Returns:
        Task → booleans, a row an image (its index in the task's data), a column a seed; without tasks that a table
        lacks.
    """
    found: dict[str, list[pd.Series]] = {}
    for table in tables:
        rows = table[(table["state"] == state) & (table["split"] == "evaluate")]
        for task, part in rows.groupby("task", sort=False):
            right = (part["prediction"] == part["label"]).set_axis(part["index"])
            found.setdefault(task, []).append(right.sort_index())
    whole = {task: columns for task, columns in found.items() if len(columns) == len(tables)}
    return {task: pd.concat(columns, axis=1, keys=range(len(columns))) for task, columns in whole.items()}
