"""The evaluation images that a state classifies rightly, packed into text; and numbers as means over units."""

from __future__ import annotations

import base64
import itertools
import lzma
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt

from ..analysis.paired import Correct, Values
from ..errors import StoreError
from ..recipe import Frozen

AVERAGE = re.compile(r"^average\.(?P<state>[^.]+)\.(?P<kind>in|out|h_score)$")
OF_TASK = re.compile(r"^accuracy\.(?P<state>[^.]+)\.(?P<task>[^.]+)$")
MAX_BYTES = 50_000_000
# Images hardly depend on each other, so places of bits in a byte are all the context there is.
CODER = {
    "format": lzma.FORMAT_RAW,
    "filters": [{"id": lzma.FILTER_LZMA2, "dict_size": 2**20, "lc": 0, "lp": 0, "pb": 0}],
}


@dataclass(frozen=True, eq=False)
class Rights:
    """Correctness of one state on evaluation images, of all training seeds of a point.

    Where several groups of experts take turns, a task's name is followed by ``#`` and the number of the group.
    """

    inside: Mapping[str, int]  # in-domain task → its images
    outside: Mapping[str, int]  # the same out of domain
    images: str  # of which images: two equal texts mean the same ones in the same order
    seeds: int
    packed: Callable[[], NDArray[np.uint8]]  # shape (seeds, images of all tasks, in their order, / 8)

    @classmethod
    def of(cls, inside: Mapping[str, Correct], outside: Mapping[str, Correct], images: str) -> Rights:
        """Join correctness by task, each of shape (seeds, images)."""
        counts = [{task: matrix.shape[1] for task, matrix in side.items()} for side in (inside, outside)]
        packed = np.packbits(np.concatenate([*inside.values(), *outside.values()], axis=1), axis=1)
        return cls(*counts, images, len(packed), lambda: packed)

    @property
    def whole(self) -> Correct:
        """Return correctness of shape (seeds, images).

        Raises:
            StoreError: the file that it is from is damaged.
        """
        count = sum(self.inside.values()) + sum(self.outside.values())
        return np.unpackbits(self.packed(), axis=1, count=count).astype(bool)

    @property
    def layout(self) -> tuple[Any, ...]:
        """Return what two points share whose images are the same."""
        return tuple(self.inside.items()), tuple(self.outside.items()), self.images

    def by_task(self) -> tuple[dict[str, Correct], dict[str, Correct]]:
        """Return correctness by task, in domain and out of domain, each of shape (seeds, images)."""
        whole, start = self.whole, 0
        sides: list[dict[str, Correct]] = []
        for side in (self.inside, self.outside):
            sides.append({})
            for task, images in side.items():
                sides[-1][task] = whole[:, start : start + images]
                start += images
        return sides[0], sides[1]


