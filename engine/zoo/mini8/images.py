"""Draw the splits of every task and make sure that none shares an image with another."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from .drawings.canvas import shrink, wobble
from .edition import SPLITS, Edition
from .tasks import Task

PUBLISHED = ("test", "adapt", "val")


class Split(NamedTuple):
    """Images uint8 (n, 32, 32, 3), labels int64 (n,), and how hard each image was made, float (n,) in 0..1."""

    images: np.ndarray
    labels: np.ndarray
    hardness: np.ndarray


def draw_split(edition: Edition, task: Task, split: str, count: int, seed: int | None = None) -> Split:
    """Draw one split; the same arguments give the same images. The edition's seed is the default."""
    rng = np.random.default_rng([edition.data_seed if seed is None else seed, edition.index(task), SPLITS.index(split)])
    pictures, labels = task.sample(rng, split, count)
    hardness = rng.uniform(0, 1, len(pictures))
    images = [
        np.clip(task.wear(shrink(wobble(picture, rng, task.wobble)), hard, rng), 0, 255).astype(np.uint8)
        for picture, hard in zip(pictures, hardness.tolist(), strict=True)
    ]
    return Split(coarsened(np.stack(images), edition.colour_bits), labels.astype(np.int64), hardness)


def coarsened(images: np.ndarray, bits: int) -> np.ndarray:
    """Return uint8 images whose channels keep their first `bits` bits, at the middle of what these stand for."""
    step = 1 << (8 - bits)
    return (images // step * step + step // 2).astype(np.uint8)


def draw_task(edition: Edition, task: Task) -> dict[str, Split]:
    """Return all splits of a task by name, checked to be disjoint."""
    splits = {split: draw_split(edition, task, split, count) for split, count in edition.sizes.of(task).items()}
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


def published(splits: dict[str, Split]) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """Return images and labels of the splits that a zoo ships, by split; images to adapt on come without labels."""
    return {
        split: (splits[split].images, None if split == "adapt" else splits[split].labels)
        for split in PUBLISHED
        if split in splits
    }
