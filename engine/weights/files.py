"""Checkpoints on disk, one tensor at a time.

A safetensors file is read with plain reads into a fresh buffer, never through a lasting memory map, so that resident
memory stays at one tensor however many experts there are. Nothing in a file is ever executed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError
from ..types import Progress, Tensors, Weights
from .header import Entry, header_bytes, read_header

Stamp = tuple[int, int, int]  # number, size and time of change of a file


class Memory:
    """Weights that are tensors in memory; reading gives copies, so that nobody changes them."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = dict(tensors)

    @property
    def names(self) -> tuple[str, ...]:
        """Return tensor names in the order given."""
        return tuple(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return tuple(self._tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of one tensor."""
        return self._tensors[name].dtype

    def tensor(self, name: str) -> Tensor:
        """Return a copy of one tensor."""
        return self._tensors[name].detach().clone(memory_format=torch.contiguous_format)

    def itself(self, name: str) -> Tensor:
        """Return one tensor without copying it, for those who only read."""
        return self._tensors[name]

    def read_into(self, name: str, out: Tensor) -> None:
        """Copy one tensor, converted to the dtype of ``out``."""
        out.copy_(self._tensors[name])


class SafetensorsFile:
    """Weights in a safetensors file. Opens the file for every read, so it can be shared between processes.

    Raises:
        CheckpointError: the file is missing, truncated, damaged, or not safetensors.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        with open_file(self.path) as file:
            self._stamp = stamp_of(file)
            self._entries, self.metadata = read_header(file, self.path)

    @property
    def names(self) -> tuple[str, ...]:
        """Return tensor names in the order of the header."""
        return tuple(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor, from the header."""
        return self._entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the stored dtype of one tensor, from the header."""
        return self._entries[name].dtype

    def tensor(self, name: str) -> Tensor:
        """Read one tensor."""
        entry = self._entries[name]
        out = torch.empty(entry.shape, dtype=entry.dtype)
        self._read(entry, out)
        return out

    def read_into(self, name: str, out: Tensor) -> None:
        """Read one tensor into ``out``, directly when the dtypes agree."""
        entry = self._entries[name]
        if entry.dtype == out.dtype and out.is_contiguous() and out.device.type == "cpu":
            self._read(entry, out)
        else:
            out.copy_(self.tensor(name))

    @contextmanager
    def open_parts(self, name: str) -> Iterator[Callable[[int, np.ndarray], None]]:
        """Open a function that fills bytes with the stored entries from a given one on."""
        start, size, origin = self._entries[name].start, self.dtype(name).itemsize, self.path.name
        with unchanged(self.path, self._stamp) as file:

            def read(first: int, out: np.ndarray) -> None:
                file.seek(start + first * size)
                _fill(file, out, origin)

            yield read

    def _read(self, entry: Entry, out: Tensor) -> None:
        if not entry.size:
            return
        with unchanged(self.path, self._stamp) as file:
            file.seek(entry.start)
            read_exactly(file, out, self.path.name)


def write_weights(
    path: Path | str,
    weights: Weights,
    dtype: torch.dtype | None = None,
    progress: Progress | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write weights as safetensors, one tensor at a time: temporary name, fsync, rename.

    Args:
        path: the file to make or replace.
        weights: what to write; every tensor is asked for once.
        dtype: store floating-point tensors in this dtype; None keeps each tensor's own.
        progress: told how much is done.
        metadata: free text for the header.

    Raises:
        CheckpointError: the file cannot be written.
    """
    path = Path(path)
    entries, position = {}, 0
    stored = {name: _stored_dtype(weights.dtype(name), dtype) for name in weights.names}
    # The widest dtypes come first, so that every tensor starts at a multiple of its item size.
    order = sorted(weights.names, key=lambda name: -stored[name].itemsize)
    for name in order:
        entries[name] = Entry(stored[name], weights.shape(name), position)
        position += entries[name].size
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(header_bytes({name: entries[name] for name in weights.names}, dict(metadata or {})))
            for name in order:
                _write_tensor(file, name, weights.tensor(name), entries[name])
                if progress:
                    progress((entries[name].start + entries[name].size) / max(position, 1), f"Writing {name}")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_into(weights: Weights, name: str, out: Tensor) -> None:
    """Read a tensor into ``out``, without a copy in between where the weights can do that."""
    direct = getattr(weights, "read_into", None)
    if direct:
        direct(name, out)
    else:
        out.copy_(weights.tensor(name))


def read_exactly(file: BinaryIO, out: Tensor, origin: str) -> None:
    """Fill a contiguous tensor from where a file stands.

    Raises:
        CheckpointError: the file ends before.
    """
    _fill(file, _bytes_of(out), origin)


def _fill(file: BinaryIO, out: np.ndarray, origin: str) -> None:
    """Fill contiguous bytes from where a file stands, mostly by one call."""
    count = file.readinto(out)
    while count < len(out):
        more = file.readinto(out[count:])
        if not more:
            raise CheckpointError(f"{origin} ended early. Copy it again.")
        count += more


def _stored_dtype(own: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    return wanted if wanted is not None and own.is_floating_point else own


def _write_tensor(file: BinaryIO, name: str, tensor: Tensor, entry: Entry) -> None:
    if tuple(tensor.shape) != entry.shape:
        raise CheckpointError(f"Tensor {name} came out as {tuple(tensor.shape)}; {entry.shape} was announced.")
    file.write(memoryview(_bytes_of(tensor.to("cpu", entry.dtype).contiguous())))


def _bytes_of(tensor: Tensor) -> np.ndarray:
    """The bytes of a contiguous tensor as a writable numpy view."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def open_file(path: Path) -> BinaryIO:
    """Open a weights file for reading.

    Raises:
        CheckpointError: it is missing, a folder, or cannot be read.
    """
    try:
        return path.open("rb", buffering=0)
    except IsADirectoryError as error:
        raise CheckpointError(f"{path} is a folder; a weights file is needed.") from error
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no weights file {path}.") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error


@contextmanager
def unchanged(path: Path, stamp: Stamp) -> Iterator[BinaryIO]:
    """Open a weights file again.

    Raises:
        CheckpointError: it is gone, or no longer the one of that stamp.
    """
    with open_file(path) as file:
        if stamp_of(file) != stamp:
            raise CheckpointError(f"{path.name} was changed while it was in use. Start again.")
        yield file


def stamp_of(file: BinaryIO) -> Stamp:
    """Return what tells an open file from its later versions."""
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns
