"""Images as people have them: which tasks a place holds, what their classes are called, how they come into a zoo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ...catalog.datasets import recognise_dataset
from ...errors import DataError
from ...manifest import Task
from ..brought_task import BroughtTask, distinct, read_description
from ..classes import match_classes
from ..names import safe_name
from .data import TORCHVISION, read_source
from .readers.installed import installed, torchvision_root
from .readers.source import Source, split_of
from .readers.tables import PathTable
from .readers.tree import is_image

FILES = (".npz", ".parquet", ".csv", ".tsv", ".zip")
FORMS = (
    "a folder or .zip of class folders, a folder of parquet shards, a .parquet file, a .csv of paths and labels, or an "
    ".npz file, one a task"
)


@dataclass(frozen=True)
class ImageTask(BroughtTask):
    """Images of one task."""

    source: Source

    def known_classes(self) -> dict[str, Any]:
        """Return the classes of a data set of the catalogue, else the data's own."""
        return known_classes(self.source, self.name)

    def prompts(self, templates: Sequence[str]) -> dict[str, Any]:
        """Return the description's templates, else those given."""
        return {"templates": self.description.get("templates", list(templates))}

    def bring(self, zoo: Path, *, link: bool = False) -> str:
        """Copy the images; those of an installed data set stay where they are."""
        return str(self.path) if str(self.path).startswith(TORCHVISION) else super().bring(zoo, link=link)

    def named_in(self, folder: Path) -> Path:
        """Return the table of a task whose images are listed in one."""
        return folder / self.path.name if isinstance(self.source, PathTable) else folder


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


def find_tasks(place: Path) -> tuple[list[ImageTask], list[str]]:
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
        return distinct(found), []
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
    return distinct(sorted(found, key=lambda task: task.name)), left


def open_brought(path: Path, name: str = "") -> ImageTask:
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


def _task(path: Path, source: Source, folder: Path, name: str = "") -> ImageTask:
    stem = path.stem if path.suffix in FILES else path.name.removeprefix(TORCHVISION)
    beside = folder / f"{stem}.json"
    return ImageTask(name or safe_name(stem), path, source, beside, read_description(beside))


def _is_one(folder: Path) -> bool:
    """Return whether a folder is one task: shards or folders of splits, or folders that hold images themselves."""
    files = [path for path in folder.iterdir() if path.is_file() and path.suffix in FILES]
    shards = [path for path in files if path.suffix == ".parquet"]
    if shards and len(shards) == len(files):
        return any(split_of(path.stem.replace(".", "-").split("-")[0]) for path in shards)
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


def _listed_in(task: ImageTask) -> set[str]:
    """Return folders whose images a table lists; they are no tasks of their own."""
    if not isinstance(task.source, PathTable):
        return set()
    places = (PurePosixPath(name).parts for name in task.source.content().names)  # `./` counts for nothing
    return {parts[0] for parts in places if len(parts) > 1}
