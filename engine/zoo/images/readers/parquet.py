"""Parquet shards in the Hugging Face image layout: an image column of encoded bytes, a column of labels."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ....errors import DataError
from ....store.digests import FileSet
from ..decoding import Encoded
from .source import LABELLED, SPLITS, split_of, with_test

IMAGE_COLUMNS = ("image", "img", "images", "picture", "jpg", "png", "webp")  # the last as WebDataset names them
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "category", "cls")
READ_ROWS = 32
MAX_SHARDS = 100_000
MOST = 2**53  # up to here every whole number is a float
NAMED = 4
NAMES_DIFFER = "Its shards list different class names; every label is read by the names of its own shard."


class ParquetShards:
    """One parquet file or a folder of them; shards are read from front to back, a few rows at a time."""

    ordered = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shards = {split: [_Shard.open(file) for file in files] for split, files in self._files().items()}
        found, self.notes = with_test(self._shards)
        self._shards = found
        self.lengths = {split: sum(s.count for s in found[split]) for split in SPLITS if split in found}
        labelled = [shard for split, shards in found.items() if split in LABELLED for shard in shards]
        self.brought, self.ordered = _united(labelled)
        # Where all shards list the same names, labels are positions in ``brought`` as they are.
        self._number = {} if self.ordered else {name: index for index, name in enumerate(self.brought)}
        if not self.ordered and any(shard.classes for shard in labelled):
            self.notes = (*self.notes, NAMES_DIFFER)
        self._lock = threading.Lock()
        self._cursor: _Cursor | None = None

    def _files(self) -> dict[str, list[Path]]:
        files = [self.path] if self.path.is_file() else sorted(self.path.rglob("*.parquet"))
        if len(files) > MAX_SHARDS:
            raise DataError(f"{self.path.name} holds {len(files):,} parquet files; at most {MAX_SHARDS:,} are read.")
        found: dict[str, list[Path]] = {}
        splits = {file: _split_of_file(file, self.path) for file in files}
        for file, split in splits.items():
            if split is None and any(splits.values()):
                raise DataError(
                    f"{self.path.name} holds {file.relative_to(self.path)}, which no split is called, beside shards of "
                    f"{', '.join(sorted(set(filter(None, splits.values()))))}. Name it after a split (train, val, test "
                    "or adapt), or move it elsewhere if it is no part of the data."
                )
            found.setdefault(split or "test", []).append(file)
        for split, shards in found.items():
            folders = {shard.parent for shard in shards}
            if len(folders) > 1:
                places = ", ".join(sorted(str(folder.relative_to(self.path)) for folder in folders)[:4])
                raise DataError(
                    f"{self.path.name} holds {split} shards in several folders ({places}), which look like several "
                    "configurations. Name one of them as `data:`."
                )
        return found

    def labels(self, split: str) -> np.ndarray:
        """Return labels in the order of the shards (n,)."""
        parts = [shard.labels(self._number) for shard in self._shards[split]]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def names(self, split: str, rows: Sequence[int]) -> list[str]:
        """Return shard and row."""
        return [f"{shard.path.name} row {inside}" for shard, inside in (self._place(split, row) for row in rows)]

    def encoded(self, split: str, row: int) -> Encoded:
        """Return the encoded bytes of one image; rows in growing order are read in one go."""
        shard, inside = self._place(split, row)
        with self._lock:
            if self._cursor is None or not self._cursor.reaches(shard, inside):
                self._cursor = _Cursor(shard, inside)
            value = self._cursor.take(inside)
        if not isinstance(value, bytes) or not value:
            raise OSError("the row holds no image bytes")
        return value

    def content(self) -> Path | FileSet:
        """Return the shards."""
        if self.path.is_file():
            return self.path
        shards = (shard.path.relative_to(self.path).as_posix() for part in self._shards.values() for shard in part)
        return FileSet(self.path, tuple(sorted(shards)))

    def _place(self, split: str, row: int) -> tuple[_Shard, int]:
        for shard in self._shards[split]:
            if row < shard.count:
                return shard, int(row)
            row -= shard.count
        raise DataError(f"{self.path.name} has no {split} image {row}.")


@dataclass(frozen=True, eq=False)
class _Shard:
    path: Path
    count: int
    image: str  # column
    nested: bool  # whether the column is a struct with a field of bytes
    label: str | None
    classes: tuple[str, ...]  # names of the labels 0, 1, …, where labels are numbers
    words: bool  # whether labels are words
    texts: tuple[str, ...]  # distinct labels, where labels are words

    @classmethod
    def open(cls, path: Path) -> _Shard:
        """Read a shard's schema; images stay on disk.

        Raises:
            DataError: no parquet file, no column of encoded images, or labels of a type that cannot be used.
        """
        try:
            file = pq.ParquetFile(path)
            schema, count = file.schema_arrow, file.metadata.num_rows
            image, nested = _image_column(schema, path)
            features = _features(schema)
            label = _label_column(schema, features, path)
            words = label is not None and _is_words(schema.field(label).type)
            texts = _distinct(file.read(columns=[label]).column(0)) if words else ()
        except (OSError, pa.ArrowException, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path.name} is damaged or no parquet file ({str(error)[:160]}).") from error
        names = features.get(label, {}).get("names") if label and not words else None
        classes = tuple(map(str, names)) if isinstance(names, list) else ()
        return cls(path, count, image, nested, label, classes, words, texts)

    def labels(self, number: dict[str, int]) -> np.ndarray:
        """Return labels (n,); -1 where there is none.

        Args:
            number: the place of each class name, where labels go by names; {} takes numbers as they are.

        Raises:
            DataError: they cannot be read, are no whole numbers, or have no names where labels go by names.
        """
        if self.label is None:
            return np.full(self.count, -1, np.int64)
        try:
            column = pq.read_table(self.path, columns=[self.label]).column(0)
            if self.words:
                texts = (None if value is None else str(value) for value in column.to_pylist())
                return np.array([-1 if text is None else number.get(text, -1) for text in texts], np.int64)
            labels = self._whole(column)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"The labels in {self.path.name} cannot be read ({str(error)[:160]}).") from error
        return self._by_name(labels, number) if number else labels

    def _whole(self, column: pa.ChunkedArray) -> np.ndarray:
        """Return numbers or booleans (as PatchCamelyon has them) as whole numbers (n,); -1 where there is none."""
        if not pa.types.is_floating(_inner(column.type)):
            return column.cast(pa.int64()).fill_null(-1).to_numpy()
        values = column.cast(pa.float64()).fill_null(-1).to_numpy()
        values = np.where(np.isnan(values), -1, values)
        odd = values[(values != np.round(values)) | (np.abs(values) > MOST)]
        if len(odd):
            raise DataError(
                f"{self.path.name} has the label {odd[0]:g} in its column `{self.label}`; whole numbers or words are "
                "expected. Write the number or the name of a class there, or rename the column if it holds no labels."
            )
        return values.astype(np.int64)

    def _by_name(self, labels: np.ndarray, number: dict[str, int]) -> np.ndarray:
        """Return the places of this shard's own class names (n,); labels below 0 stay."""
        highest = int(labels.max(initial=-1))
        if highest >= 0 and not self.classes:
            raise DataError(
                f"{self.path.name} has numbers as labels and names no classes, while other shards list different "
                f"names, or have words. Write its class names ({_listed(tuple(number))}) as its labels, or write all "
                "shards with the same names."
            )
        if highest >= len(self.classes):
            raise DataError(
                f"{self.path.name} has the label {highest}, but lists {len(self.classes)} class names (0 to "
                f"{len(self.classes) - 1}: {_listed(self.classes)}). Correct the labels, or the names in its metadata."
            )
        places = np.array([number.get(name, -1) for name in self.classes], np.int64)
        return np.where(labels < 0, labels, places[np.maximum(labels, 0)]) if len(places) else labels


