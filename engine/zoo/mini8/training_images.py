"""Training images of the bundled zoo: not shipped, but drawn again from the settings of its edition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .edition import Edition
from .files import write_npz, write_parquet
from .first import FIRST
from .images import check_disjoint, draw_split
from .second import SECOND

RECORD = "build.json"


def edition_of(folder: Path) -> Edition:
    """Return the edition that a zoo's build record names; the first, whose record names none, by default."""
    try:
        label = json.loads((folder / RECORD).read_text("utf-8")).get("edition")
    except (OSError, ValueError, AttributeError):
        label = None
    return SECOND if label == SECOND.label else FIRST


def drawn_tasks(folder: Path) -> tuple[str, ...]:
    """Return the names of the tasks that training images can be drawn for."""
    return tuple(task.name for task in edition_of(folder).in_domain)


def add_training_images(folder: Path, task: str, path: Path, published: Mapping[str, np.ndarray]) -> None:
    """Draw a task's training images, those that the shipped experts were trained on, and put them beside the others.

    Args:
        folder: of the zoo; its build record names the edition.
        task: one of :func:`drawn_tasks`.
        path: of the task's data, in the edition's form.
        published: images of the other splits (n, 32, 32, 3) by split; none of them is drawn again.

    Raises:
        ValueError: a drawn image is also in another split.
    """
    edition = edition_of(folder)
    entry = next(entry for entry in edition.in_domain if entry.name == task)
    split = draw_split(edition, entry, "train", edition.sizes.of(entry)["train"])
    check_disjoint(task, {**published, "train": split.images})
    drawn = {"train": (split.images, split.labels)}
    if path.is_dir():
        write_parquet(path, entry, drawn)
        return
    with np.load(path) as archive:
        known = {name: archive[name] for name in archive.files}
    splits = {name[:-2]: (known[name], known.get(f"{name[:-2]}_y")) for name in known if name.endswith("_x")}
    write_npz(path, entry, {**splits, **drawn})
