"""Images that are decoded when they are indexed: threads decode, and the next slice is made ready ahead."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import numpy as np

from ...errors import DataError
from ...manifest import Preprocess
from .decoding import CorruptImage, decode, fit
from .readers.source import Source

Result = TypeVar("Result")
MAX_THREADS = 16
MAX_AHEAD_BYTES = 256 * 2**20
MAX_ARRAY_BYTES = 8 * 2**30
AT_ONCE = 64  # encoded images held at a time


class ImageStream:
    """A sequence of images that can be sliced like an array uint8 (n, size, size, 3).

    Args:
        source: where the encoded images are read from.
        split: of the source.
        rows: positions in the split, (n,).
        preprocess: how a decoded image is resized and cropped.
        task: name of the task, for error messages.
        refuse: called with the split and the rows when an image is damaged; raises a DataError that counts and names
            all damaged ones among them.
    """

    def __init__(
        self,
        source: Source,
        split: str,
        rows: np.ndarray,
        preprocess: Preprocess,
        task: str,
        refuse: Callable[[str, np.ndarray], None],
    ) -> None:
        self._source, self._split, self._rows, self._preprocess = source, split, rows, preprocess
        self._task, self._refuse = task, refuse
        self._ahead: tuple[int, int, Future[np.ndarray]] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return the shape of all images."""
        return len(self._rows), self._preprocess.size, self._preprocess.size, 3

    def __len__(self) -> int:
        return len(self._rows)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        """Return all images at once."""
        return self._decode(self._rows)

    def __getitem__(self, index: slice | Sequence[int] | np.ndarray) -> np.ndarray:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._slice(start, stop) if step == 1 else self._decode(self._rows[index])
        return self._decode(self._rows[np.asarray(index)])

    def _slice(self, start: int, stop: int) -> np.ndarray:
        ahead, self._ahead = self._ahead, None
        ready = ahead is not None and ahead[:2] == (start, stop)
        images = ahead[2].result() if ready else self._decode(self._rows[start:stop])
        further = min(stop + (stop - start), len(self))
        if stop < further and images[:1].nbytes * (further - stop) <= MAX_AHEAD_BYTES:
            self._ahead = (stop, further, _reader().submit(self._decode, self._rows[stop:further]))
        return images

    def _decode(self, rows: np.ndarray) -> np.ndarray:
        size = self._preprocess.size
        if len(rows) * 3 * size**2 > MAX_ARRAY_BYTES:
            raise DataError(
                f"Task '{self._task}': {len(rows):,} images of {size} px would take "
                f"{len(rows) * 3 * size**2 / 2**30:.1f} GiB at once. Sample fewer with `samples_per_task`."
            )
        result = np.empty((len(rows), size, size, 3), np.uint8)
        try:
            for start in range(0, len(rows), AT_ONCE):
                part = rows[start : start + AT_ONCE]
                made = in_threads(
                    self._source, self._split, part, lambda raw, name: fit(decode(raw, name), self._preprocess)
                )
                for number, image in enumerate(made):
                    result[start + number] = image
        except CorruptImage as error:
            self._refuse(self._split, self._rows)
            raise DataError(str(error)) from error
        return result


def in_threads(source: Source, split: str, rows: Sequence[int], work: Callable[..., Result]) -> list[Result]:
    """Read images in order and work on each (encoded image, name) in threads; results in the same order."""
    names = source.names(split, rows)
    futures = []
    for row, name in zip(rows, names, strict=True):
        try:
            raw = source.encoded(split, int(row))
        except OSError as error:
            raw = _Unreadable(f"{name}: {error}")
        futures.append(_pool().submit(_attempt, work, raw, name))
    return [future.result() for future in futures]


class _Unreadable(str):
    """The reason why an image could not even be read."""


def _attempt(work: Callable[..., Result], raw: object, name: str) -> Result:
    return work(b"" if isinstance(raw, _Unreadable) else raw, str(raw) if isinstance(raw, _Unreadable) else name)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, MAX_THREADS)), thread_name_prefix="decode")


@cache
def _reader() -> ThreadPoolExecutor:
    """Return one thread that goes ahead; it waits for the pool, so it is not part of it."""
    return ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
