"""Images as people have them: which tasks a place holds, what their classes are called, how they come into a zoo."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...catalog.datasets import recognise_dataset
from ...errors import DataError
from ...manifest import Task
from ..classes import match_classes
from ..names import safe_name
from .data import TORCHVISION, read_source
from .readers.installed import installed, torchvision_root
from .readers.source import Source, split_of
from .readers.tables import PathTable
from .readers.tree import is_image

MAX_DESCRIPTION_BYTES = 1_000_000
FILES = (".npz", ".parquet", ".csv", ".tsv", ".zip")
FORMS = (
    "a folder or .zip of class folders, a folder of parquet shards, a .parquet file, a .csv of paths and labels, or an "
    ".npz file, one a task"
)
SPARE = 64 * 2**20  # bytes left free on the disk


@dataclass(frozen=True)
class BroughtTask:
    """Images of one task, and what a description beside them says."""

    name: str
    path: Path
    source: Source
    beside: Path  # NAME.json, whether it is there or not
    description: dict[str, Any] = field(default_factory=dict)

    @property
    def outside(self) -> bool:
        """Return whether the description calls the task out of domain."""
        found = self.description
        return str(found.get("suggested", "")).upper() == "OOD" or found.get("domain") == "out"

    def entry(self, templates: Sequence[str]) -> dict[str, Any]:
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
            return {**entry, "classes": classes, "templates": found.get("templates", list(templates))}
        known = known_classes(self.source, self.name)
        if not known:
            missing = "lists no `class_names`" if found else "is missing; it must list the `class_names`"
            raise DataError(f"{self.beside.name} {missing}: {self.path.name} has numbers as labels, and no names.")
        if "dataset" not in known or "templates" in found:
            known["templates"] = found.get("templates", list(templates))
        return {**entry, **known}


def known_classes(source: Source, name: str) -> dict[str, Any]:
    """Return the manifest's classes: of a data set of the catalogue, else the data's own names, else none.

    Args:
        source: the data.
        name: of the task, which may be that of a known data set.

    Raises:
        DataError: the labels cannot be read.
    """
    labels = source.labels("test") if source.lengths.get("test") else np.zeros(0, np.int64)
    count = len(source.brought) or int(labels.max(initial=1)) + 1
    row = recognise_dataset(name, source.brought)
    if row is not None and row.count == count and _fits(source, row.name):
        return {"dataset": row.name}
    if not source.brought:
        return {}
    classes = [own.replace("_", " ").strip() for own in source.brought]
    return {"classes": classes if len(set(classes)) == count else list(source.brought)}


def _fits(source: Source, dataset: str) -> bool:
    """Return whether data's own class names are a known data set's; a task may be called like one and be another."""
    try:
        match_classes(source.brought, Task(name=dataset, domain="in", dataset=dataset), ordered=source.ordered)
    except DataError:
        return False
    return True


def find_tasks(place: Path) -> tuple[list[BroughtTask], list[str]]:
    """Return the tasks that a place holds, by name.

    Args:
        place: the data of one task, or a folder with those of several (an entry of any form each, ``NAME.json`` beside
            it where something is to be described), or ``torchvision:NAME,NAME``.

    Returns:
        The tasks, and names of folders that hold no images and are left out.

    Raises:
        DataError: no images, images of no known form, two tasks of one name.
    """
    if str(place).startswith(TORCHVISION):
        names = str(place).removeprefix(TORCHVISION).split(",")
        root = torchvision_root(Path.cwd(), None)
        found = [_task(Path(f"{TORCHVISION}{name}"), installed(name, root), root) for name in names]
        return _distinct(found), []
    if not place.exists():
        raise DataError(f"There is no {place}. Give {FORMS}, or a folder of such.")
    if place.is_file() or _is_one(place):
        return [open_brought(place.resolve())], []
    files = [path for path in sorted(place.iterdir()) if path.suffix in FILES and path.is_file()]
    found = [open_brought(path) for path in files if not path.name.startswith(".")]
    listed = {part for task in found for part in _listed_in(task)}
    left = []
    for folder in _folders(place):
        if folder.name in listed:
            continue
        if next(_images_below(folder), None) is None:
            left.append(folder.name)
            continue
        found.append(open_brought(folder))
    if not found:
        raise DataError(f"{place} holds no images of a known form. What is expected: {FORMS}.")
    return _distinct(sorted(found, key=lambda task: task.name)), left


def bring(task: BroughtTask, zoo: Path, *, link: bool = False) -> str:
    """Copy a task's files into a zoo's folder.

    Args:
        task: from :func:`find_tasks`.
        zoo: the zoo's folder.
        link: make hard links where the disk allows it: no room is taken, and files must not be changed any more.

    Returns:
        What the manifest names as ``data:``.

    Raises:
        DataError: the disk has no room.
    """
    if str(task.path).startswith(TORCHVISION):
        return str(task.path)
    content = task.source.content()
    if isinstance(content, Path):
        pairs = [(content, Path("data") / f"{task.name}{content.suffix}")]
        named = pairs[0][1]
    else:
        folder = Path("data") / task.name
        pairs = [(content.root / name, folder / name) for name in content.names]
        named = folder / task.path.name if isinstance(task.source, PathTable) else folder
    if not link:
        check_room(zoo, sum(source.stat().st_size for source, _ in pairs))
    for source, target in pairs:
        (zoo / target).parent.mkdir(parents=True, exist_ok=True)
        place_file(source, zoo / target, link=link)
    return named.as_posix()


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
    """Refuse where images do not fit on the disk.

    Raises:
        DataError: they do not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed + SPARE > free:
        raise DataError(f"The images need {needed:,} bytes; {free:,} are free in {folder}.")