class _Cursor:
    """Goes through the images of one row group a few rows at a time."""

    def __init__(self, shard: _Shard, row: int) -> None:
        self.shard = shard
        file = pq.ParquetFile(shard.path, buffer_size=2**20, pre_buffer=False)
        start = 0
        for group in range(file.num_row_groups):
            self.stop = start + file.metadata.row_group(group).num_rows
            if row < self.stop:
                break
            start = self.stop
        column = f"{shard.image}.bytes" if shard.nested else shard.image
        self._batches: Iterator[Any] = file.iter_batches(READ_ROWS, row_groups=[group], columns=[column])
        self._first, self._values = start, []

    def reaches(self, shard: _Shard, row: int) -> bool:
        """Return whether a row lies here or further on in this row group."""
        return shard is self.shard and self._first <= row < self.stop

    def take(self, row: int) -> Any:
        """Return the value of a row.

        Raises:
            OSError: the file is damaged there.
        """
        while row >= self._first + len(self._values):
            self._first += len(self._values)
            try:
                column = next(self._batches).column(0)
            except (pa.ArrowException, StopIteration, ValueError) as error:
                raise OSError(f"{self.shard.path.name} is damaged: {str(error)[:120]}") from error
            self._values = (column.field("bytes") if self.shard.nested else column).to_pylist()
        return self._values[row - self._first]


