"""Choice of the images that are adapted on and of those that are evaluated: sampling per class, then the split."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...recipe import Probe
from .data import TaskData

VALIDATION_SHARE = 0.1  # of the training images, where a task has no val_x


@dataclass(frozen=True)
class Selection:
    """Rows of a task that take part.

    ``test`` and ``adapt`` are the rows of the arrays that are encoded; ``evaluate_rows`` and ``adapt_rows`` are
    positions inside what was encoded from ``test`` and from ``adapt_source``.
    """

    test: np.ndarray  # (n,) rows of test_x
    adapt: np.ndarray | None  # (m,) rows of adapt_x, where that array is used
    adapt_source: Literal["test", "adapt"]
    evaluate_rows: np.ndarray
    adapt_rows: np.ndarray
    available: int


def select(data: TaskData, probe: Probe) -> Selection:
    """Choose the images of one task.

    Args:
        data: the task's data.
        probe: samples per task, protocol and seed.

    Returns:
        The selection. ``held_out`` adapts on ``adapt_x`` where there is one, else on a seeded half of the test
        images, stratified by class; ``paper`` adapts and evaluates on all (sampled) test images. Out-of-domain and
        shifted tasks are never adapted on, so all their test images are evaluated.
    """
    labels, usable = data.labels("test"), data.usable("test")
    generator = np.random.default_rng(_seed(data.task.name, probe.split_seed))
    test = usable[sample_per_class(labels[usable], probe.samples_per_task, generator)]
    everything = np.arange(len(test))
    if data.task.domain == "out" or data.task.shifted_from is not None:
        return Selection(test, None, "test", everything, everything[:0], len(usable))
    if probe.protocol == "paper":
        return Selection(test, None, "test", everything, everything, len(usable))
    if data.has("adapt"):
        adapt = data.usable("adapt")
        count = len(adapt)
        if probe.samples_per_task != "all" and probe.samples_per_task < count:
            adapt = adapt[np.sort(generator.choice(count, probe.samples_per_task, replace=False))]
        return Selection(test, adapt, "adapt", everything, np.arange(len(adapt)), len(usable))
    half = _half_per_class(labels[test], generator)
    return Selection(test, None, "test", everything[~half], everything[half], len(usable))


def select_validation(data: TaskData, probe: Probe) -> np.ndarray:
    """Return rows of the labelled validation images that choices are made on, (n,); at most as many as a probe takes.

    They are drawn by themselves, so that no other split depends on them.
    """
    generator = np.random.default_rng(_seed(f"{data.task.name}/validation", probe.split_seed))
    usable = data.usable("val")
    return usable[sample_per_class(data.labels("val")[usable], probe.samples_per_task, generator)]


def hold_out(data: TaskData, share: float = VALIDATION_SHARE) -> tuple[np.ndarray, np.ndarray | None]:
    """Split training images into those that are trained on and those that training is watched on.

    Args:
        data: a task that has training images.
        share: of every class's images to hold out, at least one of a class that has two.

    Returns:
        Rows to train on and rows to validate on; the latter None where the task has validation images of its own.
    """
    rows = data.usable("train")
    labels = data.labels("train")[rows]
    if data.has("val"):
        return rows, None
    held = share_of_each_class(labels, share, data.task.name, 0)
    return rows[~held], rows[held]


def share_of_each_class(labels: np.ndarray, share: float, task: str, seed: int) -> np.ndarray:
    """Return a mask (n,) that takes a seeded share of every class, at least one image of a class that has two."""
    generator = np.random.default_rng(_seed(task, seed))
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        own = generator.permutation(np.flatnonzero(labels == label))
        held[own[: min(max(1, round(share * len(own))), len(own) - 1)]] = True
    return held


def _seed(task: str, split_seed: int) -> list[int]:
    """Return a seed of its own for each task, so that adding a task changes no other task's split."""
    return [split_seed, int.from_bytes(hashlib.sha256(task.encode()).digest()[:8], "little")]


def sample_per_class(labels: np.ndarray, count: int | str, generator: np.random.Generator) -> np.ndarray:
    """Return rows of a sample with as equal class counts as there are images for, in their original order."""
    if count == "all" or count >= len(labels):
        return np.arange(len(labels))
    shuffled = [generator.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    rank = np.concatenate([np.arange(len(rows)) for rows in shuffled])
    rows = np.concatenate(shuffled)
    tie = generator.permutation(len(rows))
    return np.sort(rows[np.lexsort((tie, rank))][:count])


def _half_per_class(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return a mask that takes half of every class; extra images of odd classes alternate between the halves."""
    half = np.zeros(len(labels), dtype=bool)
    extra = False
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        half[rows[: (len(rows) + extra) // 2]] = True
        extra ^= len(rows) % 2 == 1
    return half
