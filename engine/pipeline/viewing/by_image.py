"""Correctness by image beside the accuracies of a view, so that differences can be paired and resampled.

Beside an accuracy ``NAME`` of a task a view writes ``NAME_by_image``, the images that are right, packed into a text;
where NAME is a list or a mean over several, a list of such texts.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

from ...errors import StoreError
from ...experiments.places import entry_at

BESIDE = "_by_image"


def packed(right: np.ndarray) -> str:
    """Pack which images are right, boolean (n,), into a text that begins with their number."""
    return f"{len(right)}:{base64.b64encode(np.packbits(np.asarray(right, dtype=bool)).tobytes()).decode()}"


def unpacked(text: str) -> np.ndarray:
    """Return which images are right, boolean (n,).

    Raises:
        StoreError: the text is damaged.
    """
    count, _, bits = str(text).partition(":")
    try:
        raw = np.frombuffer(base64.b64decode(bits, validate=True), np.uint8)
        if len(raw) != -(-int(count) // 8):
            raise ValueError(f"{len(raw)} bytes for {count} images")
    except (binascii.Error, ValueError) as error:
        raise StoreError(f"Which images are right cannot be read: {error}. Compute the view again.") from error
    return np.unpackbits(raw, count=int(count)).astype(bool)


def values_at(document: Any, place: str) -> dict[str, np.ndarray] | None:
    """Return the values by image (n,), in percent, behind the mean over tasks of an accuracy.

    Args:
        document: of a view by task.
        place: ``tasks.*.…``, as experiments write it; what it names in a task is averaged image by image.

    Returns:
        Values by task; None where the view keeps none there, or the averaged ones are of other images.

    Raises:
        StoreError: the view is damaged.
    """
    start, within = place.split(".")[:2], place.split(".")[2:]
    if start != ["tasks", "*"] or not within or not isinstance(document.get("tasks"), dict):
        return None
    name, bracket, rest = within[-1].partition("[")
    path = ".".join([*within[:-1], f"{name}{BESIDE}{bracket}{rest}"])
    found = {}
    for task, part in document["tasks"].items():
        entry = entry_at(part, path)
        texts = entry if isinstance(entry, list) else [entry]
        if not texts or not all(isinstance(text, str) for text in texts):
            return None
        rows = [unpacked(text) for text in texts]
        if len({len(row) for row in rows}) > 1:
            return None
        found[task] = 100.0 * np.mean(rows, axis=0)
    return found or None