class Sheet(Frozen):
    """Correctness of several points on the same images, as a file keeps it."""

    inside: dict[str, NonNegativeInt]
    outside: dict[str, NonNegativeInt]
    images: str
    seeds: dict[str, NonNegativeInt]  # point → its training seeds
    bits: str  # one image after another, of each the seeds of all points, eight in a byte; raw LZMA2, base85

    @classmethod
    def pack(cls, rights: Mapping[str, Rights]) -> Sheet:
        """Pack the correctness of points, by name, whose layout is the same."""
        first = next(iter(rights.values()))
        whole = np.concatenate([each.whole for each in rights.values()])
        packed = lzma.compress(np.packbits(whole, axis=0, bitorder="little").T.tobytes(), **CODER)
        return cls(
            inside=first.inside,
            outside=first.outside,
            images=first.images,
            seeds={name: each.seeds for name, each in rights.items()},
            bits=base64.b85encode(packed).decode(),
        )

    def rights(self) -> dict[str, Rights]:
        """Return the correctness of each point; it is unpacked when one is looked at, for all at once."""
        rows = cache(self._rows)
        starts = itertools.accumulate(self.seeds.values(), initial=0)

        def part(start: int, seeds: int) -> Rights:
            return Rights(self.inside, self.outside, self.images, seeds, lambda: rows()[start : start + seeds])

        return {name: part(start, seeds) for (name, seeds), start in zip(self.seeds.items(), starts, strict=False)}

    def _rows(self) -> NDArray[np.uint8]:
        """Return the points' seeds one below another, of shape (seeds, images / 8).

        Raises:
            StoreError: the text is damaged.
        """
        total, images = sum(self.seeds.values()), sum(self.inside.values()) + sum(self.outside.values())
        width = -(-total // 8)
        try:
            reader = lzma.LZMADecompressor(**CODER)
            raw = reader.decompress(base64.b85decode(self.bits), MAX_BYTES)
            if not reader.eof or len(raw) != width * images:
                raise ValueError(f"{len(raw)} bytes for {total} seeds of {images} images")
        except (lzma.LZMAError, ValueError) as error:
            raise StoreError(f"The correctness of images cannot be read: {error}. Run the experiment again.") from error
        by_image = np.frombuffer(raw, np.uint8).reshape(images, width).T
        return np.packbits(np.unpackbits(by_image, axis=0, count=total, bitorder="little"), axis=1)


def sheets_of(rights: Mapping[str, Rights]) -> list[Sheet]:
    """Return the sheets of points, by name: one for each layout."""
    layouts: dict[tuple[Any, ...], dict[str, Rights]] = {}
    for name, each in rights.items():
        layouts.setdefault(each.layout, {})[name] = each
    return [Sheet.pack(group) for group in layouts.values()]


@dataclass(frozen=True)
class Side:
    """A number as the mean, over groups that are fixed, of means over units (images); for each training seed."""

    mean: float
    parts: Mapping[str, Values]
    units: Literal["images", "groups"] = "images"
    right: bool = False  # whether the values are right answers, in percent


def accuracy_side(rights: Rights, path: str, state: str, mean: float) -> Side | None:
    """Return the side of an accuracy that a path of a report names, None where it names another number.

    The H-score is linearised around its value: it is homogeneous of degree 1, so that the sum of both accuracies times
    their derivatives is the score itself.

    Args:
        rights: of the point.
        path: such as ``average.merged.in``, ``average.merged.h_score`` or ``accuracy.merged.digits``.
        state: whose images these are; what the path names of another state has no side.
        mean: the number itself.
    """
    match = OF_TASK.match(path) or AVERAGE.match(path)
    if match is None or match["state"] != state:
        return None
    inside, outside = (_percent(side, rights) for side in rights.by_task())
    if match.re is OF_TASK:
        name = _name(match["task"], rights)
        found = {**inside, **outside}
        return Side(mean, {name: found[name]}, right=True) if name in found else None
    if match["kind"] != "h_score":
        chosen = inside if match["kind"] == "in" else outside
        return Side(mean, chosen, right=True) if chosen else None
    if not inside or not outside:
        return None
    levels = [math.fsum(float(part.mean()) for part in side.values()) / len(side) for side in (inside, outside)]
    if min(levels) <= 0:
        return None
    total = sum(levels)
    slopes = [2 * (levels[1 - place] / total) ** 2 for place in (0, 1)]
    parts = len(inside) + len(outside)
    return Side(
        mean,
        {
            name: matrix * slopes[place] * parts / len(side)
            for place, side in enumerate((inside, outside))
            for name, matrix in side.items()
        },
        right=True,
    )


def task_accuracy(rights: Rights, path: str, state: str) -> tuple[float, ...] | None:
    """Return a task's accuracy in percent, seed by seed, by its place in a report; None where it has no images.

    Args:
        rights: of the point.
        path: such as ``accuracy.merged.digits``.
        state: whose images these are.
    """
    side = accuracy_side(rights, path, state, 0.0) if OF_TASK.match(path) else None
    return None if side is None else tuple(float(value) for part in side.parts.values() for value in part.mean(axis=1))


def _percent(side: Mapping[str, Correct], rights: Rights) -> dict[str, Values]:
    """Return correctness in percent; of a task that several groups of experts were scored on the mean of an image."""
    found: dict[str, list[Correct]] = {}
    for task, matrix in side.items():
        found.setdefault(_name(task.partition("#")[0], rights), []).append(matrix)
    return {name: 100.0 * np.mean(matrices, axis=0) for name, matrices in found.items()}


def _name(task: str, rights: Rights) -> str:
    """Return a task's name with what tells its images, so that other images are never paired."""
    return f"{task} of {rights.images}"
