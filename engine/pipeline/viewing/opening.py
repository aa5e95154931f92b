"""First requests of a view's page: settings that it asks with when it opens, from what is known of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...report import Report
    from ...zoo.modality import Modality

Settings = list[dict[str, Any]]  # of the requests that are made
Opens = Callable[["Opening"], Settings]


@dataclass(frozen=True)
class Opening:
    """A run as its pages find it when they open."""

    report: Report
    ways: tuple[str, ...]  # recipes by which the zoo has an expert of each of the run's tasks
    kind: Modality  # of the zoo's data

    @cached_property
    def worst(self) -> str | None:
        """Return the task that loses most, None where nothing is scored."""
        from ...figures.diagnosis.lost import worst_task

        return worst_task(self.report)

    @property
    def judged(self) -> list[str]:
        """Return the in-domain tasks whose answers are right or wrong, of a run that scores something."""
        tasks = self.report.tasks
        return [task for task in self.report.tasks_of("in") if self.report.accuracy and not tasks[task].graded]

    @property
    def pair(self) -> tuple[str, str] | None:
        """Return the first two judged tasks' own experts, None where there are not as many."""
        own = {self.report.tasks[task].expert for task in self.judged}
        names = [name for name in self.report.experts if name in own]
        return (names[0], names[1]) if len(names) > 1 else None


def at_once(opening: Opening) -> Settings:
    """Ask for the view as it is, of every run."""
    return [{}]


def scored(opening: Opening) -> Settings:
    """Ask for the view as it is, of a run that scores something."""
    return [{}] if opening.report.accuracy else []


def of_worst_task(images: int) -> Opens:
    """Return what asks for the view of the task that loses most, on so many of its images at most."""
    return lambda opening: [] if opening.worst is None else [{"task": opening.worst, "images": images}]


def of_pair(first: str, second: str) -> Opens:
    """Return what asks for the view of the first two experts, under these names of its settings."""
    return lambda opening: [] if opening.pair is None else [dict(zip((first, second), opening.pair, strict=True))]
