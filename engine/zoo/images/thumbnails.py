"""Small pictures of a task's images, the only images that pages show. Free of torch.

Reading an .npz file streams through it, so memory stays small whatever the size of the images, and the result is kept:
in memory for this process and, where a cache folder is given, on disk for all of them. The images of bundled zoos,
which the program brings, are kept likewise. Other images in files have to be decoded: the step ``register`` does that
ahead, and here only those are looked at that are asked for.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import threading
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from ...errors import DataError
from ...manifest import ASSETS, Task
from .data import TaskData, open_task, state_of
from .decoding import decode
from .readers.npz import DAMAGE, NpzArrays

SIDE = 48  # px, at most
CHUNK_BYTES = 32 * 2**20
FEW = 4  # one image in so many is decoded alone, where pictures of the whole split are not at hand
KEPT_TASKS = 32
VERSION = 1


def thumbnails(
    folder: Path,
    task: Task,
    rows: np.ndarray | Sequence[int] | None = None,
    *,
    split: str = "test",
    side: int = SIDE,
    cache: Path | None = None,
) -> np.ndarray:
    """Return small pictures of some of a task's images.

    Args:
        folder: the zoo's folder.
        task: its manifest entry.
        rows: positions in the split's array; default all.
        split: which images.
        side: largest side in px; smaller images keep their size.
        cache: folder in which the pictures of the whole split are kept for other processes.

    Returns:
        uint8 (n, s, s, 3) with s ≤ side; images that are not square are centred on grey.

    Raises:
        DataError: the task has no such images, a file is damaged, or a row does not exist.
    """
    data = open_task(folder, task)
    if not data.has(split):
        raise DataError(f"Task '{task.name}' has no {split} images.")
    count = data.lengths[split]
    chosen = np.arange(count) if rows is None else np.asarray(rows, dtype=np.int64)
    if chosen.size and (chosen.min() < 0 or chosen.max() >= count):
        raise DataError(f"Task '{task.name}' has {count} {split} images; image {int(chosen.max())} was asked for.")
    if not is_open(folder, task):
        return _decoded(data, split, chosen, side)
    if (
        0 < len(chosen) * FEW <= count
        and not isinstance(data.source, NpzArrays)
        and not _is_at_hand(data, split, side, cache)
    ):
        every, places = np.unique(chosen, return_inverse=True)
        return _encoded(data, split, every, side)[places]
    sheet = _sheet(folder, task, split, side, cache)
    return np.asarray(sheet if rows is None else sheet[chosen])


def is_open(folder: Path, task: Task) -> bool:
    """Return whether a page may read a task's images itself: arrays, and what the program brings."""
    if (task.data or "").endswith(".npz"):
        return (folder / task.data).is_file()
    return bool(task.data) and folder.resolve().is_relative_to(ASSETS / "zoos")


def content_key(data: TaskData, split: str, side: int = SIDE) -> str:
    """Return a name of pictures by what they are made from: files with sizes and times, split and side."""
    if isinstance(data.source, NpzArrays):
        stat = data.path.stat()
        parts = (VERSION, data.path.resolve(), stat.st_size, stat.st_mtime_ns, split, side)
    else:
        parts = (VERSION, data.path.resolve(), state_of(data.source.content()), split, side)
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def is_ready(folder: Path, task: Task, *, split: str = "test", side: int = SIDE, cache: Path | None = None) -> bool:
    """Return whether the pictures are at hand or quickly made, so that a page may ask for them without waiting."""
    if not is_open(folder, task):
        return False
    data = open_task(folder, task)
    if _is_at_hand(data, split, side, cache):
        return True
    return data.path.stat().st_size <= CHUNK_BYTES // 4


