"""Other tasks' drawings in outline, ink on paper; hard images are faint and stained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from PIL import Image

from .canvas import SMALL, smooth_noise, to_image

Drawer = Callable[[np.random.Generator], Image.Image]
FULL = 0.35  # of the steepest slope in a picture, from which on a line is wholly inked


def _trace(rng: np.random.Generator, drawer: Drawer) -> Image.Image:
    """Ink a picture's outlines: the steeper a colour changes, the darker."""
    pixels = np.asarray(drawer(rng)).astype(float)
    down, across = np.gradient(pixels, axis=(0, 1))
    slope = np.hypot(down, across).max(axis=2)
    ink = np.clip(slope / (FULL * slope.max() + 1e-6), 0, 1)[..., None]
    paper, pen = rng.uniform(215, 255) - np.array([0, 4, 14]), rng.uniform(10, 70, 3)
    return to_image(paper + ink * (pen - paper))


def in_outline(drawers: Mapping[str, Drawer]) -> dict[str, Drawer]:
    """Return drawers of the same things in outline, named so."""
    return {f"outlined {name}": partial(_trace, drawer=drawer) for name, drawer in drawers.items()}


def wear(pixels: np.ndarray, hardness: float, rng: np.random.Generator) -> np.ndarray:
    """Fade the ink and stain the paper."""
    stains = 14 * hardness * smooth_noise(rng, 3, 2, side=SMALL)[..., None]
    return 235 + (pixels - 235) * (1 - 0.6 * hardness) + stains + rng.normal(0, 3 + 7 * hardness, pixels.shape)