def _split_of_file(file: Path, root: Path) -> str | None:
    """Return a shard's split: ``test-00000-of-00002.parquet``, ``test.parquet``, ``test/0000.parquet``, ``test_0``.

    None where nothing names one, or several words of the file's name do.
    """
    head = file.stem.replace(".", "-").split("-")[0]
    if found := split_of(head):
        return found
    inside = file.relative_to(root).parts[:-1] if file != root else ()
    if found := next((found for part in reversed(inside) if (found := split_of(part))), None):
        return found
    words = {found for word in re.split(r"[-._ ]", file.stem) if (found := split_of(word))}
    return words.pop() if len(words) == 1 and file != root else None


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Return the columns' descriptions that Hugging Face's library writes into the metadata."""
    try:
        document = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = document["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return {k: v for k, v in features.items() if isinstance(v, dict)} if isinstance(features, dict) else {}


def _image_column(schema: pa.Schema, path: Path) -> tuple[str, bool]:
    def kind(field: pa.Field) -> bool | None:
        if pa.types.is_struct(field.type):
            inner = {field.type.field(i).name: field.type.field(i).type for i in range(field.type.num_fields)}
            return True if _binary(inner.get("bytes")) else None
        return False if _binary(field.type) else None

    found = {field.name: nested for field in schema if (nested := kind(field)) is not None}
    known = sorted(found, key=lambda name: name not in IMAGE_COLUMNS)  # `image` before `Image`
    spelled = {name.lower(): name for name in reversed(known)}
    name = next((spelled[name] for name in IMAGE_COLUMNS if name in spelled), None) or next(iter(found), None)
    if name is None:
        raise DataError(
            f"{path.name} has no column of encoded images; it has {', '.join(schema.names[:8])}. A column `image` of "
            "bytes, or of a struct with `bytes`, is expected."
        )
    return name, found[name]


def _binary(kind: pa.DataType | None) -> bool:
    return kind is not None and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _label_column(schema: pa.Schema, features: dict[str, Any], path: Path) -> str | None:
    kinds = {field.name: field.type for field in schema}
    spelled = {name.strip().lower(): name for name in reversed(schema.names)} | {name: name for name in schema.names}
    usable = [name for name, kind in kinds.items() if _is_label(kind)]
    for name in (spelled[known] for known in LABEL_COLUMNS if known in spelled):
        if name in usable:
            return name
        if name in kinds:
            raise DataError(
                f"{path.name} has a column `{name}` of {kinds[name]!s:.80}; labels are expected there: whole "
                "numbers, words or booleans. Convert the column, or rename it if it holds no labels."
            )
    described = [name for name, feature in features.items() if feature.get("_type") == "ClassLabel" and name in usable]
    if described:
        return described[0]
    whole = [name for name, kind in kinds.items() if pa.types.is_integer(kind)]
    return whole[0] if len(whole) == 1 else None


def _inner(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, also where they are written as places in a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_words(kind: pa.DataType) -> bool:
    inner = _inner(kind)
    return pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_string_view(inner)


def _is_label(kind: pa.DataType) -> bool:
    """Return whether values of a type can be labels; a column of nulls has none of them."""
    inner = _inner(kind)
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    return _is_words(kind) or any(is_kind(inner) for is_kind in kinds)


def _distinct(column: pa.ChunkedArray) -> tuple[str, ...]:
    """Return every word once; arrow makes '' of nulls in views, and chunks may have dictionaries of their own."""
    plain = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    values = column.unique().to_pylist() if plain else column.to_pylist()
    return tuple({str(value): None for value in values if value is not None})


def _united(shards: Sequence[_Shard]) -> tuple[tuple[str, ...], bool]:
    """Return the class names of all labelled shards, and whether their order is the data's own.

    Words are sorted. Where shards list different names, those of the first that lists most come first, then those that
    only others list, and the order counts for nothing.
    """
    lists = list(dict.fromkeys(shard.classes for shard in shards if shard.classes))
    texts = {text for shard in shards for text in shard.texts}
    if texts:
        return tuple(sorted(texts.union(*lists))), False
    if len(lists) < 2:
        return (lists[0] if lists else ()), True
    longest = max(lists, key=len)
    return tuple(dict.fromkeys(name for names in (longest, *lists) for name in names)), False


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:NAMED]) + (" …" if len(names) > NAMED else "")
