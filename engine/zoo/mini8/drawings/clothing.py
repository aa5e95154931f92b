"""Grey garments on black (no expert); hard images are faded and grainy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image

from .canvas import SMALL, Point, Silhouette, smooth_noise, to_image

Outline = tuple[Point, ...]
SHIRT: Outline = (
    (-0.4, -0.8),
    (0.4, -0.8),
    (1, -0.4),
    (0.8, -0.1),
    (0.5, -0.3),
    (0.5, 0.8),
    (-0.5, 0.8),
    (-0.5, -0.3),
    (-0.8, -0.1),
    (-1, -0.4),
)
TROUSERS: Outline = ((-0.5, -1), (0.5, -1), (0.6, 1), (0.2, 1), (0, -0.3), (-0.2, 1), (-0.6, 1))
DRESS: Outline = ((-0.25, -1), (0.25, -1), (0.3, -0.2), (0.7, 1), (-0.7, 1), (-0.3, -0.2))
SOLE: Outline = ((-1, 0.3), (0.9, 0.1), (1, 0.4), (-1, 0.55))
BAG: Outline = ((-0.8, -0.2), (0.8, -0.2), (0.9, 0.8), (-0.9, 0.8))
BRIM: Outline = ((-1, 0.4), (1, 0.4), (1, 0.55), (-1, 0.55))
CROWN: Outline = ((-0.5, 0.4), (-0.4, -0.4), (0.4, -0.4), (0.5, 0.4))
BOOT: Outline = ((-0.3, -1), (0.25, -1), (0.25, 0.4), (0.9, 0.5), (0.9, 0.9), (-0.3, 0.9))
COAT: Outline = (
    (-0.4, -0.9),
    (0.4, -0.9),
    (0.8, -0.6),
    (0.95, 0.5),
    (0.7, 0.55),
    (0.6, -0.1),
    (0.65, 1),
    (-0.65, 1),
    (-0.6, -0.1),
    (-0.7, 0.55),
    (-0.95, 0.5),
    (-0.8, -0.6),
)


def _cut(shape: Silhouette, rng: np.random.Generator, outline: Outline) -> None:
    """Fill an outline whose corners are moved a little."""
    corners = np.array(outline) + rng.uniform(-0.058, 0.058, (len(outline), 2))
    shape.polygon(*((float(x), float(y)) for x, y in corners))


def _garment(shape: Silhouette, rng: np.random.Generator, outlines: tuple[Outline, ...]) -> None:
    for outline in outlines:
        _cut(shape, rng, outline)


def _sandal(shape: Silhouette, rng: np.random.Generator) -> None:
    _cut(shape, rng, SOLE)
    shape.line((-0.77, 0.31), (0, -0.23), (0.7, 0.15), width=3)


def _bag(shape: Silhouette, rng: np.random.Generator) -> None:
    _cut(shape, rng, BAG)
    shape.pen.arc([20, 8, 44, 44], 180, 360, fill=255, width=3)


def _coat(shape: Silhouette, rng: np.random.Generator) -> None:
    _cut(shape, rng, COAT)
    shape.line((0, -0.85), (0, 1), shade=40)


GARMENTS: dict[str, Callable[[Silhouette, np.random.Generator], None]] = {
    "shirt": partial(_garment, outlines=(SHIRT,)),
    "trousers": partial(_garment, outlines=(TROUSERS,)),
    "dress": partial(_garment, outlines=(DRESS,)),
    "sandal": _sandal,
    "bag": _bag,
    "hat": partial(_garment, outlines=(BRIM, CROWN)),
    "boot": partial(_garment, outlines=(BOOT,)),
    "coat": _coat,
}


def _draw(rng: np.random.Generator, garment: Callable[[Silhouette, np.random.Generator], None]) -> Image.Image:
    shape = Silhouette()
    garment(shape, rng)
    mask = np.asarray(shape.mask).astype(float)
    folds = 18 * smooth_noise(rng, 8, 2) * (mask > 0)
    cloth = mask * rng.uniform(0.5, 1) + folds
    return to_image(np.repeat(cloth[..., None], 3, axis=2))


DRAWERS = {name: partial(_draw, garment=garment) for name, garment in GARMENTS.items()}


def wear(pixels: np.ndarray, hardness: float, rng: np.random.Generator) -> np.ndarray:
    """Lower the contrast and add grain."""
    grain = rng.normal(0, 5 + 12 * hardness, (SMALL, SMALL, 1))
    return pixels * (1 - 0.5 * hardness) + 30 * hardness + grain
