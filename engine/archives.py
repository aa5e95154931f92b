"""The table of contents of a zip archive, looked at before it is parsed: parsing a made one would fill the memory."""

from __future__ import annotations

import os
import struct
from typing import BinaryIO

_END, _END64, _LOCATOR = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_RECORD = 56  # bytes of an archive's end in 64 bits
TAIL = 66_000  # bytes in which the end of an archive lies, its comment included


def contents_of(file: BinaryIO) -> tuple[int, int] | None:
    """Return how many entries an archive says it has, and the bytes of its table of contents.

    Args:
        file: stands at the beginning again afterwards.

    Returns:
        None where the file has no table: it is truncated, or no zip archive, or its end says two things.
    """
    total = file.seek(0, os.SEEK_END)
    file.seek(max(total - TAIL, 0))
    tail = file.read()
    place = tail.rfind(_END)
    try:
        if place < 0 or len(tail) - place < 22:
            return None
        count, size = struct.unpack("<HI", tail[place + 10 : place + 16])
        if place >= 20 and tail[place - 20 : place - 16] == _LOCATOR:
            (offset,) = struct.unpack("<Q", tail[place - 12 : place - 4])
            # Some readers take the record before the locator, some the one that it points to: they have to agree.
            before = _record_at(file, total - len(tail) + place - 20 - _RECORD)
            return before if _record_at(file, min(offset, total)) in (None, before) else None
        return count, size
    finally:
        file.seek(0)


def _record_at(file: BinaryIO, place: int) -> tuple[int, int] | None:
    """Return what an archive's end in 64 bits says of its table, where one lies at a place."""
    file.seek(max(place, 0))
    record = file.read(_RECORD)
    return struct.unpack("<QQ", record[32:48]) if record[:4] == _END64 and len(record) == _RECORD else None
