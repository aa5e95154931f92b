"""A task's texts and labels, and rows of ids made of them when they are asked for. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ...manifest import Task, resolve_inside
from ...preparation import Tokenisation
from ..images.readers.source import LABELLED
from ..task_data import TaskData, graded_in_words
from .tables import Pair, TextTable
from .vocabulary import Vocabulary, read_vocabulary

NAMED = 5


@dataclass(frozen=True)
class TextData(TaskData):
    """Texts and labels of one task."""

    source: TextTable
    folder: Path = Path()  # the zoo's, where its vocabulary lies

    def texts(self, split: str, rows: np.ndarray | Sequence[int] | None = None) -> list[Pair]:
        """Return texts of a split with their second parts, '' where there is none."""
        return self.source.texts(split, np.arange(self.lengths[split]) if rows is None else rows)

    def samples(
        self, split: str, rows: np.ndarray | Sequence[int] | None = None, fit: Tokenisation | None = None
    ) -> np.ndarray:
        """Return token ids and segments: int64 (n, 2, length).

        Raises:
            DataError: an empty text among them.
            ZooError: the vocabulary cannot be read.
        """
        chosen = self.texts(split, rows)
        places = np.arange(len(chosen)) if rows is None else np.asarray(rows)
        if blank := [(int(places[number]), _reason(split, places[number])) for number in _blank(chosen)]:
            raise DataError(self.refusal(len(chosen), [reason for _, reason in blank]))
        fit = self._fit(fit)
        words = self._words(fit)
        ids = words.encode(chosen, fit.length).ids
        if fit.answers:
            ids[:, 1] = words.answers(self.task.classes, fit.length)
        return ids

    def seen_from(self, folder: Path, task: Task) -> TextData:
        """Return the same texts with that zoo's vocabulary, and with its task's prompt and answers.

        Raises:
            DataError: its prompt names columns that they do not have.
        """
        source = self.source if task.prompt == self.task.prompt else TextTable(self.source.path, task.prompt)
        return replace(self, task=task, source=source, folder=folder, preprocess=None)

    def read_by(self) -> dict[str, Any]:
        """Return what the manifest says that decides which texts there are, what is in them, or their labels."""
        found = super().read_by()
        if self.task.prompt:
            found["prompt"] = self.task.prompt
        if self.task.prompt or self._fit(None).answers:
            found["classes"] = list(self.task.classes)
        return found

    def stored(self, split: str, rows: np.ndarray | Sequence[int]) -> Iterator[bytes]:
        """Yield both parts of texts."""
        yield from ("\0".join(text).encode() for text in self.texts(split, rows))

    def named(self, split: str, rows: np.ndarray | Sequence[int]) -> list[str]:
        """Return splits and rows of texts."""
        return [_reason(split, row) for row in rows]

    def damaged(self, split: str) -> list[tuple[int, str]]:
        """List empty texts."""
        return [(row, _reason(split, row)) for row in _blank(self.texts(split))] if self.has(split) else []

    def corrupt(self, split: str) -> list[tuple[int, str]]:
        """List empty texts that are passed over, where the manifest says that they are."""
        return self.damaged(split) if self.task.corrupt == "skip" else []

    def refusal(self, count: int, reasons: Sequence[str]) -> str:
        """Return a sentence on empty texts."""
        more = f" and {len(reasons) - NAMED} more" if len(reasons) > NAMED else ""
        return (
            f"Task '{self.task.name}': {len(reasons)} of {count:,} texts hold no word: {'; '.join(reasons[:NAMED])}"
            f"{more}. Correct or remove them, or leave them out: `corrupt: skip` for this task in zoo.yaml, or "
            "`zoo init --skip-corrupt`."
        )

    def skipped(self) -> str:
        """Return a sentence on the texts that are passed over; '' where there are none."""
        found = [reason for split in self.lengths for _, reason in self.corrupt(split)]
        if not found:
            return ""
        more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
        named = "; ".join(found[:NAMED])
        return f"Task '{self.task.name}': {len(found)} texts hold no word and are left out: {named}{more}."

    def remarks(self) -> list[str]:
        """Return how many texts are cut, and how many words the vocabulary does not know."""
        fit = self._fit(None)
        words = self._words(fit)
        cut = unknown = every = 0
        for split in self.lengths:
            found = words.encode(self.texts(split), fit.length)
            cut += int((found.cut > 0).sum())
            every += int((found.ids[:, 0] != (fit.special[0] if fit.special else 0)).sum())
            unknown += int((found.ids[:, 0] == words.unknown).sum())
        name, count = self.task.name, sum(self.lengths.values())
        said = []
        if self.task.grades:
            said.append(graded_in_words(self.task))
        if cut:
            said.append(f"Task '{name}': {cut:,} of {count:,} texts have more than {fit.length} tokens and are cut.")
        if unknown:
            said.append(f"Task '{name}': {100 * unknown / every:.1f} % of its tokens are not in the vocabulary.")
        return said

    def words(self, ids: np.ndarray) -> list[list[str]]:
        """Return the words of rows of token ids (n, 2, length), as the vocabulary has them."""
        known = self._words(self._fit(None))
        return [known.spelled(row[known.places(row)]) for row in ids[:, 0]]

    def vocabulary(self) -> Vocabulary:
        """Return the zoo's vocabulary.

        Raises:
            ZooError: it cannot be read.
        """
        return self._words(self._fit(None))

    def _fit(self, fit: Tokenisation | None) -> Tokenisation:
        fit = fit or (self.preprocess() if self.preprocess else None)
        if fit is None:
            raise ValueError("texts need to be told how to be tokenised")
        return fit

    def _words(self, fit: Tokenisation) -> Vocabulary:
        return read_vocabulary(resolve_inside(self.folder, fit.vocabulary), fit)


def open_texts(folder: Path, task: Task, preprocess: Callable[[], Tokenisation] | None = None) -> TextData:
    """Open a task's texts.

    Args:
        folder: the zoo's folder.
        task: its manifest entry.
        preprocess: how texts are tokenised, where nothing else is said.

    Raises:
        DataError: missing or damaged files, other columns than expected, texts without labels, an empty task.
    """
    if task.data is None:
        raise DataError(f"Task '{task.name}' names no data; add `data:` to zoo.yaml to score it.")
    try:
        source = TextTable(resolve_inside(folder, task.data), task.prompt, task.grades)
        if not source.lengths.get("test"):
            raise DataError(f"{source.path.name} holds no test texts; nothing could be scored.")
        for split in LABELLED:
            if source.lengths.get(split):
                source.labels(split)
    except DataError as error:
        raise DataError(f"Task '{task.name}': {error}") from error
    return TextData(task, source, preprocess, folder)


def _blank(texts: Sequence[Pair]) -> list[int]:
    return [row for row, (first, _) in enumerate(texts) if not first.strip()]


def _reason(split: str, row: int) -> str:
    return f"{split} text {row}"
