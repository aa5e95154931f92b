"""Files of torch: values beside a pickle in a zip archive, or before 1.6 one stream of pickles and blocks."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..archives import contents_of
from ..errors import UNREADABLE_ZIP, CheckpointError
from .pickle_machine import MAX_PICKLE_BYTES, read_pickle

MAX_ENTRIES = 100_000
MAX_DIRECTORY_BYTES = 32 * 2**20
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
_LOCAL_HEADER = 30


@dataclass(frozen=True)
class Container:
    """The content of a torch file: the unpickled root and the place of every block of values."""

    root: Any
    blocks: dict[str, tuple[int, int]]  # key → first byte, bytes (0: known only from the tensors, see `legacy`)
    legacy: bool = False


def read_container(path: Path) -> Container:
    """Read a torch file's structure; values stay on disk, nothing in the file is executed.

    Raises:
        CheckpointError: the file is missing, damaged, compressed, or larger in structure than any checkpoint.
    """
    try:
        with path.open("rb") as file:
            start = file.read(2)
            file.seek(0)
            return _zip(file, path) if start == b"PK" else _legacy(file, path)
    except (OSError, *UNREADABLE_ZIP, struct.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(f"{path.name} cannot be read: {reason:.200}. Copy it again.") from error


def _zip(file: BinaryIO, path: Path) -> Container:
    _check_directory(file, path)
    total = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        if len(entries) != len(archive.infolist()):
            raise CheckpointError(f"{path.name} lists an entry twice. The file is damaged.")
        pickles = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise CheckpointError(f"{path.name} is a zip archive, but none that torch.save writes (no data.pkl).")
        prefix = pickles[0].removesuffix("data.pkl")
        order = entries.get(f"{prefix}byteorder")
        read = [name for name in entries if name.startswith(f"{prefix}data/")]  # a script's code is never looked at
        for entry in (entries[pickles[0]], *([order] if order else []), *(entries[name] for name in read)):
            _check_entry(entry, total, path)
        if order is not None and archive.read(order)[:8].strip() != b"little":
            raise CheckpointError(f"{path.name} was written on a big-endian machine; save it again on a common one.")
        if entries[pickles[0]].file_size > MAX_PICKLE_BYTES:
            raise CheckpointError(f"{path.name} has a pickle of more than {MAX_PICKLE_BYTES:,} bytes.")
        root = read_pickle(io.BytesIO(archive.read(pickles[0])), path.name)
    blocks = {
        name.removeprefix(f"{prefix}data/"): (_data_start(file, entries[name], path), entries[name].file_size)
        for name in read
    }
    if any(start + size > total for start, size in blocks.values()):
        raise CheckpointError(f"{path.name} is truncated or damaged: values lie past its end. Copy it again.")
    return Container(root, blocks)


def _check_entry(entry: zipfile.ZipInfo, total: int, path: Path) -> None:
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 or entry.compress_size != entry.file_size:
        raise CheckpointError(
            f"{path.name}: {entry.filename:.80} is compressed or encrypted, which torch never does. "
            "The file was not written by torch.save; nothing was read."
        )
    if entry.file_size > total or entry.header_offset > total:
        raise CheckpointError(f"{path.name}: {entry.filename:.80} is larger than the file. It is damaged.")


def _check_directory(file: BinaryIO, path: Path) -> None:
    """Refuse a table of contents that would fill the memory before it is parsed."""
    found = contents_of(file)
    if found is None:
        raise CheckpointError(
            f"{path.name} is truncated or damaged: its table of contents is missing or said twice. Copy it again."
        )
    count, size = found
    if count > MAX_ENTRIES or size > MAX_DIRECTORY_BYTES:
        raise CheckpointError(
            f"{path.name} lists {count:,} entries in {size:,} bytes; at most {MAX_ENTRIES:,} in "
            f"{MAX_DIRECTORY_BYTES:,} are read."
        )


def _data_start(file: BinaryIO, entry: zipfile.ZipInfo, path: Path) -> int:
    """First byte of an entry's data; the lengths in its own header count, not the table's."""
    file.seek(entry.header_offset)
    header = file.read(_LOCAL_HEADER)
    if len(header) < _LOCAL_HEADER or header[:4] != b"PK\x03\x04":
        raise CheckpointError(f"{path.name}: {entry.filename:.80} has no header of its own. The file is damaged.")
    name, extra = struct.unpack("<HH", header[26:30])
    return entry.header_offset + _LOCAL_HEADER + name + extra


def _legacy(file: BinaryIO, path: Path) -> Container:
    """magic, protocol, system facts, the object, the storages' keys; then each storage: its length and its values."""
    if read_pickle(file, path.name) != LEGACY_MAGIC:
        raise CheckpointError(
            f"{path.name} is a pickle, but none that torch.save writes. Save the model's weights as safetensors, or "
            "with torch.save(model.state_dict(), …)."
        )
    if read_pickle(file, path.name) != LEGACY_PROTOCOL:
        raise CheckpointError(f"{path.name} was written by an unknown version of torch.save; save it again.")
    facts = read_pickle(file, path.name)
    if isinstance(facts, dict) and facts.get("little_endian") is False:
        raise CheckpointError(f"{path.name} was written on a big-endian machine; save it again on a common one.")
    root, keys = read_pickle(file, path.name), read_pickle(file, path.name)
    if not isinstance(keys, list) or len(keys) > MAX_ENTRIES or not all(isinstance(key, str) for key in keys):
        raise CheckpointError(f"{path.name} has no list of storages. The file is damaged.")
    return Container(root, dict.fromkeys(keys, (file.tell(), 0)), legacy=True)
