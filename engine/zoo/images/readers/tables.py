"""A CSV (or TSV) file of image paths and labels, with or without a column of splits."""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ....errors import DataError
from ....store.digests import FileSet
from ..decoding import Encoded
from .source import LABELLED, SPLITS, split_of, with_test

PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img")
LABEL_COLUMNS = ("label", "class", "target", "category", "class_name", "y")
SPLIT_COLUMNS = ("split", "subset", "partition", "fold")
MAX_TABLE_BYTES = 512 * 2**20
SNIFFED = 4096  # characters
NUMBER = re.compile(r"(-?\d{1,18})(\.0+)?")  # tables with gaps have 1 as 1.0


class PathTable:
    """Images that a table lists; paths are relative to the table and may not leave its folder."""

    ordered = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._root = path.parent.resolve()
        found, self.notes = with_test(self._rows())
        texts = {label for split in LABELLED for _, label in found.get(split, ()) if label}
        whole = bool(texts) and all(map(is_number, texts))
        self.brought = () if whole else tuple(sorted(texts))
        number = {t: int(t.partition(".")[0]) for t in texts} if whole else {t: i for i, t in enumerate(self.brought)}
        self._files = {split: [file for file, _ in items] for split, items in found.items()}
        self._labels = {
            split: np.array([number.get(label, -1) for _, label in items], np.int64) for split, items in found.items()
        }
        self.lengths = {split: len(self._files[split]) for split in SPLITS if split in self._files}

    def _rows(self) -> dict[str, list[tuple[str, str]]]:
        found: dict[str, list[tuple[str, str]]] = {}
        try:
            if self.path.stat().st_size > MAX_TABLE_BYTES:
                raise DataError(f"{self.path.name} is larger than {MAX_TABLE_BYTES:,} bytes.")
            with self.path.open(encoding="utf-8-sig", newline="") as stream:
                delimiter = delimiter_of(stream.read(SNIFFED))
                stream.seek(0)
                reader = csv.DictReader(stream, delimiter=delimiter)
                columns = self._columns(reader.fieldnames or [])
                for line, row in enumerate(reader, start=2):
                    split, file, label = self._row(row, columns, line)
                    found.setdefault(split, []).append((file, label))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{self.path.name} cannot be read as a table ({error}).") from error
        if not found:
            raise DataError(f"{self.path.name} lists no images.")
        return found

    def _columns(self, names: Sequence[str]) -> tuple[str, str | None, str | None]:
        plain = {name.strip().lower(): name for name in names if name}
        file, label, split = (
            next((plain[name] for name in known if name in plain), None)
            for known in (PATH_COLUMNS, LABEL_COLUMNS, SPLIT_COLUMNS)
        )
        if file is None or label is None:
            raise DataError(
                f"{self.path.name} needs a first line with the columns `path` and `label` (and `split`, where there "
                f"are splits); it has {', '.join(list(plain)[:8]) or 'none'}."
            )
        return file, label, split

    def _row(self, row: dict[str, str], columns: tuple[str, str | None, str | None], line: int) -> tuple[str, str, str]:
        file, label, split = ((row.get(column) or "").strip() if column else "" for column in columns)
        place = f"{self.path.name} line {line}"
        if not file:
            raise DataError(f"{place} names no image.")
        where = split_of(split) if columns[2] else "test"
        if where is None:
            found = f"the split '{split[:40]}'" if split else f"no {columns[2]}"
            raise DataError(f"{place} has {found}; train, test, val and adapt are known.")
        if not label and where != "adapt":
            raise DataError(f"{place} has no label.")
        plain = self._plain(file)
        if not plain:
            raise DataError(
                f"{place} names '{file[:120]}', which lies outside the table's folder or leads through what does. "
                "Write paths from the table's folder on, and move images into it."
            )
        return where, plain, label

    def _plain(self, file: str) -> str:
        """Return a path without its detours; '' where it leaves the table's folder, also on its way or by a link."""
        short = posixpath.normpath(file)
        try:
            places = {(self._root / way).resolve() for way in ((short, file) if ".." in file else (short,))}
        except (OSError, RuntimeError, ValueError):  # a link that leads to itself, or no path at all
            return ""
        away = Path(file).is_absolute() or short.split("/")[0] == ".." or len(places) > 1
        return "" if away or not places.pop().is_relative_to(self._root) else short

    def labels(self, split: str) -> np.ndarray:
        """Return whole numbers as listed, or positions in ``brought`` (n,)."""
        return self._labels[split]

    def names(self, split: str, rows: Sequence[int]) -> list[str]:
        """Return paths as listed."""
        return [self._files[split][row] for row in rows]

    def encoded(self, split: str, row: int) -> Encoded:
        """Return one image file."""
        return self._root / self._files[split][row]

    def content(self) -> Path | FileSet:
        """Return the table and every image that exists."""
        files = {file for listed in self._files.values() for file in listed if (self._root / file).is_file()}
        return FileSet(self._root, (self.path.name, *sorted(files)))


def is_number(label: str) -> bool:
    """Return whether a table's label is a whole number; where all are, they are places in the class list."""
    return NUMBER.fullmatch(label) is not None


def delimiter_of(head: str) -> str:
    """Return what separates the columns of a table, by its first line."""
    line = head.splitlines()[0] if head.splitlines() else ""
    return max(",;\t", key=line.count)
