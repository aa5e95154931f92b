"""The protocol of all readers, and the names of splits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from ....store.digests import FileSet
from ..decoding import Encoded

SPLITS = ("test", "adapt", "val", "train")
LABELLED = ("test", "val", "train")
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "trainval": "train",
    "test": "test",
    "testing": "test",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "validation_matched": "val",
    "adapt": "adapt",
    "unlabelled": "adapt",
    "unlabeled": "adapt",
    "unsupervised": "adapt",
}
EVALUATED_INSTEAD = "It has no test split, so its validation split is evaluated on."


class Source(Protocol):
    """Images and labels of one task. Opening one reads names and labels, never pixels."""

    path: Path  # what the manifest names
    lengths: dict[str, int]  # images by split
    brought: tuple[str, ...]  # the data's own names of its labels 0, 1, …; () where it has none
    ordered: bool  # whether the labels' order means something beyond the alphabet
    notes: tuple[str, ...]  # what a person should know about it

    def labels(self, split: str) -> np.ndarray:
        """Return the data's own labels of a split: whole numbers (n,)."""

    def names(self, split: str, rows: Sequence[int]) -> list[str]:
        """Return the names of images in messages."""

    def encoded(self, split: str, row: int) -> Encoded:
        """Return one image as it is stored."""

    def content(self) -> Path | FileSet:
        """Return the file or files whose content the data is."""


def split_of(name: str) -> str | None:
    """Return the split that a folder's or file's name names."""
    return SPLIT_NAMES.get(name.lower())


def with_test(found: dict[str, list]) -> tuple[dict[str, list], tuple[str, ...]]:
    """Return splits with a test split: the validation split, where there is no other, and a note that says so."""
    if "test" not in found and "val" in found:
        rest = {split: rows for split, rows in found.items() if split != "val"}
        return {"test": found["val"], **rest}, (EVALUATED_INSTEAD,)
    return found, ()
