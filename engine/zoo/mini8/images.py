"""Draw the splits of every task and make sure that none shares an image with another."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from .drawings.canvas import shrink, wobble
from .tasks import TASKS, Task

DATA_SEED = 1000
SIZES_IN = {"pretrain": 3000, "train": 2000, "adapt": 500, "val": 200, "test": 500}
SIZES_OUT = {"pretrain": 2500, "val": 100, "test": 500}
SPLITS = tuple(SIZES_IN)
PUBLISHED = ("test", "adapt", "val")


class Split(NamedTuple):
    """Images uint8 (n, 32, 32, 3), labels int64 (n,), and how hard each image was made, float (n,) in 0..1."""

    images: np.ndarray
    labels: np.ndarray
    hardness: np.ndarray


def draw_split(task: Task, split: str, count: int, seed: int = DATA_SEED) -> Split:
    """Draw one split; the same arguments give the same images."""
    rng = np.random.default_rng([seed, TASKS.index(task), SPLITS.index(split)])
    pictures, labels = task.sample(rng, split, count)
    hardness = rng.uniform(0, 1, len(pictures))
    images = [
        np.clip(task.wear(shrink(wobble(picture, rng, task.wobble)), hard, rng), 0, 255).astype(np.uint8)
        for picture, hard in zip(pictures, hardness.tolist(), strict=True)
    ]
    return Split(np.stack(images), labels.astype(np.int64), hardness)


def draw_task(task: Task, seed: int = DATA_SEED) -> dict[str, Split]:
    """Return all splits of a task by name, checked to be disjoint."""
    sizes = SIZES_IN if task.in_domain else SIZES_OUT
    splits = {split: draw_split(task, split, count, seed) for split, count in sizes.items()}
    check_disjoint(task.name, {name: split.images for name, split in splits.items()})
    return splits


def digests(images: np.ndarray) -> set[str]:
    """Return SHA-256 of every image (n, height, width, channels)."""
    return {hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest() for image in images}


def check_disjoint(task: str, splits: dict[str, np.ndarray]) -> None:
    """Raise ValueError if two splits of a task share an image."""
    seen: dict[str, str] = {}
    for split, images in splits.items():
        found = digests(images)
        shared = {seen[digest] for digest in found if digest in seen}
        if shared:
            raise ValueError(f"Task '{task}': an image of split '{split}' also occurs in {sorted(shared)}.")
        seen.update(dict.fromkeys(found, split))


def published_arrays(task: Task, splits: dict[str, Split]) -> dict[str, np.ndarray]:
    """Return the arrays of the task's npz file: images of three splits, labels of the labelled two."""
    arrays: dict[str, np.ndarray] = {}
    for split in PUBLISHED:
        if split not in splits:
            continue
        arrays[f"{split}_x"] = splits[split].images
        if split != "adapt":
            arrays[f"{split}_y"] = splits[split].labels
    return arrays
