"""Training images of the bundled zoo: not shipped, but drawn again from the settings of its recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .bundled import MINI8
from .files import write_images
from .images import check_disjoint, draw_split


def drawn_tasks() -> tuple[str, ...]:
    """Return the names of the tasks that training images can be drawn for."""
    return tuple(task.name for task in MINI8.in_domain)


def add_training_images(task: str, path: Path, published: Mapping[str, np.ndarray]) -> None:
    """Draw a task's training images, those that the shipped experts were trained on, and put them beside the others.

    Args:
        task: one of :func:`drawn_tasks`.
        path: the folder of the task's images.
        published: images of the other splits (n, 32, 32, 3) by split; none of them is drawn again.

    Raises:
        ValueError: a drawn image is also in another split.
    """
    entry = next(entry for entry in MINI8.in_domain if entry.name == task)
    split = draw_split(MINI8, entry, "train", MINI8.sizes.of(entry)["train"])
    check_disjoint(task, {**published, "train": split.images})
    write_images(path, entry, {"train": (split.images, split.labels)})
