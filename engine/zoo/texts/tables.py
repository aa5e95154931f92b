"""Texts with labels in tables: JSON lines, CSV and parquet, one file with splits in it or a file for each split."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ...store.digests import FileSet
from ..images.readers.source import EVALUATED_INSTEAD, LABELLED, split_of
from ..images.readers.tables import SNIFFED, delimiter_of
from .grades import as_numbers, nearest

MAX_BYTES = 2 * 2**30
MAX_CELL = 10_000_000  # characters
# Columns of a text and of its second part, as public data sets call them (those of GLUE among them).
COLUMNS: tuple[tuple[str, str], ...] = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text", ""),
    ("sentence", ""),
)
LABELS = ("label", "labels", "class")
SPLIT = "split"
KNOWN = frozenset(name for pair in COLUMNS for name in pair if name) | {*LABELS, SPLIT}
HIDDEN = "The labels of its test split are kept secret (all are −1), so that split is left out."
FIELD = re.compile(r"\{(\w+)\}")  # a column in a prompt
HALF = re.compile("[\ud800-\udfff]")  # of a character, as JSON can spell it
WHOLE = re.compile(r"(-?\d{1,18})(\.0+)?")  # a label that is a number, as tables with gaps have it too
MOST = 10**18
Pair = tuple[str, str]
Row = dict[str, Any]


class TextTable:
    """Texts, second parts and labels of one task, read when it is opened."""

    ordered = False

    def __init__(self, path: Path, prompt: str = "", grades: Sequence[float] = ()) -> None:
        """Read a file, or a folder of files that are named after splits.

        Args:
            path: of the file or folder.
            prompt: what a text is made of, with columns in braces; '' reads the usual columns.
            grades: the numbers that labels are rounded to, where they are numbers and no classes.

        Raises:
            DataError: nothing that can be read as texts with labels.
        """
        self.path = path
        self._files = _files(path)
        columns = FIELD.findall(prompt)
        rows = [(split, row) for file, split in self._files for row in _rows(file, columns)]
        if not rows:
            raise DataError(f"{path.name} holds no rows.")
        self._texts: dict[str, list[Pair]] = {}
        found: dict[str, list[Any]] = {}
        for given, read in rows:
            row = _as_known(read, columns)
            split = given or _split(row, path)
            pair = (_filled(prompt, columns, row, path), "") if prompt else _pair(row, path)
            self._texts.setdefault(split, []).append(pair)
            found.setdefault(split, []).append(_label(row))
        if set(found) - set(LABELLED) and as_numbers([label for labels in found.values() for label in labels]) is None:
            found = {split: found[split] for split in found if split in LABELLED}  # a word beside others is no class
        self.notes: tuple[str, ...] = ()
        if found.get("test") and "val" in found and all(_hidden(label) for label in found["test"]):
            del self._texts["test"], found["test"]
            self.notes = (HIDDEN,)
        self.span: tuple[float, float] | None = None  # of labels that are numbers and no classes
        if grades or (numbers := _span(found)) is None:
            self.brought, self._labels = _graded(found, grades, path) if grades else _numbered(found, path)
        else:
            self.span, self.brought, self._labels = numbers, (), {}
        if "test" not in self._texts and "val" in self._texts:
            self._texts["test"], self._labels["test"] = self._texts.pop("val"), self._labels.pop("val")
            self.notes = (*self.notes, EVALUATED_INSTEAD)
        self.lengths = {split: len(texts) for split, texts in self._texts.items()}

    def labels(self, split: str) -> np.ndarray:
        """Return labels of a split (n,).

        Raises:
            DataError: it has none.
        """
        if split not in self._labels and self.span is not None:
            raise DataError(
                f"{self.path.name} has numbers from {self.span[0]:g} to {self.span[1]:g} as labels, and no classes. "
                "List `grades` for the task in zoo.yaml, which they are rounded to, or import it with its expert."
            )
        if split not in self._labels:
            raise DataError(f"{self.path.name} has {split} texts without labels; a column `label` is expected.")
        return self._labels[split]

    def labelled(self, split: str) -> bool:
        """Return whether the texts of a split have labels."""
        return split in self._labels

    def texts(self, split: str, rows: Sequence[int] | np.ndarray) -> list[Pair]:
        """Return texts with their second parts, '' where there is none."""
        every = self._texts[split]
        return [every[int(row)] for row in rows]

    def content(self) -> Path | FileSet:
        """Return the file, or all files of the folder."""
        if self.path.is_file():
            return self.path
        return FileSet(self.path, tuple(sorted(file.relative_to(self.path).as_posix() for file, _ in self._files)))


def _files(path: Path) -> list[tuple[Path, str]]:
    """Return files with the split that their names speak of, '' where a column does."""
    if path.is_file():
        return [(path, "")]
    if not path.is_dir():
        raise DataError(f"the file {path.name} is missing from the zoo's folder.")
    found = [
        (file, split)
        for file in sorted(path.iterdir())
        if file.suffix in READERS and (split := split_of(file.stem.split("-")[0]))
    ]
    if not found:
        raise DataError(
            f"{path.name} holds no files such as train.jsonl, validation.csv or test.parquet. Name each after its "
            "split, or give one file with a column `split`."
        )
    return found


def _rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    if file.suffix not in READERS:
        raise DataError(f"{file.name} has none of the known forms: {', '.join(sorted(READERS))}.")
    if file.stat().st_size > MAX_BYTES:
        raise DataError(f"{file.name} has {file.stat().st_size:,} bytes; at most {MAX_BYTES:,} are read.")
    try:
        yield from READERS[file.suffix](file, columns)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file.name} is no UTF-8 text (byte {error.start:,} is {error.object[error.start]:#04x}). Save as UTF-8."
        ) from error
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise DataError(f"{file.name} cannot be read: {str(error)[:200]}.") from error


def _json_lines(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    with file.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"line {number} holds no object")
                if "\\ud" in line.lower() and HALF.search(json.dumps(row, ensure_ascii=False)):
                    raise ValueError(f"line {number} holds half of a character; \\ud800 to \\udfff stand in pairs")
                yield row


def _table(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    csv.field_size_limit(MAX_CELL)
    with file.open(encoding="utf-8-sig", newline="") as stream:
        delimiter = "\t" if file.suffix == ".tsv" else delimiter_of(stream.read(SNIFFED))
        stream.seek(0)
        yield from csv.DictReader(stream, delimiter=delimiter)


def _parquet(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            names = [name for name in opened.schema_arrow.names if name in columns or _plain(name) in KNOWN]
            for batch in opened.iter_batches(columns=names):
                yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error


READERS: dict[str, Callable[[Path, Sequence[str]], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".csv": _table,
    ".tsv": _table,
    ".parquet": _parquet,
}


def _plain(name: Any) -> str:
    return str(name).strip().lower()


def _as_known(row: Row, columns: Sequence[str]) -> Row:
    """Return a row whose known columns are spelled as here, `Label` as `label`; those of a prompt stay as they are."""
    if all(name in KNOWN or name in columns for name in row):
        return row
    spelled = {plain: value for name, value in row.items() if (plain := _plain(name)) in KNOWN}
    return {**spelled, **row}


def _label(row: Row) -> Any:
    """Return a row's label; None where there is none, or an empty one."""
    label = next((row[name] for name in LABELS if name in row), None)
    return None if isinstance(label, str) and not label.strip() else label


