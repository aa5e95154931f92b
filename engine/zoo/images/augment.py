"""Modest augmentations of prepared images, drawn for each image of a batch."""

from __future__ import annotations

from typing import get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ...catalog.fine_tuning import Augmentation

AUGMENTATIONS: tuple[str, ...] = get_args(Augmentation)
LARGEST_SHIFT = 1 / 16  # of the image's side
SMALLEST_CROP = 0.7  # of the image's area


def augment(images: Tensor, kind: Augmentation, rng: np.random.Generator) -> Tensor:
    """Change every image of a batch by chance.

    Args:
        images: prepared, (n, 3, side, side).
        kind: ``shift`` moves by up to a sixteenth of the side in whole pixels, the border repeated; ``crop`` enlarges a
            random square of 70 to 100 % of the area; ``…_flip`` also mirrors every second image (not for digits,
            letters or signs, whose mirror image is another class or none); ``none`` changes nothing.
        rng: where chance comes from; the same state gives the same images.

    Returns:
        Images of the same shape.
    """
    if kind == "none":
        return images
    count, side = len(images), images.shape[-1]
    scale = np.ones(count)
    if kind.startswith("crop"):
        scale = np.sqrt(rng.uniform(SMALLEST_CROP, 1.0, count))
        offset = (1 - scale) * rng.uniform(-1, 1, (2, count))
    else:
        most = max(1, round(side * LARGEST_SHIFT))
        offset = rng.integers(-most, most + 1, (2, count)) * 2 / side
    mirror = np.where(rng.random(count) < 0.5, -1.0, 1.0) if kind.endswith("flip") else np.ones(count)
    theta = np.zeros((count, 2, 3), np.float32)
    theta[:, 0, 0], theta[:, 0, 2] = scale * mirror, offset[0]
    theta[:, 1, 1], theta[:, 1, 2] = scale, offset[1]
    grid = functional.affine_grid(torch.from_numpy(theta), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid.to(images), padding_mode="border", align_corners=False)
