"""One task's samples and labels, whatever kind of data they are. Free of torch."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import DataError
from ..manifest import Task
from ..preparation import Preparation
from ..store.digests import FileSet
from .classes import Matched, match_classes

Digest = Callable[[Path | FileSet], str]


class Labelled(Protocol):
    """The part that all readers of data have in common."""

    path: Path  # what the manifest names
    lengths: dict[str, int]  # samples by split
    brought: tuple[str, ...]  # the data's own names of its labels 0, 1, …; () where it has none
    ordered: bool  # whether the labels' order means something beyond the alphabet
    notes: tuple[str, ...]  # what a person should know about it

    def labels(self, split: str) -> np.ndarray:
        """Return the data's own labels of a split: whole numbers (n,)."""

    def content(self) -> Path | FileSet:
        """Return the file or files whose content the data is."""


@dataclass(frozen=True)
class TaskData(ABC):
    """Samples and labels of one task; rows are positions in a split as it is stored."""

    task: Task
    source: Labelled
    preprocess: Callable[[], Preparation] | None = None  # how samples are prepared, where nothing else is said

    @property
    def path(self) -> Path:
        """Return the file or folder that the manifest names."""
        return self.source.path

    @property
    def lengths(self) -> dict[str, int]:
        """Return samples by split, damaged ones included."""
        return self.source.lengths

    @cached_property
    def matched(self) -> Matched:
        """Return how the data's own labels become positions in the class list."""
        return match_classes(self.source.brought, self.task, ordered=self.source.ordered)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences that a person should know about these data."""
        return (*(f"Task '{self.task.name}': {note}" for note in self.source.notes), *self.matched.notes)

    def has(self, split: str) -> bool:
        """Return whether the split exists and holds samples."""
        return self.lengths.get(split, 0) > 0

    def usable(self, split: str) -> np.ndarray:
        """Return rows of a split without those that are known to be damaged."""
        rows = np.arange(self.lengths.get(split, 0))
        passed_over = [row for row, _ in self.corrupt(split)]
        return np.setdiff1d(rows, passed_over) if passed_over else rows

    def labels(self, split: str) -> np.ndarray:
        """Return labels of a split: int64 (n,), positions in the class list.

        Raises:
            DataError: a label outside the class list, or no labels.
        """
        try:
            labels = self.source.labels(split)
        except DataError as error:
            raise DataError(f"Task '{self.task.name}': {error}") from error
        positions, count = self.matched.positions, len(self.task.classes)
        limit = count if positions is None else len(positions)
        if len(labels) and (labels.min() < 0 or labels.max() >= limit):
            bad = labels[(labels < 0) | (labels >= limit)][0]
            raise DataError(
                f"Task '{self.task.name}': {split}_y holds the label {bad}, but there are {count} classes (0 to "
                f"{count - 1}). Correct the labels or the class list in zoo.yaml."
            )
        return labels if positions is None else positions[labels]

    def digest(self, digest_file: Digest) -> str:
        """Return the digest of the content."""
        return digest_file(self.source.content())

    def identity(self, digest_file: Digest) -> str:
        """Return what tells whether samples and labels are the same: their content, and how they are read."""
        content, said = self.digest(digest_file), self.read_by()
        return hashlib.sha256(json.dumps([content, said], sort_keys=True).encode()).hexdigest() if said else content

    def read_by(self) -> dict[str, Any]:
        """Return what the manifest says that decides which samples there are, what is in them, or what they score."""
        found: dict[str, Any] = {}
        if self.source.brought and tuple(self.source.brought) != tuple(self.task.classes):
            found["classes"] = list(self.task.classes)
        if self.task.corrupt != "error":
            found["corrupt"] = self.task.corrupt
        if self.task.grades:
            found["grades"] = list(self.task.grades)
        return found

    @abstractmethod
    def samples(self, split: str, rows: np.ndarray | Sequence[int] | None = None, fit: Any = None) -> Any:
        """Return samples of a split, all or the given rows: something that can be sliced and indexed by positions.

        Args:
            split: which samples.
            rows: positions; default all.
            fit: a preparation other than the zoo's.
        """

    def seen_from(self, folder: Path, task: Task) -> TaskData:
        """Return the same samples as another zoo reads them for a task of its own; most are read alike everywhere.

        Args:
            folder: of that zoo.
            task: its entry there.
        """
        return self

    @abstractmethod
    def stored(self, split: str, rows: Sequence[int] | np.ndarray) -> Iterator[bytes]:
        """Yield samples as they are stored."""

    @abstractmethod
    def named(self, split: str, rows: Sequence[int] | np.ndarray) -> list[str]:
        """Return the names of samples in messages."""

    def pictures(self, split: str, rows: Sequence[int], side: int) -> Iterator[np.ndarray]:
        """Yield small pictures, uint8 (side, side, 3), of samples that can be pictured; none of others."""
        yield from ()

    @abstractmethod
    def corrupt(self, split: str) -> list[tuple[int, str]]:
        """List rows of damaged samples that are passed over, with reasons, where the manifest says that they are."""

    @abstractmethod
    def damaged(self, split: str) -> list[tuple[int, str]]:
        """Read every sample of a split and tell which cannot be read: rows and reasons that name the sample."""

    @abstractmethod
    def refusal(self, count: int, reasons: Sequence[str]) -> str:
        """Return a sentence on damaged samples: how many of how many, which, and what to do."""

    def remarks(self) -> list[str]:
        """Return what is worth knowing of samples once all of them have been read."""
        return []

    @abstractmethod
    def skipped(self) -> str:
        """Return a sentence on the samples that are passed over; '' where there are none."""


def graded_in_words(task: Task) -> str:
    """Return a sentence on what can be said of a task whose answers are numbers."""
    grades = task.grades
    return (
        f"Task '{task.name}' asks for a number: answers are rounded to the nearest of {len(grades)} grades from "
        f"{grades[0]:g} to {grades[-1]:g} and scored by correlation ({task.measure.capitalize()}), among the other "
        "measures. It has no accuracy, since a number is near or far and not right or wrong, and no mean counts it."
    )
