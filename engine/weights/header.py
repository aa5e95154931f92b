"""The header of a safetensors file: read with suspicion, written plainly."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..errors import CheckpointError

MAX_HEADER_BYTES = 25_000_000
MAX_DIMENSIONS = 8
MAX_NAME = 1000  # characters of a tensor's name
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """The place of one tensor: dtype, shape, and first byte counted from the start of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Return the bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: BinaryIO, path: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """Read and check the header: names to entries in the file's order, and the free-text metadata.

    Raises:
        CheckpointError: not safetensors, truncated, an unknown dtype, or offsets that do not fit.
    """
    total = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length < 2:
        raise CheckpointError(f"{path.name} is not a safetensors file: it has no header.")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path.name} is not a safetensors file, or a damaged one: its first 8 bytes announce a header of "
            f"{length:,} bytes; at most {MAX_HEADER_BYTES:,} are read."
        )
    raw = file.read(length)
    if len(raw) < length:
        raise CheckpointError(f"{path.name} is truncated: the header has {len(raw):,} of its {length:,} bytes.")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} is not a safetensors file: its header is not JSON ({error}).") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path.name} is not a safetensors file: its header is not a table of tensors.")
    metadata = header.pop("__metadata__", None) or {}
    check_names(header, path.name)
    entries = {name: _entry(name, item, 8 + length, path) for name, item in header.items()}
    _check_layout(entries, 8 + length, total, path)
    return entries, metadata if isinstance(metadata, dict) else {}


def check_names(names: Iterable[str], origin: str) -> None:
    """Refuse names longer than any model's, whose numbers nobody could order.

    Raises:
        CheckpointError: with the beginning of the name.
    """
    for name in names:
        if len(name) > MAX_NAME:
            raise CheckpointError(
                f"{origin} has a tensor whose name has {len(name):,} characters ({name:.60}…); at most {MAX_NAME:,} "
                "are read. Choose another file."
            )


def header_bytes(entries: dict[str, Entry], metadata: dict[str, str], length: int | None = None) -> bytes:
    """Render a header, length prefix included; entries count their start from the end of the header.

    Args:
        entries: names to entries, in the order in which names are to be listed.
        metadata: free text, e.g. the method that made the weights.
        length: pad to this many bytes of JSON; None pads to a multiple of 8.
    """
    document: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    for name, entry in entries.items():
        offsets = [entry.start, entry.start + entry.size]
        document[name] = {"dtype": CODES[entry.dtype], "shape": list(entry.shape), "data_offsets": offsets}
    text = json.dumps(document, separators=(",", ":")).encode()
    padded = text.ljust(length if length is not None else -(-len(text) // 8) * 8)
    return len(padded).to_bytes(8, "little") + padded


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key occurs twice")
    return table


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _entry(name: str, item: Any, data_start: int, path: Path) -> Entry:
    wanted = isinstance(item, dict) and set(item) == {"dtype", "shape", "data_offsets"}
    if not wanted or not isinstance(item["shape"], list) or not isinstance(item["data_offsets"], list):
        raise CheckpointError(f"{path.name}: tensor {name} is not described by dtype, shape and data_offsets.")
    dtype, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(f"{path.name}: tensor {name} has dtype {dtype!r}; one of {', '.join(DTYPES)} is needed.")
    if len(shape) > MAX_DIMENSIONS or not all(map(_is_count, shape)):
        raise CheckpointError(f"{path.name}: tensor {name} has no valid shape ({shape!s:.80}).")
    if len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise CheckpointError(f"{path.name}: tensor {name} has no valid data_offsets ({offsets!s:.80}).")
    entry = Entry(DTYPES[dtype], tuple(shape), data_start + offsets[0])
    if offsets[1] - offsets[0] != entry.size:
        raise CheckpointError(
            f"{path.name}: tensor {name} of shape {entry.shape} and dtype {dtype} needs {entry.size:,} bytes; "
            f"its data_offsets span {offsets[1] - offsets[0]:,}. The file is damaged."
        )
    return entry


def _check_layout(entries: dict[str, Entry], data_start: int, total: int, path: Path) -> None:
    """Refuse overlaps, gaps and a data part that is shorter or longer than the header says."""
    position = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].size)):
        if entry.start != position:
            what = "overlaps the tensor before it" if entry.start < position else "leaves a gap before it"
            raise CheckpointError(f"{path.name}: tensor {name} {what}. The file is damaged.")
        position += entry.size
    if position > total:
        raise CheckpointError(
            f"{path.name} is truncated: it has {total:,} bytes; its header describes {position:,}. Copy it again."
        )
    if position < total:
        raise CheckpointError(f"{path.name} has {total - position:,} bytes more than its header describes.")
