"""A folder (or zip archive) of class folders, with or without folders of splits around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ....errors import DataError
from ....store.digests import FileSet
from ..decoding import Encoded
from .source import LABELLED, SPLITS, split_of, with_test
from .tree import NAMED, FolderTree, Tree, ZipTree

Item = tuple[str, str]  # file name, class name ('' where it has none)


class ClassFolders:
    """Images whose folder names their class: ``CLASS/…`` or ``SPLIT/CLASS/…``; ``adapt/`` may be flat."""

    ordered = False

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.path = tree.path
        found, more = with_test(_arrange(tree))
        self.notes = (*more, *_others(tree.others))
        names = {name for split in LABELLED for _, name in found.get(split, ()) if name}
        self.brought = tuple(sorted(names, key=_natural))
        number = {name: index for index, name in enumerate(self.brought)}
        self._files = {split: [file for file, _ in items] for split, items in found.items()}
        self._labels = {
            split: np.array([number.get(name, -1) for _, name in items], np.int64) for split, items in found.items()
        }
        self.lengths = {split: len(self._files[split]) for split in SPLITS if split in self._files}

    def labels(self, split: str) -> np.ndarray:
        """Return positions in ``brought`` (n,)."""
        return self._labels[split]

    def names(self, split: str, rows: Sequence[int]) -> list[str]:
        """Return relative file names."""
        return [self._files[split][row] for row in rows]

    def encoded(self, split: str, row: int) -> Encoded:
        """Return one image file."""
        return self._tree.encoded(self._files[split][row])

    def content(self) -> Path | FileSet:
        """Return the files, or the archive."""
        return self._tree.content()


def read_folder(path: Path) -> ClassFolders:
    """Return class folders below a folder."""
    return ClassFolders(FolderTree(path))


def read_zip(path: Path) -> ClassFolders:
    """Return class folders inside a zip archive."""
    return ClassFolders(ZipTree(path))


def _arrange(tree: Tree) -> dict[str, list[Item]]:
    """Return files by split, each with the name of its class."""
    parts = [(name, name.split("/")[:-1]) for name in tree.names]
    if not parts:
        raise DataError(
            f"{tree.path.name} holds no images. A folder for each class, with image files in it, is needed."
        )
    while len({tuple(folders[:1]) for _, folders in parts}) == 1 and all(len(folders) > 1 for _, folders in parts):
        if split_of(parts[0][1][0]) is not None:
            break
        parts = [(name, folders[1:]) for name, folders in parts]  # one folder around everything
    tops = {folders[0] if folders else "" for _, folders in parts}
    if all(split_of(top) for top in tops if top) and tops - {""}:
        return _with_splits(tree, parts)
    _refuse_beside_splits(tree, parts)
    loose = [name for name, folders in parts if not folders]
    if loose:
        raise DataError(
            f"{tree.path.name} holds {len(loose)} images outside class folders, {', '.join(loose[:NAMED])} first. "
            "Put each image into a folder named after its class."
        )
    return {"test": [(name, folders[0]) for name, folders in parts]}


def _refuse_beside_splits(tree: Tree, parts: list[tuple[str, list[str]]]) -> None:
    """Refuse a folder of images beside splits; a class called like a split holds its images itself.

    Raises:
        DataError: there are folders of splits with class folders in them, and another one.
    """
    splits = sorted({folders[0] for _, folders in parts if len(folders) > 1 and split_of(folders[0])})
    if not splits:
        return
    others = Counter(folders[0] if folders else "" for _, folders in parts)
    named = [f"{top}/ ({count:,} images)" for top, count in sorted(others.items()) if top and not split_of(top)]
    raise DataError(
        f"{tree.path.name} holds class folders in {_some(splits)}, and beside them {_some(named)}, which no split is "
        "called. Remove what is no part of the data, name it after a split (train, val, test or adapt), or, if "
        f"{splits[0]}/ is a class, put its images directly into it."
    )


def _some(names: Sequence[str]) -> str:
    more = " …" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def _with_splits(tree: Tree, parts: list[tuple[str, list[str]]]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for name, folders in parts:
        split = split_of(folders[0]) if folders else None
        if split is None or (len(folders) < 2 and split != "adapt"):
            raise DataError(
                f"{tree.path.name}/{name} lies in no class folder. Where there are folders of splits, images lie in "
                "SPLIT/CLASS/."
            )
        found.setdefault(split, []).append((name, folders[1] if len(folders) > 1 else ""))
    return found


def _natural(name: str) -> tuple[int, int, str]:
    """Return a key that sorts numbers by value and before words."""
    return (0, int(name), name) if name.isascii() and name.isdigit() else (1, 0, name)


def _others(names: Sequence[str]) -> tuple[str, ...]:
    return (f"{len(names)} files that are no images are left out: {_some(names)}.",) if names else ()