def open_brought(path: Path, name: str = "") -> BroughtTask:
    """Open the images of one task, and the description beside them where there is one.

    Args:
        path: a file or folder.
        name: of the task; '' takes the path's.

    Raises:
        DataError: no images of a known form, or a description that cannot be read.
    """
    try:
        return _task(path, read_source(path), path.parent, name)
    except DataError as error:
        raise DataError(f"{path.name}: {error}") from error


def _task(path: Path, source: Source, folder: Path, name: str = "") -> BroughtTask:
    stem = path.stem if path.suffix in FILES else path.name.removeprefix(TORCHVISION)
    beside = folder / f"{stem}.json"
    return BroughtTask(name or safe_name(stem), path, source, beside, _description(beside))


def _description(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_DESCRIPTION_BYTES:
            raise DataError(f"{path.name} is too large for a description.")
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path.name} cannot be read: {error}.") from error
    return found if isinstance(found, dict) else {}


def _is_one(folder: Path) -> bool:
    """Return whether a folder is one task: shards or folders of splits, or folders that hold images themselves."""
    files = [path for path in folder.iterdir() if path.is_file() and path.suffix in FILES]
    shards = [path for path in files if path.suffix == ".parquet"]
    if shards and len(shards) == len(files):
        return all(split_of(path.stem.replace(".", "-").split("-")[0]) for path in shards)
    folders = _folders(folder)
    if files or not folders:
        return False
    if any(split_of(path.name) for path in folders):
        return True
    if len(folders) == 1 and folders[0].name == "data" and next(folders[0].glob("*.parquet"), None):
        return True  # as the hub lays a repository out
    first = {part: next(_images_below(part), None) for part in folders}
    held = [(part, image) for part, image in first.items() if image is not None]
    return bool(held) and all(is_image(image.name) and image.parent == part for part, image in held)


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if is_image(path.name) or path.suffix == ".parquet")


def _listed_in(task: BroughtTask) -> set[str]:
    """Return folders whose images a table lists; they are no tasks of their own."""
    if not isinstance(task.source, PathTable):
        return set()
    return {name.split("/")[0] for name in task.source.content().names if "/" in name}


def _distinct(tasks: list[BroughtTask]) -> list[BroughtTask]:
    names = [task.name for task in tasks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        paths = ", ".join(task.path.name for task in tasks if task.name == twice)
        raise DataError(f"{paths} would all be the task '{twice}'. Rename all but one.")
    return tasks
