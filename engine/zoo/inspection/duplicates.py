"""Images of a task that come twice: among the images that are tested on, and between these and others."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...errors import EngineError
from ...types import Finding
from ..folder import Zoo
from ..images.data import TaskData

CELLS = (8, 9)  # of a difference hash: every cell is compared with its right neighbour
SIDE = 72  # of the small pictures that hashes are made of: a multiple of both
CLOSE = 3.0  # grey levels by which the cells of two pictures of one look may differ
BANDS, NEAR = 4, 6  # looks are compared where one of the bands is the same; bits in which they may differ
CROWD = 8  # looks in one band that are compared
PLAIN = 6  # bits that have to differ from the rest; plainer pictures have no look to compare
MANY = 0.01  # of a split's images: more that come twice are a fault, fewer a warning
NAMED = 3
LARGEST = 60_000  # images of a split whose looks are compared


@dataclass(frozen=True)
class Looks:
    """Marks by which images of a split are recognised."""

    rows: np.ndarray  # (n,)
    digests: list[str]  # of what is stored
    hashes: list[int]  # 64 bits of the look; -1 for plain pictures; of the first LARGEST
    cells: np.ndarray  # (n, 72) grey levels of the first LARGEST


def duplicates(zoo: Zoo, task: str) -> Iterator[Finding]:
    """Look for images that come twice.

    The same bytes in the test images and another split mean that a test says too much; among the test images, that
    some count twice. More than one in a hundred are a fault, fewer a warning. Pictures that only look alike (a
    difference hash of 64 bits, and nearly the same grey levels) are a warning.
    """
    try:
        data = zoo.open_data(task)
        looks = {split: _looks(data, split) for split in data.lengths} if data else {}
    except EngineError:
        return  # what is wrong with the data is said where they are looked at by themselves
    test = looks.get("test")
    if data is None or test is None:
        return
    for split, other in looks.items():
        if len(other.rows) > len(other.hashes):
            yield Finding(
                "note",
                f"{task}: of {len(other.rows):,} {split} {zoo.modality.many}, the first {len(other.hashes):,} are "
                "compared by their looks, all by their bytes",
            )
        yield from _twice(data, test, other, split, zoo.modality.many)


def _looks(data: TaskData, split: str) -> Looks:
    every = data.usable(split)
    digests = [hashlib.sha256(raw).hexdigest() for raw in data.stored(split, every)]
    rows = every[:LARGEST]
    high, wide = SIDE // CELLS[0], SIDE // CELLS[1]
    sums = np.zeros((len(rows), *CELLS), np.uint32)
    for number, picture in enumerate(data.pictures(split, list(rows), SIDE)):
        sums[number] = np.einsum("abcd->ac", picture.reshape(CELLS[0], high, CELLS[1], 3 * wide), dtype=np.uint32)
    cells = (sums / (3 * high * wide)).astype(np.float32)
    brighter = (cells[:, :, 1:] > cells[:, :, :-1] + 1).reshape(len(rows), -1)
    counts = brighter.sum(axis=1)
    packed = np.packbits(brighter, axis=1)
    plain = (counts < PLAIN) | (counts > brighter.shape[1] - PLAIN)
    hashes = [-1 if flat else int.from_bytes(row.tobytes()) for row, flat in zip(packed, plain, strict=True)]
    return Looks(every, digests, hashes, cells.reshape(len(rows), -1))


def _twice(data: TaskData, test: Looks, other: Looks, split: str, many: str) -> Iterator[Finding]:
    """List the images that the test split shares with a split, or has twice itself."""
    task, inside = data.task.name, split == "test"
    counts = Counter(other.digests)
    same = [row for row, digest in enumerate(test.digests) if counts[digest] > (1 if inside else 0)]
    where = f"within the test {many}" if inside else f"in the test {many} and in {split}"
    if same:
        share = len(same) / len(test.digests)
        named = ", ".join(data.named("test", [int(test.rows[row]) for row in same[:NAMED]]))
        meaning = "They count twice." if inside else "What is learned there is tested here."
        yield Finding(
            "error" if share > MANY else "warning",
            f"Task '{task}': {len(same)} of {len(test.digests):,} test {many} come twice {where}, {named} first. "
            f"{meaning} Leave one of each out.",
        )
    alike = _alike(test, other, inside) - set(same)
    if alike:
        named = ", ".join(data.named("test", [int(test.rows[row]) for row in sorted(alike)[:NAMED]]))
        yield Finding(
            "warning",
            f"Task '{task}': {len(alike)} of {len(test.digests):,} test {many} look nearly like others {where}, "
            f"{named} first.",
        )


def _alike(test: Looks, other: Looks, inside: bool) -> set[int]:
    """Return rows of test images whose look another image has, though not its bytes."""
    width = 64 // BANDS
    places: dict[tuple[int, int], list[int]] = {}
    for row, code in enumerate(other.hashes):
        for band in range(BANDS) if code >= 0 else ():
            places.setdefault((band, code >> band * width & (1 << width) - 1), []).append(row)
    found = set()
    for row, code in enumerate(test.hashes):
        if code < 0:
            continue
        near = {
            place
            for band in range(BANDS)
            for place in places.get((band, code >> band * width & (1 << width) - 1), ())[:CROWD]
        }
        close = [
            place
            for place in near
            if (other.hashes[place] ^ code).bit_count() <= NEAR
            and not (inside and place == row)
            and other.digests[place] != test.digests[row]
        ]
        if (np.abs(test.cells[row] - other.cells[close]).max(axis=1, initial=0) <= CLOSE).any():
            found.add(row)
    return found
