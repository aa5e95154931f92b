"""Scopes of a diagnosis, its answers, and differences on the same images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from ...analysis.paired import FEW, otherwise
from ...analysis.written import read_array
from ...errors import DataError
from ...report import Report
from ...rounding import rounded
from ..drawing import Drawing

TAIL = 0.975  # quantile of a 95 % interval
NAMED = 3  # confusions, experts and remedies that a sentence names
QUESTIONS = (
    "What is lost?",
    "Where do the features go?",
    "At which depth does it start?",
    "Who does it?",
    "Which weights?",
    "Where in the image?",
    "What helps?",
)


@dataclass(frozen=True)
class Scope:
    """The images that a diagnosis is about: a task's, one class's of them, or some by their rows in the test split."""

    task: str
    title: str
    classes: tuple[str, ...]
    label: int | None = None
    images: tuple[int, ...] = ()

    @classmethod
    def of(cls, report: Report, task: str, label: int | None = None, images: Iterable[int] = ()) -> Scope:
        """Return the scope of a task of a report."""
        summary = report.tasks[task]
        return cls(task, summary.title or task, tuple(summary.classes), label, tuple(sorted(set(images))))

    def mask(self, index: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return which of some images of the task (n,) belong to it."""
        if self.images:
            return np.isin(index, self.images)
        return np.ones(len(index), bool) if self.label is None else labels == self.label

    @property
    def words(self) -> str:
        """Return a name of the images for sentences."""
        if self.images:
            return "the chosen image" if len(self.images) == 1 else f"the {len(self.images)} chosen images"
        return self.title if self.label is None else f"{self.class_name(self.label)} ({self.title})"

    def class_name(self, label: int) -> str:
        """Return the name of a class."""
        return self.classes[label] if 0 <= label < len(self.classes) else f"class {label}"


@dataclass(frozen=True)
class Caption:
    """The quantity in a drawing, and how many images it is measured on."""

    unit: str
    images: int
    available: int  # that there are of those

    @property
    def count(self) -> str:
        """Return how many images it is, for people."""
        return f"{self.images:,} of {self.available:,}"


@dataclass(frozen=True, eq=False)
class Answer:
    """One of the seven answers."""

    number: int  # from 1
    sentence: str  # of plain text
    drawings: tuple[Drawing, ...]
    unit: str
    images: int  # that it is measured on
    available: int  # that there are in the scope
    control: str  # what it is compared with, in a sentence
    notes: tuple[str, ...] = field(default=())
    asked: str = ""  # the question, where it is put otherwise
    captions: tuple[Caption, ...] = ()  # of the drawings, where they are not all of the same

    @property
    def captioned(self) -> list[tuple[Drawing, Caption]]:
        """Return the drawings, each with what is measured in it."""
        same = [Caption(self.unit, self.images, self.available)] * len(self.drawings)
        return list(zip(self.drawings, self.captions or same, strict=True))

    @property
    def question(self) -> str:
        """Return the question that is answered."""
        return self.asked or QUESTIONS[self.number - 1]


@dataclass(frozen=True)
class Gain:
    """A difference of accuracy on the same images, in points, with half of its 95 % interval."""

    points: float
    half: float
    images: int

    @property
    def clear(self) -> bool:
        """Return whether the interval leaves zero out; one image alone has none."""
        return self.images > 1 and abs(self.points) > self.half

    @property
    def words(self) -> str:
        """Return it for people."""
        if self.images == 1:
            return {1: "from wrong to right", 0: "no change", -1: "from right to wrong"}[round(self.points / 100)]
        return f"{signed(self.points)} points (± {rounded(self.half)})"


def gain(before: np.ndarray, after: np.ndarray) -> Gain:
    """Return by how much more is right after than before, paired by image.

    Of fewer than :data:`engine.analysis.paired.FEW` images the interval is Student's, and of those that all changed
    alike that of :func:`engine.analysis.paired.otherwise`; none is wider than 100 points to either side.

    Raises:
        DataError: there are no images.
    """
    if len(before) == 0:
        raise DataError("None of the chosen images is among those that were measured.")
    change = after.astype(float) - before.astype(float)
    count, points = len(change), 100 * float(change.mean())
    if count == 1:
        return Gain(points, 0.0, count)
    quantile = stdtrit(count - 1, TAIL) if count < FEW else ndtri(TAIL)
    half = 100 * float(quantile * change.std(ddof=1)) / math.sqrt(count) or otherwise(count) * (100 + abs(points))
    return Gain(points, min(half, 100.0), count)


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Right answers of several models on the same images of a task, inside a scope."""

    part: Mapping[str, Any]
    mask: np.ndarray

    @classmethod
    def of(cls, part: Mapping[str, Any], scope: Scope) -> Verdicts:
        """Read a view's part on a task.

        Raises:
            DataError: none of the scope's images is among those that were measured.
        """
        mask = scope.mask(read_array(part["index"]), read_array(part["labels"]))
        if not mask.any():
            raise DataError(f"None of {scope.words} is among the {part['images']} images that this was measured on.")
        return cls(part, mask)

    def right(self, document: Mapping[str, Any]) -> np.ndarray:
        """Return a model's right answers (n,) inside the scope."""
        return read_array(document)[self.mask]

    @property
    def count(self) -> int:
        """Return the number of images inside the scope."""
        return int(self.mask.sum())

    def available(self, scope: Scope) -> int:
        """Return how many images the scope has: for a task all that there are, else those that were measured."""
        if scope.images:
            return len(scope.images)
        return int(self.part["available"]) if scope.label is None else self.count


def signed(value: float) -> str:
    """Return a difference in points for people, with a sign that is a minus."""
    return rounded(value, signed=True).replace("-", "−")


def share(values: np.ndarray) -> float:
    """Return the percent of images that are right."""
    return 100 * float(values.mean())


def joined(parts: Sequence[str]) -> str:
    """Return phrases as one."""
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1] if parts else ""
