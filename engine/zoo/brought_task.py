"""Samples of a task as people bring them, whatever kind of data they are: what they are called, the way into a zoo."""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DataError
from .task_data import Labelled

MAX_DESCRIPTION_BYTES = 1_000_000
Task = TypeVar("Task", bound="BroughtTask")
SPARE = 64 * 2**20  # bytes left free on the disk


@dataclass(frozen=True)
class BroughtTask(ABC):
    """Samples of one task, and what a description beside them says."""

    name: str
    path: Path
    source: Labelled
    beside: Path  # NAME.json, whether it is there or not
    description: dict[str, Any] = field(default_factory=dict)

    @property
    def outside(self) -> bool:
        """Return whether the description calls the task out of domain."""
        found = self.description
        return str(found.get("suggested", "")).upper() == "OOD" or found.get("domain") == "out"

    def entry(self, templates: Sequence[str] = ()) -> dict[str, Any]:
        """Return title, classes, prompts and provenance for the manifest: the description's, else the data's own.

        Args:
            templates: for classes that bring none.

        Raises:
            DataError: nobody names the classes.
        """
        found = self.description
        entry = {name: str(found.get(name, "")) for name in ("title", "source", "licence")}
        entry["source"] = entry["source"] or str(found.get("original", ""))
        entry["licence"] = entry["licence"] or str(found.get("license", ""))
        entry = {name: text for name, text in entry.items() if text}
        classes = found.get("class_names", found.get("classes"))
        if classes is not None:
            if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
                raise DataError(f"{self.beside.name}: `class_names` must be a list with one name for each label.")
            return {**entry, "classes": classes, **self.prompts(templates)}
        known = self.known_classes()
        if not known:
            missing = "lists no `class_names`" if found else "is missing; it must list the `class_names`"
            raise DataError(f"{self.beside.name} {missing}: {self.path.name} has numbers as labels, and no names.")
        if "dataset" not in known or "templates" in found:
            known |= self.prompts(templates)
        return {**entry, **known}

    @abstractmethod
    def known_classes(self) -> dict[str, Any]:
        """Return the manifest's classes as the data name them, {} where they do not.

        Raises:
            DataError: the labels are no classes, or cannot be read.
        """

    @abstractmethod
    def prompts(self, templates: Sequence[str]) -> dict[str, Any]:
        """Return what the manifest says of prompts for these classes: the description's, else these templates."""

    def bring(self, zoo: Path, *, link: bool = False) -> str:
        """Copy the task's files into a zoo's folder.

        Args:
            zoo: the zoo's folder.
            link: make hard links where the disk allows it: no room is taken, and files must not be changed any more.

        Returns:
            What the manifest names as ``data:``.

        Raises:
            DataError: the disk has no room.
        """
        content = self.source.content()
        if isinstance(content, Path):
            pairs = [(content, Path("data") / f"{self.name}{content.suffix}")]
            named = pairs[0][1]
        else:
            folder = Path("data") / self.name
            pairs = [(content.root / name, folder / name) for name in content.names]
            named = self.named_in(folder)
        if not link:
            check_room(zoo, sum(source.stat().st_size for source, _ in pairs))
        for source, target in pairs:
            (zoo / target).parent.mkdir(parents=True, exist_ok=True)
            place_file(source, zoo / target, link=link)
        return named.as_posix()

    def named_in(self, folder: Path) -> Path:
        """Return what the manifest names where a task's files lie in a folder: the folder itself."""
        return folder


def place_file(source: Path, target: Path, *, link: bool) -> None:
    """Make a hard link of the file itself (also behind a symbolic link), or a copy."""
    real = source.resolve()
    if link:
        try:
            os.link(real, target)
        except OSError:  # another disk
            pass
        else:
            return
    shutil.copyfile(real, target)


def check_room(folder: Path, needed: int) -> None:
    """Refuse where samples do not fit on the disk.

    Raises:
        DataError: they do not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed + SPARE > free:
        raise DataError(f"The data need {needed:,} bytes; {free:,} are free in {folder}.")


def check_share(share: float) -> None:
    """Refuse a share of test samples that leaves nothing to train on or to test on.

    Raises:
        DataError: such a share.
    """
    if not 0 < share < 1:
        raise DataError(f"A test share of {share:g} leaves nothing to train on or to test on; give one such as 0.2.")


def read_description(path: Path) -> dict[str, Any]:
    """Return what the description of a task says, {} where there is none.

    Raises:
        DataError: it cannot be read.
    """
    try:
        if path.stat().st_size > MAX_DESCRIPTION_BYTES:
            raise DataError(f"{path.name} is too large for a description.")
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path.name} cannot be read: {error}.") from error
    return found if isinstance(found, dict) else {}


def distinct(tasks: list[Task]) -> list[Task]:
    """Return the tasks as they are.

    Raises:
        DataError: two have one name.
    """
    names = [task.name for task in tasks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        paths = ", ".join(task.path.name for task in tasks if task.name == twice)
        raise DataError(f"{paths} would all be the task '{twice}'. Rename all but one.")
    return tasks
