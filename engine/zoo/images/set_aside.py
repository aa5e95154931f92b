"""Test images set aside from images that come without splits, so that the rest can be trained on."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import ValidationError

from ...errors import DataError
from ...manifest import Task
from ...recipe import explain
from ..brought_task import check_room, check_share, place_file
from .brought import ImageTask
from .data import ImageData
from .decoding import FORMATS, SUFFIXES, Encoded
from .readers.npz import NpzArrays
from .readers.parquet import ParquetShards
from .readers.tables import is_number
from .splits import share_of_each_class

ENDINGS = {"JPEG": ".jpg", "TIFF": ".tif", "PPM": ".ppm"}  # others are called after their format
UNKNOWN = ".bin"  # of what is no image; the check of the zoo will name it
TABLE = "images.csv"


def set_aside(task: ImageTask, zoo: Path, *, share: float, seed: int, link: bool = False) -> str:
    """Bring a task without splits into a zoo: a share of every class as test images, the rest to train on.

    Args:
        task: its images are all test images as they are.
        zoo: the zoo's folder.
        share: of every class's images that are tested on, between 0 and 1.
        seed: of the choice.
        link: make hard links where the disk allows it, where images are files.

    Returns:
        What the manifest names as ``data:``: an .npz, or a table of paths, labels and splits beside its images.

    Raises:
        DataError: a share that leaves nothing, labels that are missing, or no room on the disk.
    """
    check_share(share)
    labels = task.source.labels("test")
    if len(labels) and labels.min() < 0:
        raise DataError(f"{task.path.name}: {int((labels < 0).sum())} images have no label.")
    tested = share_of_each_class(labels, share, task.name, seed)
    if not tested.any():
        raise DataError(f"{task.path.name} has one image a class; none can be set aside. Bring a split of test images.")
    if isinstance(task.source, NpzArrays):
        return _arrays(task, task.source, zoo, labels, tested)
    return _table(task, zoo, labels, tested, link)


def _arrays(task: ImageTask, source: NpzArrays, zoo: Path, labels: np.ndarray, tested: np.ndarray) -> str:
    images = source.images("test")
    check_room(zoo, images.nbytes)
    target = Path("data") / f"{task.name}.npz"
    (zoo / "data").mkdir(exist_ok=True)
    parts = {"train": ~tested, "test": tested}
    arrays = {f"{split}_x": images[rows] for split, rows in parts.items()}
    np.savez_compressed(zoo / target, **arrays, **{f"{split}_y": labels[rows] for split, rows in parts.items()})
    return target.as_posix()


def _table(task: ImageTask, zoo: Path, labels: np.ndarray, tested: np.ndarray, link: bool) -> str:
    source, folder = task.source, Path("data") / task.name
    names = source.names("test", range(len(labels)))
    places = folder / "images"
    lines = []
    for row, (name, label) in enumerate(zip(names, _written(task, labels), strict=True)):
        try:
            raw = source.encoded("test", row)
            if isinstance(raw, Path):
                raw.open("rb").close()
        except OSError as error:
            raise DataError(f"{task.path.name}: {name} cannot be read ({error}).") from error
        own = not isinstance(source, ParquetShards) and name.lower().endswith(SUFFIXES)
        target = places / (name if own else f"{row:07d}{_ending(raw)}")
        (zoo / target).parent.mkdir(parents=True, exist_ok=True)
        _write(raw, zoo / target, link)
        lines.append((target.relative_to(folder).as_posix(), label, "test" if tested[row] else "train"))
    with (zoo / folder / TABLE).open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerows([("path", "label", "split"), *lines])
    return (folder / TABLE).as_posix()


def _written(task: ImageTask, labels: np.ndarray) -> list[str]:
    """Return labels as the table holds them: names, or places in the class list where a table reads all as numbers."""
    brought = task.source.brought
    if not brought:
        return [str(label) for label in labels.tolist()]
    if labels.max() >= len(brought):
        raise DataError(
            f"{task.path.name} has the label {labels.max()}, but names {len(brought)} classes (0 to "
            f"{len(brought) - 1}). Correct the labels, or the names."
        )
    texts = [brought[label] for label in labels.tolist()]
    if not all(map(is_number, set(texts))):
        return texts
    entry = task.entry()
    try:
        known = Task(name=task.name, domain="in", **{key: entry[key] for key in ("classes", "dataset") if key in entry})
    except ValidationError as error:
        raise DataError(f"{task.path.name}: {explain(error, Task)}") from error
    return [str(label) for label in ImageData(known, task.source).labels("test").tolist()]


def _ending(raw: Encoded) -> str:
    if isinstance(raw, Path):
        return raw.suffix or UNKNOWN
    if not isinstance(raw, bytes):
        return ".png"
    try:
        kind = Image.open(io.BytesIO(raw), formats=FORMATS).format or ""
    except (OSError, ValueError, SyntaxError):
        return UNKNOWN
    return ENDINGS.get(kind, f".{kind.lower()}")


def _write(raw: Encoded, target: Path, link: bool) -> None:
    if isinstance(raw, Path):
        place_file(raw, target, link=link)
    elif isinstance(raw, bytes):
        target.write_bytes(raw)
    else:
        image = raw if isinstance(raw, Image.Image) else Image.fromarray(raw)
        image.save(target, "PNG")
