"""Texts as people have them: which tasks a place holds. Free of torch."""

from __future__ import annotations

from pathlib import Path

from ...errors import DataError
from ..images.readers.source import split_of
from .tables import READERS

FORMS = "a .jsonl, .csv, .tsv or .parquet file with texts and labels, or a folder with one for each split, one a task"


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
