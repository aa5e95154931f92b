"""A NumPy archive with ``test_x``, ``test_y`` and further splits, read without unpickling anything."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ....errors import UNREADABLE_ZIP, DataError
from ..decoding import Encoded
from .source import LABELLED, SPLITS
from .tree import check_contents

MAX_ARRAY_BYTES = 16 * 2**30
MAX_ARRAYS = 1000
MAX_CONTENTS_BYTES = 2**20  # of the table of contents
# What a damaged archive or array header raises: zlib and NumPy's tokenizer have classes of their own.
DAMAGE = (
    *UNREADABLE_ZIP,
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    SyntaxError,
    OverflowError,
    zlib.error,
    tokenize.TokenError,
)
Header = tuple[tuple[int, ...], np.dtype]


class NpzArrays:
    """Arrays of one task, read when they are first asked for."""

    ordered = True
    brought: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        shapes = _shapes(path)
        self.lengths = {split: _length(shapes, split, path) for split in SPLITS if f"{split}_x" in shapes}
        if not self.lengths.get("test"):
            raise DataError(f"{path.name} holds no test images (test_x); nothing could be scored.")

    def labels(self, split: str) -> np.ndarray:
        """Return labels of a split as stored (n,).

        Raises:
            DataError: they are no whole numbers.
        """
        labels = _array(self.path, f"{split}_y")
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise DataError(
                f"{split}_y is {labels.dtype} of shape {labels.shape}; whole numbers of shape (n,) are expected."
            )
        return labels.astype(np.int64)

    def images(self, split: str) -> np.ndarray:
        """Return all images of a split: uint8 (n, h, w, 3); grey images become RGB."""
        images = _array(self.path, f"{split}_x")
        return np.repeat(images[..., None], 3, axis=-1) if images.ndim == 3 else images

    def names(self, split: str, rows: Sequence[int]) -> list[str]:
        """Return array and row."""
        return [f"{split}_x[{row}]" for row in rows]

    def encoded(self, split: str, row: int) -> Encoded:
        """Return pixels of one image."""
        return self.images(split)[row]

    def content(self) -> Path:
        """Return the file."""
        return self.path


def _shapes(path: Path) -> dict[str, Header]:
    """Return shapes and dtypes of the arrays in an npz file, from their headers alone."""
    try:
        check_contents(path, MAX_ARRAYS, MAX_CONTENTS_BYTES)
        with zipfile.ZipFile(path) as archive:
            return {
                entry.filename.removesuffix(".npy"): _header(archive, entry)
                for entry in archive.infolist()
                if entry.filename.endswith(".npy")
            }
    except DAMAGE as error:
        raise DataError(f"{path.name} is damaged or not an .npz file ({error}).") from error


def _header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Header:
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


def _length(shapes: dict[str, Header], split: str, path: Path) -> int:
    shape, dtype = shapes[f"{split}_x"]
    if dtype != np.uint8 or len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] != 3):
        raise DataError(
            f"{split}_x in {path.name} is {dtype} of shape {shape}; "
            "uint8 images of shape (n, height, width, 3) or (n, height, width) are expected."
        )
    if split not in LABELLED:
        return shape[0]
    if f"{split}_y" not in shapes:
        raise DataError(f"{path.name} holds {split}_x but no {split}_y.")
    labels = shapes[f"{split}_y"][0]
    if labels[:1] != shape[:1]:
        raise DataError(f"{path.name} holds {shape[0]} images in {split}_x but {split}_y has shape {labels}.")
    return shape[0]


def _array(path: Path, name: str) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays[name]
    except KeyError as error:
        raise DataError(f"{path.name} has no array '{name}'.") from error
    except DAMAGE as error:
        raise DataError(f"{name} in {path.name} cannot be read ({error}).") from error
