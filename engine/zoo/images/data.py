"""A task's images and labels, read safely from what a zoo names. Free of torch: pages show thumbnails through it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from ...errors import DataError
from ...manifest import Preprocess, Task, resolve_inside
from ...store.digests import FileSet
from ..task_data import TaskData
from .decoding import CorruptImage, decode, shrink
from .readers.npz import NpzArrays
from .readers.source import LABELLED, SPLITS, Source
from .stream import ImageStream, in_threads

__all__ = ["LABELLED", "SPLITS", "ImageData", "Images", "TaskData", "find_corrupt", "open_task"]

Images = np.ndarray | ImageStream
TORCHVISION = "torchvision:"
LOOKED_AT = 256  # images between two reports
REMEMBERED = 64  # splits whose damaged images are remembered
NAMED = 5


@dataclass(frozen=True)
class ImageData(TaskData):
    """Images and labels of one task; encoded images are fitted as ``preprocess`` says where nothing else is said."""

    source: Source

    def corrupt(self, split: str) -> list[tuple[int, str]]:
        """List rows of damaged images that are passed over, with reasons, where the manifest says that they are."""
        if self.task.corrupt != "skip" or not self.has(split) or isinstance(self.source, NpzArrays):
            return []
        return _damaged(_Scan(self.path, split, state_of(self.source.content()), self))

    def skipped(self) -> str:
        """Return a sentence on the images that are passed over; '' where there are none."""
        found = {split: self.corrupt(split) for split in self.lengths}
        reasons = [reason for rows in found.values() for _, reason in rows]
        if not reasons:
            return ""
        counts = ", ".join(f"{len(rows)} {split}" for split, rows in found.items() if rows)
        more = f" and {len(reasons) - NAMED} more" if len(reasons) > NAMED else ""
        return (
            f"Task '{self.task.name}': {len(reasons)} images ({counts}) cannot be decoded and are left out: "
            f"{'; '.join(reasons[:NAMED])}{more}."
        )

    def samples(
        self, split: str, rows: np.ndarray | Sequence[int] | None = None, fit: Preprocess | None = None
    ) -> Images:
        """Return images of a split, all or the given rows; decoded when they are indexed.

        Args:
            split: which images.
            rows: positions; default all.
            fit: how encoded images are resized and cropped; arrays of an npz file stay as they are.

        Returns:
            uint8 (n, h, w, 3): an array, or a sequence that decodes on indexing with a slice or positions.
        """
        if isinstance(self.source, NpzArrays):
            images = self.source.images(split)
            return images if rows is None else images[np.asarray(rows)]
        fit = fit or (self.preprocess() if self.preprocess else None)
        if fit is None:
            raise ValueError("encoded images need to be told how to be resized")
        chosen = np.arange(self.lengths[split]) if rows is None else np.asarray(rows, np.int64)
        return ImageStream(self.source, split, chosen, fit, self.task.name, self.refuse_corrupt)

    def stored(self, split: str, rows: Sequence[int] | np.ndarray) -> Iterator[bytes]:
        """Yield encoded images, or pixels of arrays.

        Raises:
            CorruptImage: one cannot be read.
        """
        if isinstance(self.source, NpzArrays):
            images = self.source.images(split)
            yield from (images[row].tobytes() for row in rows)
            return
        for row in rows:
            try:
                raw = self.source.encoded(split, int(row))
                raw = raw.read_bytes() if isinstance(raw, Path) else raw
            except OSError as error:
                name = self.source.names(split, [row])[0]
                raise CorruptImage(f"Task '{self.task.name}': {name} cannot be read ({error}).") from error
            yield raw if isinstance(raw, bytes) else raw.tobytes()

    def named(self, split: str, rows: Sequence[int] | np.ndarray) -> list[str]:
        """Return files or rows of images."""
        return self.source.names(split, rows)

    def pictures(self, split: str, rows: Sequence[int], side: int) -> Iterator[np.ndarray]:
        """Return small whole pictures of some images: uint8 (side, side, 3) each; damaged ones are grey."""

        def picture(raw: object, name: str) -> np.ndarray:
            try:
                return shrink(decode(raw, name, side=side), side)  # type: ignore[arg-type]
            except CorruptImage:
                return np.full((side, side, 3), 127, np.uint8)

        if isinstance(self.source, NpzArrays):
            yield from (picture(image, split) for image in self.source.images(split)[np.asarray(rows)])
            return
        for start in range(0, len(rows), LOOKED_AT):
            yield from in_threads(self.source, split, rows[start : start + LOOKED_AT], picture)

    def damaged(self, split: str) -> list[tuple[int, str]]:
        """Decode every image of a split and tell which cannot be decoded."""
        return find_corrupt(self, split)

    def refusal(self, count: int, reasons: Sequence[str]) -> str:
        """Return a sentence on damaged images: how many, which, and what to do."""
        return corrupt_message(self.task, count, reasons)

    def refuse_corrupt(self, split: str, rows: Sequence[int]) -> None:
        """Name every damaged image among some rows.

        Raises:
            DataError: there are some.
        """
        found = find_corrupt(self, split, rows)
        if found:
            raise DataError(corrupt_message(self.task, len(rows), [reason for _, reason in found]))


def find_corrupt(
    data: ImageData, split: str, rows: Sequence[int] | None = None, progress: Callable[[float], None] | None = None
) -> list[tuple[int, str]]:
    """Decode images and tell which cannot be decoded: rows and reasons that name the image."""
    if isinstance(data.source, NpzArrays):
        return []
    chosen = np.arange(data.lengths[split]) if rows is None else np.asarray(rows)

    def attempt(raw: object, name: str) -> str:
        try:
            decode(raw, name)  # type: ignore[arg-type]
        except CorruptImage as error:
            return str(error)
        return ""

    found = []
    for start in range(0, len(chosen), LOOKED_AT):
        part = chosen[start : start + LOOKED_AT]
        reasons = in_threads(data.source, split, part, attempt)
        found += [(int(row), reason) for row, reason in zip(part, reasons, strict=True) if reason]
        if progress:
            progress(min(1.0, (start + len(part)) / len(chosen)))
    return found


def corrupt_message(task: Task, count: int, reasons: Sequence[str]) -> str:
    """Return a sentence on damaged images: how many, which, and what to do."""
    more = f" and {len(reasons) - NAMED} more" if len(reasons) > NAMED else ""
    return (
        f"Task '{task.name}': {len(reasons)} of {count:,} images cannot be decoded: "
        f"{'; '.join(reasons[:NAMED])}{more}. "
        "Repair or remove them, or leave them out: `corrupt: skip` for this task in zoo.yaml, or `zoo init "
        "--skip-corrupt`."
    )


def open_task(folder: Path, task: Task, preprocess: Callable[[], Preprocess] | None = None) -> ImageData:
    """Open a task's data and check its form; images stay on disk.

    Args:
        folder: the zoo's folder.
        task: its manifest entry.
        preprocess: how encoded images are fitted, where nothing else is said.

    Raises:
        DataError: missing or damaged files, wrong shapes, images without labels, an empty task.
    """
    if task.data is None:
        raise DataError(f"Task '{task.name}' names no data; add `data:` to zoo.yaml to score it.")
    try:
        source = _source(folder, task)
    except DataError as error:
        raise DataError(f"Task '{task.name}': {error}") from error
    if not source.lengths.get("test"):
        raise DataError(f"Task '{task.name}': {source.path.name} holds no test images; nothing could be scored.")
    return ImageData(task, source, preprocess)


def _source(folder: Path, task: Task) -> Source:
    if task.data.startswith(TORCHVISION):
        from .readers.installed import installed, torchvision_root

        if task.root is not None:
            resolve_inside(folder, task.root)
        return installed(task.data.removeprefix(TORCHVISION), torchvision_root(folder, task.root))
    if task.data.startswith("hf:"):
        raise DataError(f"{task.data} is not on this machine yet; fetch it, or give local files.")
    return read_source(resolve_inside(folder, task.data))


def read_source(path: Path) -> Source:
    """Open a file or folder of images by its form.

    Raises:
        DataError: there is none, or it has none of the known forms.
    """
    if not path.exists():
        raise DataError(f"the file {path.name} is missing from the zoo's folder.")
    if path.suffix == ".npz":
        return NpzArrays(path)
    if path.is_dir():
        if next(path.rglob("*.parquet"), None) is not None:
            return _parquet(path)
        from .readers.folders import read_folder

        return read_folder(path)
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix == ".zip":
        from .readers.folders import read_zip

        return read_zip(path)
    if path.suffix in (".csv", ".tsv"):
        from .readers.tables import PathTable

        return PathTable(path)
    raise DataError(
        f"{path.name} has none of the known forms. An .npz file with test_x and test_y is expected, a folder or .zip "
        "of class folders, .parquet files with an image column, or a .csv of paths and labels."
    )


def _parquet(path: Path) -> Source:
    from .readers.parquet import ParquetShards

    return ParquetShards(path)


@dataclass(frozen=True)
class _Scan:
    """A split of files that are in some state; equal to another one of the same files, whoever opened them."""

    path: Path
    split: str
    state: str
    data: ImageData = field(compare=False)


@lru_cache(maxsize=REMEMBERED)
def _damaged(scan: _Scan) -> list[tuple[int, str]]:
    return find_corrupt(scan.data, scan.split)


def state_of(content: Path | FileSet) -> str:
    """Return sizes and times of files, as one word; reads none of them."""
    files = [content] if isinstance(content, Path) else [content.root / name for name in content.names]
    states = [(path.as_posix(), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]
    return hashlib.sha256(repr(states).encode()).hexdigest()
