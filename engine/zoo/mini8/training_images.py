"""Training images of the bundled zoo: not shipped, but drawn again from the seed in its build record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .images import DATA_SEED, SIZES_IN, check_disjoint, draw_split
from .tasks import IN_DOMAIN

RECORD = "build.json"


def drawn_tasks() -> tuple[str, ...]:
    """Return the names of the tasks that training images can be drawn for."""
    return tuple(task.name for task in IN_DOMAIN)


def training_images(folder: Path, task: str, published: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Draw a task's training images, those that the shipped experts were trained on.

    Args:
        folder: of the zoo; its build record names the seed.
        task: one of :func:`drawn_tasks`.
        published: images of the other splits (n, 32, 32, 3) by split; none of them is drawn again.

    Returns:
        ``train_x`` uint8 (2000, 32, 32, 3) and ``train_y`` int64 (2000,).

    Raises:
        ValueError: a drawn image is also in another split.
    """
    entry = next(entry for entry in IN_DOMAIN if entry.name == task)
    split = draw_split(entry, "train", SIZES_IN["train"], _seed(folder))
    check_disjoint(task, {**published, "train": split.images})
    return {"train_x": split.images, "train_y": split.labels}


def _seed(folder: Path) -> int:
    try:
        return int(json.loads((folder / RECORD).read_text("utf-8"))["seeds"]["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return DATA_SEED
