"""Texts as people have them: which tasks a place holds, what their classes are called, how they come into a zoo."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import DataError
from ..brought_task import BroughtTask, check_room, check_share, distinct, read_description
from ..images.readers.source import split_of
from ..images.splits import share_of_each_class
from ..names import safe_name
from .tables import READERS, SPLIT, TextTable

FORMS = "a .jsonl, .csv, .tsv or .parquet file with texts and labels, or a folder with one for each split, one a task"


@dataclass(frozen=True)
class TextTask(BroughtTask):
    """Texts of one task."""

    source: TextTable

    def known_classes(self) -> dict[str, Any]:
        """Return the data's own classes."""
        if self.source.span is not None:
            low, high = self.source.span
            raise DataError(
                f"{self.path.name} has numbers from {low:g} to {high:g} as labels, and experts are trained on classes. "
                "Give its texts classes in a column `label`."
            )
        names = self.source.brought
        spaced = [name.replace("_", " ").strip() for name in names]
        return {"classes": spaced if len({*spaced}) == len(names) else list(names)} if names else {}

    def prompts(self, templates: Sequence[str]) -> dict[str, Any]:
        """Return nothing: no head is built of class names."""
        return {}


def find_text_tasks(place: Path) -> tuple[list[TextTask], list[str]]:
    """Return the tasks that a place holds, by name; see :func:`find_texts`.

    Raises:
        DataError: no texts, texts that cannot be read, two tasks of one name.
    """
    found, left = find_texts(place)
    return distinct([_task(path) for path in found]), left


def set_aside(task: TextTask, zoo: Path, *, share: float, seed: int) -> str:
    """Bring texts without splits into a zoo: a share of every class to test on, the rest to train on.

    Args:
        task: its texts are all test texts as they are.
        zoo: the zoo's folder.
        share: of every class's texts that are tested on, between 0 and 1.
        seed: of the choice.

    Returns:
        What the manifest names as ``data:``, a file of JSON lines.

    Raises:
        DataError: a share that leaves nothing, one text a class, or no room on the disk.
    """
    check_share(share)
    labels = task.source.labels("test")
    tested = share_of_each_class(labels, share, task.name, seed)
    if not tested.any():
        raise DataError(f"{task.path.name} has one text a class; none can be set aside. Bring a split of test texts.")
    names = task.source.brought
    texts = task.source.texts("test", range(len(labels)))
    lines = [
        {
            "text": first,
            "text_pair": second,
            "label": names[label] if names else label,
            SPLIT: "test" if test else "train",
        }
        for (first, second), label, test in zip(texts, labels.tolist(), tested, strict=True)
    ]
    written = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    check_room(zoo, len(written))
    target = Path("data") / f"{task.name}.jsonl"
    (zoo / "data").mkdir(exist_ok=True)
    (zoo / target).write_bytes(written)
    return target.as_posix()


def _task(path: Path) -> TextTask:
    stem = path.stem if path.is_file() else path.name
    beside = path.parent / f"{stem}.json"
    try:
        return TextTask(safe_name(stem), path, TextTable(path), beside, read_description(beside))
    except DataError as error:
        raise DataError(f"{path.name}: {error}") from error


def find_texts(place: Path) -> tuple[list[Path], list[str]]:
    """Return the tables of texts that a place holds, one a task, by name.

    Args:
        place: the texts of one task (a file, or a folder of files that are named after splits), or a folder with those
            of several.

    Returns:
        The tables, and names of folders that hold none and are left out.

    Raises:
        DataError: there are none.
    """
    if not place.exists():
        raise DataError(f"There is no {place}. Give {FORMS}, or a folder of such.")
    if place.is_file():
        if place.suffix not in READERS:
            raise DataError(f"{place.name} is no table of texts. What is expected: {FORMS}.")
        return [place.resolve()], []
    if is_split(place):
        return [place.resolve()], []
    inside = [path for path in sorted(place.iterdir()) if not path.name.startswith(".")]
    folders = [path for path in inside if path.is_dir()]
    found = [path for path in inside if (path.is_file() and path.suffix in READERS) or is_split(path)]
    if not found:
        raise DataError(f"{place} holds no texts of a known form. What is expected: {FORMS}.")
    return found, [path.name for path in folders if path not in found]


def is_split(folder: Path) -> bool:
    """Return whether a folder holds tables that are named after splits, and no others."""
    if not folder.is_dir():
        return False
    tables = [path for path in folder.iterdir() if path.is_file() and path.suffix in READERS]
    return bool(tables) and all(split_of(path.stem.split("-")[0]) for path in tables)
