"""Damage to bytes: what disks, networks and people without a specification do to files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**40, 2**62, 2**63 - 1, 2**64 - 1)
TOKENS = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b":",
    b",",
    b"\0",
    b"\n",
    b"*a",
    b"&a ",
    b"<<: ",
    b"!!python/object/apply:os.system",
    b"PK\x03\x04",
    b"PK\x01\x02",
    b"PK\x05\x06",
    b"\x93NUMPY",
    b"PAR1",
    b"cos\nsystem\n",
    b"R.",
    b"\x80\x04",
    b"NaN",
    b"-1",
    b"1e999",
    b"9" * 400,
    b"../",
    b"\xff\xfe",
    b"\xf0\x9f\x98\x80",
    b"true",
    b"null",
)


def flip_bits(data: bytearray, rng: Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def truncate(data: bytearray, rng: Random) -> None:
    del data[rng.randrange(len(data)) :]


def cut(data: bytearray, rng: Random) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.randint(1, max(1, len(data) // 4))]


def splice(data: bytearray, rng: Random) -> None:
    """Copy one part over or into another."""
    start, length = rng.randrange(len(data)), rng.randint(1, max(1, len(data) // 3))
    part = data[start : start + length]
    place = rng.randrange(len(data))
    data[place : place + (length if rng.random() < 0.5 else 0)] = part


def huge_number(data: bytearray, rng: Random) -> None:
    """Overwrite a length, offset or count, more often near the ends, where they lie."""
    form, size = rng.choice((("<B", 1), ("<H", 2), ("<I", 4), (">I", 4), ("<Q", 8)))
    limit = len(data) - size
    if limit <= 0:
        return
    place = rng.choice(
        (0, rng.randint(0, min(64, limit)), rng.randint(max(0, limit - 80), limit), rng.randint(0, limit))
    )
    struct.pack_into(form, data, place, rng.choice(EXTREMES) % 256**size)


def insert_token(data: bytearray, rng: Random) -> None:
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.randrange(len(data) + 1)
        data[place:place] = rng.choice(TOKENS)


def fill(data: bytearray, rng: Random) -> None:
    start = rng.randrange(len(data))
    length = rng.randint(1, 64)
    data[start : start + length] = bytes([rng.choice((0, 0xFF, 0x20, 0x41))]) * len(data[start : start + length])


def append(data: bytearray, rng: Random) -> None:
    data += rng.randbytes(rng.choice((1, 16, 4096))) if rng.random() < 0.7 else bytes(data)


def replace_all(data: bytearray, rng: Random) -> None:
    data[:] = rng.choice((b"", b"\0", b"{}", b"[]", b"PK", b"\x80\x04", rng.randbytes(rng.choice((1, 8, 100)))))


MUTATIONS: tuple[Callable[[bytearray, Random], None], ...] = (
    flip_bits,
    flip_bits,
    truncate,
    cut,
    splice,
    huge_number,
    huge_number,
    insert_token,
    fill,
    append,
    replace_all,
)


def damage(data: bytes, rng: Random) -> bytes:
    """The bytes with one to three kinds of damage."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if changed:
            rng.choice(MUTATIONS)(changed, rng)
    return bytes(changed)
