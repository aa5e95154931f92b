"""Kinds of rows of the run table: their titles, and which are minor or urgent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from .views import all_views


@dataclass(frozen=True)
class Kind:
    """A kind of row of the run table."""

    name: str
    title: str
    minor: bool = False  # asked for along the way, seldom looked for
    urgent: bool = False  # a page waits for it, so it goes before whole runs
    passing: bool = False  # forgotten, with what it left, minutes after it has ended


WORK = (
    Kind("run", "Run"),
    Kind("sweep", "Sweep"),
    Kind("experiment", "Experiment"),
    Kind("import", "Import"),
    Kind("fetch", "Download"),
    Kind("hub", "Download of a repository", minor=True),
    Kind("copy", "Copy of a zoo"),
    Kind("finetune", "Fine-tuning"),
    Kind("align", "Alignment of experts"),
    Kind("register", "Registration of a zoo"),
    Kind("projection", "Projection", minor=True, urgent=True),
    Kind("preflight", "Check before a run", minor=True, urgent=True),
    Kind("preview", "Preview", minor=True, urgent=True, passing=True),
    Kind("gc", "Clean-up", minor=True, urgent=True),
)


@lru_cache(maxsize=1)
def all_kinds() -> MappingProxyType[str, Kind]:
    """Return every kind by its name: work of the engine, then views."""
    views = (Kind(view.name, view.title, minor=True) for view in all_views().values())
    return MappingProxyType({kind.name: kind for kind in (*WORK, *views)})


def is_urgent(kind: str) -> bool:
    """Tell whether this kind of work goes before whole runs, because a page waits for it."""
    return kind in all_kinds() and all_kinds()[kind].urgent


def passing_kinds() -> tuple[str, ...]:
    """Return the kinds of work that are forgotten, with what they left, minutes after they have ended."""
    return tuple(kind.name for kind in all_kinds().values() if kind.passing)
