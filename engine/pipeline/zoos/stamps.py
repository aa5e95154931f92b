"""States of brought files by names, sizes and times, for the keys of steps that look at them.

Nothing is read but the paths that tables of images list.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from ...zoo.described.sources import BESIDE
from ...zoo.encoders.architecture import VOCABULARY
from ...zoo.importing.roots import WEIGHTS
from ...zoo.modalities import MODALITIES

Stamp = tuple[str, int, int]  # name, bytes, and time of the last change in nanoseconds
MOST = 500_000  # entries below one place of data; what comes behind them, in order of names, is not looked at
TABLES = (".csv", ".tsv")  # may list images that lie elsewhere in their folder


def stamps_of_model(path: Path) -> list[Stamp]:
    """Return the states of a file of weights and of what lies beside it for it, or of the files in a model's folder."""
    if path.is_dir():
        return [_stamp(item) for item in sorted(path.iterdir()) if item.is_file()]
    words = dict.fromkeys(name for kind in MODALITIES.values() for name in kind.tokenizers)
    beside = [path.with_name(name) for name in (*BESIDE, *words, VOCABULARY, "zoo.yaml")]
    if path.name.endswith(".index.json") and path.parent.is_dir():
        beside += [item for item in path.parent.iterdir() if item.suffix in WEIGHTS]
    return [_stamp(path), *(_stamp(item) for item in sorted(beside) if item.is_file())]


def stamps_of_data(path: Path) -> list[Stamp]:
    """Return the states of a task's data and of their description: of a folder or a table of images one for all."""
    described = path.with_name(f"{path.stem if path.is_file() else path.name}.json")
    found = [_stamp(item) for item in (path, described) if item.is_file()]
    if path.is_dir():
        found.append(_digested(_below(path)))
    elif path.suffix in TABLES:
        found.append(_digested(_listed(path)))
    return found


def stamp_of_file(path: Path) -> list[Stamp]:
    """Return the state of one file."""
    return [_stamp(path)]


def _digested(stamps: Iterator[Stamp]) -> Stamp:
    """Return one stamp for many: a digest of all, their bytes, and the time of the newest."""
    digest, count, size, newest = hashlib.sha256(), 0, 0, 0
    for name, own, time in islice(stamps, MOST):
        digest.update(f"{name}\0{own}\0{time}\n".encode("utf-8", "surrogateescape"))
        count, size, newest = count + 1, size + own, max(newest, time)
    return f"{count} entries {digest.hexdigest()}", size, newest


def _below(top: Path) -> Iterator[Stamp]:
    """Return what lies below a folder, folder by folder in order of names; links and hidden parts are not followed."""
    waiting = [""]
    while waiting:
        before = waiting.pop()
        try:
            with os.scandir(top / before) as listed:
                entries = sorted((entry for entry in listed if not entry.name.startswith(".")), key=lambda e: e.name)
        except OSError:
            yield before, -1, 0  # it cannot be read, which a look at it will say
            continue
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                yield (before + entry.name, *_state(entry))
        waiting += [f"{before}{e.name}/" for e in reversed(entries) if e.is_dir(follow_symlinks=False)]


def _listed(table: Path) -> Iterator[Stamp]:
    """Return the images that a table lists inside its folder; none of a table of texts, or from its first damage on."""
    from ...zoo.images.readers.tables import PATH_COLUMNS

    with suppress(OSError, UnicodeDecodeError, csv.Error), table.open(encoding="utf-8-sig", newline="") as stream:
        head = stream.readline()
        delimiter = max(",;\t", key=head.count)
        columns = [name.strip().lower() for name in next(csv.reader([head], delimiter=delimiter), [])]
        column = next((columns.index(name) for name in PATH_COLUMNS if name in columns), None)
        if column is None:
            return
        for row in csv.reader(stream, delimiter=delimiter):
            name = row[column].strip() if len(row) > column else ""
            if not name.startswith("/") and ".." not in name.split("/"):
                yield (name, *_state(table.parent / name))


def _stamp(path: Path) -> Stamp:
    return (str(path), *_state(path))


def _state(path: Path | os.DirEntry[str]) -> tuple[int, int]:
    try:
        found = path.stat()
    except (OSError, ValueError):  # a name in a table may be none
        return 0, 0
    return found.st_size, found.st_mtime_ns
