"""Data sets that torchvision has put on disk, read through torchvision's own classes. Never downloads anything.

torchvision unpickles CIFAR's files after comparing their MD5 with the published ones; other sets are plain files.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError, nearest
from ...store.digests import FileSet
from ..decoding import Encoded
from .source import SPLITS, with_test

ROOT_VARIABLE = "MERGELENS_TORCHVISION"
DEFAULT_ROOT = "torchvision"
TRAIN_OR_TEST = {"train": {"train": True}, "test": {"train": False}}
BY_NAME = {"train": {"split": "train"}, "test": {"split": "test"}}
THREE = {**BY_NAME, "val": {"split": "val"}}


@dataclass(frozen=True)
class Installed:
    """How to open one of torchvision's classes."""

    labels: str  # attribute with the labels; ``_samples`` holds pairs
    splits: dict[str, dict[str, Any]]  # split → arguments
    files: tuple[str, ...]  # what it reads below the root, as glob patterns
    classes: tuple[str, ...] = ()  # where the class has no such list
    shift: int = 0  # added to labels
    transposed: bool = False
    options: dict[str, Any] = field(default_factory=dict)


FER = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
EVERYTHING: dict[str, dict[str, Any]] = {"test": {}}
TABLE = {
    "MNIST": Installed("targets", TRAIN_OR_TEST, ("MNIST/raw/*ubyte",)),
    "FashionMNIST": Installed("targets", TRAIN_OR_TEST, ("FashionMNIST/raw/*ubyte",)),
    "KMNIST": Installed("targets", TRAIN_OR_TEST, ("KMNIST/raw/*ubyte",)),
    "EMNIST": Installed(
        "targets",
        TRAIN_OR_TEST,
        ("EMNIST/raw/emnist-letters-*ubyte",),
        classes=tuple("abcdefghijklmnopqrstuvwxyz"),
        shift=-1,
        transposed=True,
        options={"split": "letters"},
    ),
    "CIFAR10": Installed("targets", TRAIN_OR_TEST, ("cifar-10-batches-py/*",)),
    "CIFAR100": Installed("targets", TRAIN_OR_TEST, ("cifar-100-python/*",)),
    "SVHN": Installed("labels", BY_NAME, ("*_32x32.mat",), classes=tuple("0123456789")),
    "STL10": Installed("labels", {**BY_NAME, "adapt": {"split": "unlabeled"}}, ("stl10_binary/*",)),
    "GTSRB": Installed("_samples", BY_NAME, ("gtsrb/**/*.ppm", "gtsrb/*.csv"), classes=tuple(map(str, range(43)))),
    "DTD": Installed("_labels", THREE, ("dtd/dtd/images/**/*.jpg", "dtd/dtd/labels/*1.txt")),
    "SUN397": Installed("_labels", EVERYTHING, ("SUN397/**/sun_*.jpg", "SUN397/ClassName.txt")),
    "StanfordCars": Installed("_samples", BY_NAME, ("stanford_cars/**/*.jpg", "stanford_cars/**/*.mat")),
    "EuroSAT": Installed("targets", EVERYTHING, ("eurosat/**/*.jpg",)),
    "Flowers102": Installed("_labels", THREE, ("flowers-102/jpg/*.jpg", "flowers-102/*.mat")),
    "Food101": Installed("_labels", BY_NAME, ("food-101/images/**/*.jpg", "food-101/meta/*.json")),
    "FER2013": Installed("_samples", BY_NAME, ("fer2013/*.csv",), classes=FER),
    "OxfordIIITPet": Installed(
        "_labels",
        {"train": {"split": "trainval"}, "test": {"split": "test"}},
        ("oxford-iiit-pet/images/*.jpg", "oxford-iiit-pet/annotations/*.txt"),
    ),
    "RenderedSST2": Installed("_samples", THREE, ("rendered-sst2/**/*.png",)),
}
ELSEWHERE = {
    "ImageNet": "name its folder of class folders (`val`) as `data:` instead; torchvision would unpack archives there",
    "PCAM": "torchvision reads it with h5py, which MergeLens does not need otherwise; use its parquet form",
}