def _split(row: Row, path: Path) -> str:
    named = row.get(SPLIT)
    if named is None or named == "":
        return "test"
    split = split_of(str(named))
    if split is None:
        raise DataError(f"{path.name} has a row of the split {str(named)!r:.40}; train, val, test or adapt are known.")
    return split


def _pair(row: Row, path: Path) -> Pair:
    for first, second in COLUMNS:
        if first in row and (not second or second in row):
            parts = (row[first], row[second] if second else "")
            if any(part is not None and not isinstance(part, str) for part in parts):
                raise DataError(f"{path.name} has a `{first}` that is no text: {parts!r:.80}.")
            return (parts[0] or "", parts[1] or "")
    alone = next((second for _, second in COLUMNS if second and second in row), None)
    more = f" It has `{alone}`, and no first part for it." if alone else ""
    raise DataError(
        f"{path.name} has the columns {', '.join(map(str, row))[:120]}, and none of a text: "
        f"{', '.join(dict.fromkeys(first for first, _ in COLUMNS))} are known.{more}"
    )


def _filled(prompt: str, columns: Sequence[str], row: Row, path: Path) -> str:
    """Return a prompt with its columns filled in."""
    if missing := [name for name in columns if not isinstance(row.get(name), str)]:
        raise DataError(
            f"{path.name} has the columns {', '.join(map(str, row))[:120]}; the prompt asks for a text in "
            f"{', '.join(missing)[:80]}."
        )
    return FIELD.sub(lambda found: row[found.group(1)], prompt)


def _span(found: dict[str, list[Any]]) -> tuple[float, float] | None:
    """Return the least and greatest label where labels are numbers, some of them with decimals; else None."""
    every = [label for labels in found.values() if None not in labels for label in labels]
    if all(_whole(label) for label in every):
        return None
    values = as_numbers(every)
    if values is None or (values == np.round(values)).all():
        return None
    return float(values.min()), float(values.max())


def _graded(
    found: dict[str, list[Any]], grades: Sequence[float], path: Path
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Return no names, and labels as places among the grades."""
    known = {split: labels for split, labels in found.items() if None not in labels}
    return (), {split: nearest(labels, grades, path.name) for split, labels in known.items()}


def _numbered(found: dict[str, list[Any]], path: Path) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Return the data's own class names, () where labels are numbers, and labels of the splits that have some."""
    known = {split: labels for split, labels in found.items() if any(label is not None for label in labels)}
    for split, labels in known.items():
        if None in labels:
            raise DataError(f"{path.name}: {split} text {labels.index(None)} has no label; give all of them one.")
    every = [label for labels in known.values() for label in labels]
    if all(_whole(label) for label in every):
        return (), {split: np.array([_number(label) for label in labels], np.int64) for split, labels in known.items()}
    names = tuple(sorted({str(label) for label in every}))
    place = {name: number for number, name in enumerate(names)}
    return names, {s: np.array([place[str(label)] for label in labels], np.int64) for s, labels in known.items()}


def _hidden(label: Any) -> bool:
    """Return whether a label is the −1 that public data sets give texts whose labels they keep to themselves."""
    return str(label).strip() == "-1"


def _whole(label: Any) -> bool:
    if isinstance(label, str):
        return WHOLE.fullmatch(label.strip()) is not None
    if isinstance(label, bool) or not isinstance(label, int | float):
        return False
    return abs(label) < MOST and float(label).is_integer()


def _number(label: Any) -> int:
    """Return a label that is whole as a number."""
    return int(label.strip().partition(".")[0] if isinstance(label, str) else label)
