"""Matching of the class names that data bring with the class list of a manifest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..catalog.datasets import KnownDataset, find_dataset, recognise_dataset
from ..errors import DataError
from ..manifest import Task

WORDNET = re.compile(r"^n\d{8}$")
NAMED = 4


@dataclass(frozen=True)
class Matched:
    """The place of each label of the data in the manifest's class list."""

    positions: np.ndarray | None  # (own labels,) positions in ``classes``; None where labels already are positions
    notes: tuple[str, ...] = ()


def match_classes(brought: tuple[str, ...], task: Task, *, ordered: bool) -> Matched:
    """Lay the data's own names beside the manifest's.

    Args:
        brought: the data's names of its labels 0, 1, …; () where it has none.
        task: its manifest entry.
        ordered: whether the labels' order is the data set's own, so that it counts where names differ.

    Raises:
        DataError: the names are others than the manifest's, and the order decides nothing.
    """
    if not brought:
        return Matched(None)
    for names in _spellings(brought, task):
        if (places := _places(brought, names)) is not None:
            return _found(places, task)
    if all(name.isascii() and name.isdigit() for name in brought):
        numbers = [int(name) for name in brought]
        if max(numbers) < len(task.classes):
            return _found(numbers, task)
    same = len(brought) == len(task.classes)
    if same and (ordered or all(WORDNET.match(name) for name in brought)):
        read = _telling_apart(brought, task.classes)
        own, name = next(pair for pair in zip(brought, task.classes, strict=True) if read(pair[0]) != read(pair[1]))
        note = f"the data call class '{name}' '{own}'; names differ, so classes are taken in the data's order"
        return Matched(None, (f"Task '{task.name}': {note}.",))
    raise DataError(_mismatch(brought, task))


def _places(brought: Sequence[str], names: Sequence[str]) -> list[int] | None:
    """Return the place of each of the data's names among others, by the strictest reading that finds all of them."""
    for read in READINGS:
        place = {read(name): number for number, name in enumerate(names)}
        if len(place) == len(names) and all(read(name) in place for name in brought):
            return [place[read(name)] for name in brought]
    return None


def _telling_apart(*lists: Sequence[str]) -> Callable[[str], str]:
    """Return the loosest reading under which no two names of one list are the same."""
    apart = (read for read in reversed(READINGS) if all(len(set(map(read, names))) == len(names) for names in lists))
    return next(apart, str)


def _spellings(brought: tuple[str, ...], task: Task) -> Iterator[Sequence[str]]:
    """Yield the class list, then, where that is asked for, other names of the same classes in the same order."""
    yield task.classes
    row = _row_of(brought, task)
    if row and row.count == len(task.classes):
        yield row.label_names
        yield row.classes


def _row_of(brought: tuple[str, ...], task: Task) -> KnownDataset | None:
    """Return the catalogue's row that a task names, or that its own name or the data's names speak of."""
    if task.dataset:
        return find_dataset(task.dataset)
    return recognise_dataset(task.name, brought)


def _found(positions: list[int], task: Task) -> Matched:
    missing = [name for number, name in enumerate(task.classes) if number not in set(positions)]
    notes = ()
    if missing:
        more = " …" if len(missing) > NAMED else ""
        notes = (f"Task '{task.name}': {len(missing)} classes have no images: {', '.join(missing[:NAMED])}{more}.",)
    if positions == list(range(len(positions))):
        return Matched(None, notes)
    return Matched(np.array(positions, np.int64), notes)


def _mismatch(brought: tuple[str, ...], task: Task) -> str:
    read = _telling_apart(brought, task.classes)
    known = {read(name) for name in task.classes}
    own = {read(name) for name in brought}
    strange = [name for name in brought if read(name) not in known]
    missing = [name for name in task.classes if read(name) not in own]

    def listed(names: list[str]) -> str:
        return ", ".join(f"'{name}'" for name in names[:NAMED]) + (" …" if len(names) > NAMED else "")

    return (
        f"Task '{task.name}': the data have {len(brought)} classes, zoo.yaml lists {len(task.classes)}. "
        f"Only in the data: {listed(strange) or 'none'}; only in zoo.yaml: {listed(missing) or 'none'}. "
        "Give both the same names, in zoo.yaml or in the data (a known data set may be named with `dataset:`)."
    )


def _plain(name: str) -> str:
    """Return a name without case, spaces and punctuation; SUN397's ``/a/abbey`` loses its letter."""
    return re.sub(r"[\W_]+", "", re.sub(r"^/?[a-z]/", "", name).casefold())


def _spaced(name: str) -> str:
    """Return a name with spaces for underscores, as a new zoo writes the names of folders."""
    return " ".join(name.replace("_", " ").split())


def _folded(name: str) -> str:
    return _spaced(name).casefold()


READINGS = (str, _spaced, _folded, _plain)  # of names, the strictest first; 'C' and 'C++' are plainly the same
