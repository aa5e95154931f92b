"""Weights in torch files of any kind, whole pickled modules included, without executing anything from them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..types import Weights
from .containers import Container, read_container
from .files import SafetensorsFile, open_file, read_exactly, stamp_of, unchanged
from .header import MAX_DIMENSIONS, check_names
from .modules import find_tensors
from .pickle_machine import Made, Storage, StoredTensor

DTYPES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "UntypedStorage": torch.uint8,
}


@dataclass(frozen=True)
class Place:
    """A checked tensor: what to read and how to see it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int  # first byte in the file
    span: int  # values from the first to the last one used


class PickledFile:
    """Weights in a ``.pt``, ``.pth`` or ``.bin`` file, read with a machine that imports and calls nothing.

    Tables of tensors, whole modules and TorchScript modules are read alike. Only the structure is read at first;
    values are read tensor by tensor.

    Raises:
        CheckpointError: the file is missing, damaged or unusual.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        with open_file(self.path) as file:
            self._stamp = stamp_of(file)
        container = read_container(self.path)
        self.root = container.root
        found = find_tensors(container.root, self.path.name)
        check_names(found.tensors, self.path.name)
        self.classes, self.settings = found.classes, found.settings
        blocks = _legacy_blocks(container, self.path) if container.legacy else container.blocks
        self._places = {name: _place(name, tensor, blocks, self.path.name) for name, tensor in found.tensors.items()}

    @property
    def whole_module(self) -> bool:
        """Return whether the file holds pickled modules, not only a table of tensors."""
        return bool(self.classes)

    @property
    def names(self) -> tuple[str, ...]:
        """Return tensor names, as ``state_dict`` would list them."""
        return tuple(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self._places[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the stored dtype of one tensor."""
        return self._places[name].dtype

    def __reduce__(self) -> tuple[type[PickledFile], tuple[Path]]:
        return PickledFile, (self.path,)

    def tensor(self, name: str) -> Tensor:
        """Read one tensor, contiguous."""
        place = self._places[name]
        if not math.prod(place.shape):
            return torch.empty(place.shape, dtype=place.dtype)
        values = torch.empty(place.span, dtype=place.dtype)
        with unchanged(self.path, self._stamp) as file:
            file.seek(place.start)
            read_exactly(file, values, self.path.name)
        seen = values.as_strided(place.shape, place.stride)
        return seen if seen.is_contiguous() else seen.contiguous()


def _place(name: str, tensor: StoredTensor, blocks: dict[str, tuple[int, int]], origin: str) -> Place:
    """Check a tensor's description against its storage.

    Raises:
        CheckpointError: it does not fit the storage, or repeats values (a small file would fill the memory).
    """
    dtype = DTYPES.get(tensor.storage.kind)
    if dtype is None:
        raise CheckpointError(f"{origin}: {name:.100} has values of kind {tensor.storage.kind:.40}, not floats.")
    shape, stride, offset = tensor.shape, tensor.stride, tensor.offset
    if not (_counts(shape) and _counts(stride) and len(shape) == len(stride) and _counts((offset,))):
        raise CheckpointError(f"{origin}: {name:.100} has no valid shape, stride or offset. The file is damaged.")
    start, size = blocks.get(tensor.storage.key, (0, -1))
    held = min(tensor.storage.count, size // dtype.itemsize)
    count = math.prod(shape)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if count else 0
    if size < 0 or offset + span > held or count > held:
        raise CheckpointError(
            f"{origin}: {name:.100} of shape {shape!s:.60} and stride {stride!s:.60} needs "
            f"{max(span, count) + offset:,} values; its storage has {max(held, 0):,}. "
            "The file is damaged or made to fill the memory."
        )
    return Place(dtype, tuple(shape), tuple(stride), start + offset * dtype.itemsize, span)


def _counts(values: Any) -> bool:
    return (
        isinstance(values, (tuple, list))
        and len(values) <= MAX_DIMENSIONS
        and all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**48 for v in values)
    )


def _legacy_blocks(container: Container, path: Path) -> dict[str, tuple[int, int]]:
    """Place of every storage of a stream: the kind comes from the references, the length stands before the values."""
    kinds = {storage.key: storage for storage in _storages(container.root)}
    total, blocks = path.stat().st_size, {}
    position = next((start for start, _ in container.blocks.values()), 0)
    with path.open("rb", buffering=0) as file:
        for key in container.blocks:
            file.seek(position)
            count = int.from_bytes(file.read(8), "little", signed=True)
            storage = kinds.get(key)
            if storage is None or storage.kind not in DTYPES:
                raise CheckpointError(f"{path.name}: a storage is of unknown kind, so the ones after it are not found.")
            size = count * DTYPES[storage.kind].itemsize
            if count < 0 or position + 8 + size > total:
                raise CheckpointError(f"{path.name} is truncated or damaged: values lie past its end. Copy it again.")
            blocks[key] = (position + 8, size)
            position += 8 + size
    return blocks


def _storages(root: Any) -> list[Storage]:
    """All storages that a root refers to, whatever holds them; every object is looked at once."""
    found, waiting, seen = [], [root], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, StoredTensor):
            found.append(value.storage)
        elif isinstance(value, Storage):
            found.append(value)
        elif isinstance(value, (Made, dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting += (
                [value.state, value.args]
                if isinstance(value, Made)
                else list(value.values())
                if isinstance(value, dict)
                else list(value)
            )
    return found


def open_weights(path: Path | str) -> Weights:
    """Open a checkpoint by its content, whatever its name ends in: safetensors, or a torch file of tensors.

    Raises:
        CheckpointError: the file is missing, is no checkpoint, or holds a whole model, which is imported first.
    """
    path = Path(path)
    if not path.is_file() or not is_torch_file(path):
        return SafetensorsFile(path)
    found = PickledFile(path)
    if found.whole_module:
        raise CheckpointError(
            f"{path.name} holds a whole pickled model or other objects, not only tensors. Import it (`python -m engine "
            "zoo import`), or save its weights with torch.save(model.state_dict(), …) or as safetensors."
        )
    return found


def is_torch_file(path: Path) -> bool:
    """Return whether a file starts like a zip archive or a pickle.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        with path.open("rb", buffering=0) as file:
            start = file.read(2)
            return start == b"PK" or (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05" and _no_header(file))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {os.strerror(error.errno or 0)}.") from error


def _no_header(file: Any) -> bool:
    """Return whether the start cannot be a safetensors header, which may begin with the same two bytes."""
    file.seek(8)
    return file.read(1) != b"{"
