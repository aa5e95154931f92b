"""Data sets that torchvision has put on disk, read through torchvision's own classes. Never downloads anything.

torchvision unpickles CIFAR's files after comparing their MD5 with the published ones; other sets are plain files.
PCAM's are HDF5, which takes h5py: who wants to read them installs it, nothing else needs it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError, nearest
from ....store.digests import FileSet
from ..decoding import Encoded
from .folders import read_folder
from .source import SPLITS, Source, with_test

ROOT_VARIABLE = "MERGELENS_TORCHVISION"
DEFAULT_ROOT = "torchvision"
TRAIN_OR_TEST = {"train": {"train": True}, "test": {"train": False}}
BY_NAME = {"train": {"split": "train"}, "test": {"split": "test"}}
THREE = {**BY_NAME, "val": {"split": "val"}}


@dataclass(frozen=True)
class Installed:
    """The way to open one of torchvision's classes."""

    labels: str  # attribute with the labels; ``_samples`` holds pairs
    splits: dict[str, dict[str, Any]]  # split → arguments
    files: tuple[str, ...]  # what it reads below the root, as glob patterns
    classes: tuple[str, ...] = ()  # where the class has no such list
    shift: int = 0  # added to labels
    transposed: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    read: Callable[[Any], Any] | None = None  # gives the labels where no attribute holds them


def _pcam_labels(data: Any) -> np.ndarray:
    """Return labels of one of PCAM's splits, from an HDF5 file of their own."""
    name = data._FILES[data._split]["targets"][0]
    with data.h5py.File(data._base_folder / name) as targets:
        return targets["y"][:, 0, 0, 0]


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
    "PCAM": Installed("", THREE, ("pcam/*.h5",), classes=("no tumor", "tumor"), read=_pcam_labels),
}
IMAGENET = "ImageNet"  # class folders, which need none of torchvision's code (that would unpack archives)
IMAGENET_FOLDERS = ("", "imagenet", "ImageNet", "ILSVRC2012", "ILSVRC2012_img", "imagenet-1k")


def installed(name: str, root: Path) -> Source:
    """Return one of torchvision's data sets below a root.

    Args:
        name: of torchvision's class.
        root: what torchvision was given as its root.

    Raises:
        DataError: no such data set, or its files are not there.
    """
    if name != IMAGENET:
        return InstalledDataset(name, root)
    for folder in IMAGENET_FOLDERS:
        if (root / folder / "val").is_dir():
            return read_folder(root / folder / "val")
    raise DataError(
        f"{root} holds no ImageNet: a folder `val` with a folder for each of the 1,000 synsets is expected there, as "
        f"torchvision leaves it. Name another folder with `root:` or {ROOT_VARIABLE}."
    )


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
                data = self._open(split)
            except DataError as error:
                missing = missing or str(error)
                continue
            labels = self._labels_of(data)
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
        """Return labels in torchvision's order (n,)."""
        return self._labels[self._own[split]]

    def names(self, split: str, rows: Sequence[int]) -> list[str]:
        """Return data set, split and position."""
        return [f"{self._name} {split} image {row}" for row in rows]

    def encoded(self, split: str, row: int) -> Encoded:
        """Return one image, decoded by torchvision, or its file where it has one."""
        data = self._open(self._own[split])
        files = getattr(data, "_image_files", None) or getattr(data, "_images", None)
        if files is not None:
            return Path(files[row])
        for pairs in (getattr(data, "_samples", None), getattr(data, "samples", None)):
            if pairs is not None and isinstance(pairs[row][0], (str, Path)):
                return Path(pairs[row][0])
        try:
            image = data[row][0]
        except (KeyError, ValueError, RuntimeError) as error:
            raise OSError(f"torchvision cannot read it ({_first_line(error)})") from error
        return np.asarray(image).T if self._row.transposed else image

    def content(self) -> Path | FileSet:
        """Return the files that torchvision reads."""
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
        """Return labels (n,); None for a split without any."""
        if self._row.read is not None:
            try:
                return np.asarray(self._row.read(data), dtype=np.int64)
            except (OSError, KeyError, ValueError, RuntimeError) as error:
                raise DataError(f"The labels of {self._name} cannot be read ({_first_line(error)}).") from error
        values = getattr(data, self._row.labels)
        if self._row.labels == "_samples":
            values = [label for _, label in values]
        if len(values) and values[0] is None:
            return None
        return np.asarray(values, dtype=np.int64) + self._row.shift


def torchvision_root(folder: Path, root: str | None) -> Path:
    """Return the folder of torchvision's data sets: the manifest's ``root:``, the environment's, or the zoo's own."""
    if root is not None:
        return folder / root
    configured = os.environ.get(ROOT_VARIABLE)
    return Path(configured).expanduser() if configured else folder / "data" / DEFAULT_ROOT


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def _row(name: str) -> Installed:
    if name not in TABLE:
        raise DataError(f"MergeLens reads no torchvision data set '{name}'. {nearest(name, (*TABLE, IMAGENET))}")
    return TABLE[name]