def strip(images: np.ndarray, *, columns: int | None = None, gap: int = 2, zoom: int = 1) -> bytes:
    """Return images side by side on a transparent ground, as a PNG.

    Args:
        images: uint8 (n, h, w, 3).
        columns: how many a row; default all in one row.
        gap: px between images, before zooming.
        zoom: whole factor by which pixels are repeated.
    """
    images = np.asarray(images)
    if not len(images):
        raise DataError("A strip needs at least one image.")
    count, height, width = images.shape[:3]
    columns = min(columns or count, count)
    rows = -(-count // columns)
    sheet = np.zeros((rows * (height + gap) - gap, columns * (width + gap) - gap, 4), np.uint8)
    for number, image in enumerate(images):
        top, left = number // columns * (height + gap), number % columns * (width + gap)
        sheet[top : top + height, left : left + width, :3] = image
        sheet[top : top + height, left : left + width, 3] = 255
    return png(sheet, zoom)


def png(image: np.ndarray, zoom: int = 1) -> bytes:
    """Return an image, uint8 (h, w, 3 or 4), as a PNG; ``zoom`` repeats pixels, so that small images stay crisp."""
    buffer = io.BytesIO()
    large = np.repeat(np.repeat(image, zoom, axis=0), zoom, axis=1) if zoom > 1 else image
    Image.fromarray(np.ascontiguousarray(large)).save(buffer, "PNG")
    return buffer.getvalue()


_seen: set[tuple[Path, str]] = set()
_making = tuple(threading.Lock() for _ in range(32))  # by the key of what is made


def _sheet(folder: Path, task: Task, split: str, side: int, cache: Path | None) -> np.ndarray:
    data = open_task(folder, task)
    key = content_key(data, split, side)
    with _making[hash(key) % len(_making)]:  # people who come together wait for one of them
        sheet = _remembered(
            folder, task.model_dump_json(), split, side, key, _file(cache, data, split, side) if cache else None
        )
    _seen.add((data.path, key))
    return sheet


def _is_at_hand(data: TaskData, split: str, side: int, cache: Path | None) -> bool:
    if (data.path, content_key(data, split, side)) in _seen:
        return True
    return cache is not None and _file(cache, data, split, side).is_file()


def _file(cache: Path, data: TaskData, split: str, side: int) -> Path:
    return cache / f"{content_key(data, split, side)[:40]}.npy"


@lru_cache(maxsize=KEPT_TASKS)
def _remembered(folder: Path, task: str, split: str, side: int, key: str, file: Path | None) -> np.ndarray:
    """Return pictures of a whole split; the key makes a changed file another entry."""
    if file is not None and file.is_file():
        try:
            return np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError):
            file.unlink(missing_ok=True)  # half-written by an interrupted process of old; made again
    data = open_task(folder, Task.model_validate_json(task))
    if isinstance(data.source, NpzArrays):
        sheet = _make(data.path, f"{split}_x", side)
    else:
        sheet = _encoded(data, split, range(data.lengths[split]), side)
    if file is None:
        return sheet
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}.{secrets.token_hex(3)}.partial")
    with partial.open("wb") as stream:
        np.save(stream, sheet, allow_pickle=False)
    partial.replace(file)
    return sheet


def _encoded(data: TaskData, split: str, rows: Sequence[int] | np.ndarray, side: int) -> np.ndarray:
    """Decode images, quickest with rows in growing order, and shrink them."""
    return _small(np.stack([np.asarray(decode(data.source.encoded(split, int(row)), split)) for row in rows]), side)


def _make(path: Path, array: str, side: int) -> np.ndarray:
    """Read a split block by block and shrink every image."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{array}.npy") as stream:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(stream, max_header_size=10_000)
            if fortran or dtype != np.uint8:
                return _small(_whole(path, array), side)
            image = int(np.prod(shape[1:]))
            step = max(1, CHUNK_BYTES // max(1, image))
            blocks = []
            for start in range(0, shape[0], step):
                rows = min(step, shape[0] - start)
                block = np.frombuffer(stream.read(rows * image), np.uint8).reshape(rows, *shape[1:])
                blocks.append(_small(block, side))
    except (*DAMAGE, KeyError) as error:
        raise DataError(f"{array} in {path.name} cannot be read ({error}).") from error
    return np.concatenate(blocks) if blocks else np.zeros((0, side, side, 3), np.uint8)


def _decoded(data: TaskData, split: str, rows: np.ndarray, side: int) -> np.ndarray:
    """Return pictures of encoded images, in the order of the rows; damaged ones are grey."""
    result = np.empty((len(rows), side, side, 3), np.uint8)
    for number, picture in enumerate(data.pictures(split, rows, side)):
        result[number] = picture
    return result


def _whole(path: Path, array: str) -> np.ndarray:
    with np.load(path, allow_pickle=False) as arrays:
        return np.ascontiguousarray(arrays[array])


def _small(images: np.ndarray, side: int) -> np.ndarray:
    """Return images (n, h, w) or (n, h, w, 3) as (n, s, s, 3)."""
    if images.ndim == 3:
        images = np.repeat(images[..., None], 3, axis=-1)
    count, height, width = images.shape[:3]
    if height == width and height <= side:
        return images.copy()
    longest = max(height, width)
    edge = min(side, longest)
    size = (max(1, round(width * edge / longest)), max(1, round(height * edge / longest)))
    result = np.full((count, edge, edge, 3), 127, np.uint8)
    top, left = (edge - size[1]) // 2, (edge - size[0]) // 2
    for number, image in enumerate(images):
        small = Image.fromarray(np.ascontiguousarray(image)).resize(size, Image.Resampling.BOX, reducing_gap=2.0)
        result[number, top : top + size[1], left : left + size[0]] = np.asarray(small)
    return result
