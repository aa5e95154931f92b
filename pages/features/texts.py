"""Samples that are shown in words: read from the zoo's tables when a page shows them, and searched in."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import streamlit as st

from engine.errors import DataError, EngineError
from engine.manifest import Task, locate_zoo, resolve_inside
from engine.report import Report
from engine.zoo.images.data import LABELLED, SPLITS
from engine.zoo.modalities import MODALITIES, Modality, modality_of
from pages.features.packing import Sentences
from pages.shared.chrome import plain
from pages.shared.zoos import zoo_manifest

BETWEEN = " ⟶ "  # the parts of a pair
FILE_BYTES = 64 * 2**20  # larger tables are not opened on the page
FOUND = "found"  # end of the key under which the last search is kept


@dataclass(frozen=True, eq=False)
class Split:
    """Texts of a split, both parts of a pair joined, and their labels (n,), None where they have none."""

    texts: Sequence[str]
    labels: np.ndarray | None


class Rows(Protocol):
    """Samples of some tasks: ``task`` (n,) indexes ``tasks``, ``index`` (n,) is the row in a task's test split."""

    key: str
    tasks: tuple[str, ...]
    task: np.ndarray
    index: np.ndarray

    def __len__(self) -> int: ...


def texts_of(rows: Rows, report: Report) -> Sentences | None:
    """Return the texts of samples; None where the zoo is of another kind of data, or its tables are not at hand."""
    try:
        folder, manifest = locate_zoo(report.recipe.zoo), zoo_manifest(report.recipe.zoo)
        kind = modality_of(manifest)
        if kind.shown != "words":
            return None
        parts = [task_texts(folder, kind, manifest.task_table[name], "test") for name in rows.tasks]
        texts = [parts[task][index] for task, index in zip(rows.task.tolist(), rows.index.tolist(), strict=True)]
    except (EngineError, OSError, KeyError, IndexError):
        return None  # the zoo, or a file that it names, is not here
    return Sentences(f"{report.zoo.digest}:{rows.key}", texts)


def task_texts(folder: Path, kind: Modality, task: Task, split: str) -> Sequence[str]:
    """Return the texts of a task's split, both parts of a pair joined.

    Raises:
        DataError: they cannot be read, or are too large to be opened by a page.
    """
    return task_splits(folder, kind, task).get(split, Split((), None)).texts


def task_splits(folder: Path, kind: Modality, task: Task) -> dict[str, Split]:
    """Return a task's texts by split, with their labels.

    Raises:
        DataError: they cannot be read, or are too large to be opened by a page.
    """
    place = resolve_inside(folder, task.data or "")
    try:
        stat = place.stat()
    except OSError as error:
        raise DataError(f"Task '{task.name}': {place.name} cannot be read: {error.strerror}.") from error
    if stat.st_size > FILE_BYTES:
        raise DataError(f"Task '{task.name}': {place.name} is too large to be opened by a page.")
    return _read(
        str(folder), kind.name, task, f"{task.name}:{task.data}:{task.classes}:{stat.st_mtime_ns}:{stat.st_size}"
    )


def few_texts(folder: Path, kind: Modality, task: Task, count: int) -> list[str]:
    """Return a few test texts of different classes, spread over all of them.

    Raises:
        DataError: they cannot be read.
    """
    test = task_splits(folder, kind, task)["test"]
    classes, first = np.unique(test.labels, return_index=True)
    spread = np.linspace(0, len(classes) - 1, min(count, len(classes))).astype(int)
    return [test.texts[row] for row in first[spread]]


def search(sentences: Sentences, visible: np.ndarray, noun: str, key: str) -> None:
    """Draw a field that selects the texts with some words in them.

    Args:
        sentences: a text a row.
        visible: (n,) whether a text is shown.
        noun: what texts are called.
        key: prefix of the widgets; found rows are handed over under ``{key}.picked``.
    """
    asked = st.text_input(
        f"Find {noun}",
        key=f"{key}.search",
        bind="query-params",
        max_chars=80,
        width=320,
        icon=":material/search:",
        placeholder="words, such as: not good",
        help="Selects the texts that hold these words one after another, in every panel.",
    )
    if not asked.strip():
        st.session_state.pop(f"{key}.{FOUND}", None)
        return
    rows = matches(sentences.texts, asked.strip())
    rows = rows[visible[rows]]
    st.caption(plain(f"{len(rows):,} of {int(visible.sum()):,} hold “{asked.strip()}”."))
    state = (asked, visible.tobytes())
    if st.session_state.get(f"{key}.{FOUND}") != state:
        st.session_state[f"{key}.{FOUND}"] = state
        st.session_state[f"{key}.picked"] = tuple(rows.tolist())


def matches(texts: Sequence[str], asked: str) -> np.ndarray:
    """Return rows (n,) of the texts that hold some words one after another, whatever their case."""
    words = r"\s+".join(map(re.escape, asked.split()))  # no longer words on either side
    before, after = (r"(?<!\w)" if asked[:1].isalnum() else ""), (r"(?!\w)" if asked[-1:].isalnum() else "")
    pattern = re.compile(before + words + after, re.IGNORECASE)
    return np.array([row for row, text in enumerate(texts) if pattern.search(text)], dtype=int)


@st.cache_resource(max_entries=64, show_spinner=False)
def _read(folder: str, kind: str, _task: Task, stamp: str) -> dict[str, Split]:
    data = MODALITIES[kind].open_task(Path(folder), _task)
    return {
        split: Split(
            [BETWEEN.join(part for part in pair if part) for pair in data.texts(split)],
            data.labels(split) if split in LABELLED else None,
        )
        for split in SPLITS
        if data.has(split)
    }