class InstalledDataset:
    """One of torchvision's data sets; array data of one split at a time is kept in memory."""

    ordered = True

    def __init__(self, name: str, root: Path) -> None:
        self.path = root
        self._name, self._row = name, _row(name)
        self._kept: tuple[str, Any] | None = None
        found: dict[str, list] = {}
        self._labels: dict[str, np.ndarray] = {}
        missing = ""
        for split in self._row.splits:
            try:
                labels = self._labels_of(self._open(split))
            except DataError as error:
                missing = missing or str(error)
                continue
            if labels is not None:
                found[split], self._labels[split] = [split], labels
        if not found:
            raise DataError(missing)
        arranged, self.notes = with_test(found)
        self._own = {split: own[0] for split, own in arranged.items()}
        if self._row.splits is EVERYTHING:
            self.notes = (*self.notes, f"torchvision's {name} has no splits: all its images count as test images.")
        self.lengths = {split: len(self._labels[self._own[split]]) for split in SPLITS if split in self._own}
        self.brought = self._row.classes or tuple(map(str, getattr(self._open(self._own["test"]), "classes", ())))

    def labels(self, split: str) -> np.ndarray:
        """Labels in torchvision's order (n,)."""
        return self._labels[self._own[split]]

    def names(self, split: str, rows: Sequence[int]) -> list[str]:
        """Data set, split and position."""
        return [f"{self._name} {split} image {row}" for row in rows]

    def encoded(self, split: str, row: int) -> Encoded:
        """One image, decoded by torchvision, or its file where it has one."""
        data = self._open(self._own[split])
        files = getattr(data, "_image_files", None) or getattr(data, "_images", None)
        if files is not None:
            return Path(files[row])
        for pairs in (getattr(data, "_samples", None), getattr(data, "samples", None)):
            if pairs is not None and isinstance(pairs[row][0], (str, Path)):
                return Path(pairs[row][0])
        image = data[row][0]
        return np.asarray(image).T if self._row.transposed else image

    def content(self) -> Path | FileSet:
        """The files that torchvision reads."""
        files = {file.relative_to(self.path).as_posix() for p in self._row.files for file in self.path.glob(p)}
        return FileSet(self.path, tuple(sorted(files)))

    def _open(self, split: str) -> Any:
        if self._kept is not None and self._kept[0] == split:
            return self._kept[1]
        from torchvision import datasets

        kind = getattr(datasets, self._name)
        arguments = {**self._row.options, **self._row.splits[split]}
        if "download" in inspect.signature(kind.__init__).parameters or "kwargs" in str(inspect.signature(kind)):
            arguments["download"] = False
        try:
            data = kind(str(self.path), **arguments)
        except (OSError, RuntimeError, ValueError, KeyError, IndexError, ImportError) as error:
            raise DataError(
                f"torchvision finds no {self._name} ({split}) in {self.path}: {_first_line(error)}. Put the "
                f"files there as torchvision does, or name another folder with `root:` or {ROOT_VARIABLE}."
            ) from error
        self._kept = (split, data)
        return data

    def _labels_of(self, data: Any) -> np.ndarray | None:
        """Labels (n,); None for a split without any."""
        values = getattr(data, self._row.labels)
        if self._row.labels == "_samples":
            values = [label for _, label in values]
        if len(values) and values[0] is None:
            return None
        return np.asarray(values, dtype=np.int64) + self._row.shift


def torchvision_root(folder: Path, root: str | None) -> Path:
    """Where torchvision's data sets lie: the manifest's ``root:``, else the environment, else inside the zoo."""
    if root is not None:
        return folder / root
    configured = os.environ.get(ROOT_VARIABLE)
    return Path(configured).expanduser() if configured else folder / "data" / DEFAULT_ROOT


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def _row(name: str) -> Installed:
    if name in ELSEWHERE:
        raise DataError(f"torchvision's {name} is not read: {ELSEWHERE[name]}.")
    if name not in TABLE:
        raise DataError(f"MergeLens reads no torchvision data set '{name}'. {nearest(name, TABLE)}")
    return TABLE[name]
