"""A task's images and labels, read safely from what a zoo names. Free of torch: pages show thumbnails through it."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import DataError
from ..manifest import Task, resolve_inside

SPLITS = ("test", "adapt", "val", "train")
LABELLED = ("test", "val", "train")
MAX_ARRAY_BYTES = 16 * 2**30


@dataclass(frozen=True)
class TaskData:
    """Arrays of one task, read when they are first asked for."""

    task: Task
    path: Path
    lengths: dict[str, int]

    def has(self, split: str) -> bool:
        """Whether the split exists and holds images."""
        return self.lengths.get(split, 0) > 0

    def labels(self, split: str) -> np.ndarray:
        """Labels of a split: int64 (n,), checked against the class list.

        Raises:
            DataError: a label outside the class list, or no labels.
        """
        labels = _array(self.path, f"{split}_y", self.task)
        count = len(self.task.classes)
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise DataError(
                f"Task '{self.task.name}': {split}_y is {labels.dtype} of shape {labels.shape}; "
                "whole numbers of shape (n,) are expected."
            )
        if len(labels) and (labels.min() < 0 or labels.max() >= count):
            bad = labels[(labels < 0) | (labels >= count)][0]
            raise DataError(
                f"Task '{self.task.name}': {split}_y holds the label {bad}, but there are {count} classes (0 to "
                f"{count - 1}). Correct the labels or the class list in zoo.yaml."
            )
        return labels.astype(np.int64)

    def images(self, split: str, rows: np.ndarray | Sequence[int] | None = None) -> np.ndarray:
        """Images of a split: uint8 (n, h, w, 3), all or the given rows; grey images become RGB."""
        images = _array(self.path, f"{split}_x", self.task)
        if images.ndim == 3:
            images = np.repeat(images[..., None], 3, axis=-1)
        return images if rows is None else images[np.asarray(rows)]


def open_task(folder: Path, task: Task) -> TaskData:
    """Open a task's data and check its form; images stay on disk.

    Args:
        folder: the zoo's folder.
        task: its manifest entry.

    Raises:
        DataError: missing or damaged files, wrong shapes, images without labels, an empty task.
    """
    if task.data is None:
        raise DataError(f"Task '{task.name}' names no data; add `data:` to zoo.yaml to score it.")
    if task.data.startswith(("hf:", "torchvision:")):
        raise DataError(f"Task '{task.name}' names '{task.data}', which is not on this machine; give a local npz file.")
    path = resolve_inside(folder, task.data)
    if path.suffix != ".npz":
        raise DataError(f"Task '{task.name}' names {path.name}; an .npz file with test_x and test_y is expected.")
    shapes = _shapes(path, task)
    lengths = {split: _length(shapes, split, task, path) for split in SPLITS if f"{split}_x" in shapes}
    if not lengths.get("test"):
        raise DataError(f"Task '{task.name}': {path.name} holds no test images (test_x); nothing could be scored.")
    return TaskData(task, path, lengths)


def _shapes(path: Path, task: Task) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shapes and dtypes of the arrays in an npz file, from their headers alone."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {
                entry.filename.removesuffix(".npy"): _header(archive, entry)
                for entry in archive.infolist()
                if entry.filename.endswith(".npy")
            }
    except FileNotFoundError as error:
        raise DataError(f"Task '{task.name}': the file {path.name} is missing from the zoo's folder.") from error
    except (OSError, zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
        raise DataError(f"Task '{task.name}': {path.name} is damaged or not an .npz file ({error}).") from error


def _header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype]:
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream, max_header_size=10_000)
    if dtype.hasobject:
        raise ValueError(f"{entry.filename} holds Python objects, which are never read")
    expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if expected > MAX_ARRAY_BYTES or not 0 < entry.file_size - expected <= 11_000:
        raise ValueError(f"{entry.filename} has {entry.file_size:,} bytes, its header promises {expected:,}")
    return shape, dtype


def _length(shapes: dict[str, tuple[tuple[int, ...], np.dtype]], split: str, task: Task, path: Path) -> int:
    shape, dtype = shapes[f"{split}_x"]
    if dtype != np.uint8 or len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] != 3):
        raise DataError(
            f"Task '{task.name}': {split}_x in {path.name} is {dtype} of shape {shape}; "
            "uint8 images of shape (n, height, width, 3) or (n, height, width) are expected."
        )
    if split not in LABELLED:
        return shape[0]
    if f"{split}_y" not in shapes:
        raise DataError(f"Task '{task.name}': {path.name} holds {split}_x but no {split}_y.")
    labels = shapes[f"{split}_y"][0]
    if labels[:1] != shape[:1]:
        raise DataError(
            f"Task '{task.name}': {path.name} holds {shape[0]} images in {split}_x but {split}_y has shape {labels}."
        )
    return shape[0]


def _array(path: Path, name: str, task: Task) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays[name]
    except KeyError as error:
        raise DataError(f"Task '{task.name}': {path.name} has no array '{name}'.") from error
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"Task '{task.name}': {name} in {path.name} cannot be read ({error}).") from error
