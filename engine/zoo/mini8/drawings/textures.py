"""Two-tone grey patterns that fill the picture; hard images are grainy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image

from .canvas import COLUMNS, ROWS, SIDE, SMALL, smooth_noise, to_image

Coordinates = tuple[np.ndarray, np.ndarray, float]


def fraction(values: np.ndarray) -> np.ndarray:
    """Return what is behind the decimal point, in 0..1."""
    return values - np.floor(values)


def coordinates(rng: np.random.Generator) -> Coordinates:
    """Return slightly turned and shifted coordinates (64, 64) in pattern periods, and the number of periods."""
    periods, angle = rng.uniform(3, 6), rng.uniform(-0.2, 0.2)
    shift_x, shift_y = rng.uniform(0, 1, 2)
    x = COLUMNS * math.cos(angle) + ROWS * math.sin(angle) + shift_x
    y = -COLUMNS * math.sin(angle) + ROWS * math.cos(angle) + shift_y
    return x * periods, y * periods, periods


def polar(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the distance and angle (64, 64) from a point near the middle."""
    centre_x, centre_y = rng.uniform(0.3, 0.7, 2)
    return np.hypot(COLUMNS - centre_x, ROWS - centre_y), np.arctan2(ROWS - centre_y, COLUMNS - centre_x)


def _striped(rng: np.random.Generator) -> np.ndarray:
    x, _, _ = coordinates(rng)
    return fraction(x) < 0.5


def _dotted(rng: np.random.Generator) -> np.ndarray:
    x, y, _ = coordinates(rng)
    return np.hypot(fraction(x) - 0.5, fraction(y) - 0.5) < 0.3


def _checkered(rng: np.random.Generator) -> np.ndarray:
    x, y, _ = coordinates(rng)
    return (np.floor(x) + np.floor(y)) % 2 == 0


def _grid(rng: np.random.Generator) -> np.ndarray:
    x, y, _ = coordinates(rng)
    return (fraction(x) < 0.22) | (fraction(y) < 0.22)


def _zigzag(rng: np.random.Generator) -> np.ndarray:
    x, y, _ = coordinates(rng)
    return fraction(y + 1.4 * np.abs(fraction(x) - 0.5)) < 0.5


def _bricks(rng: np.random.Generator) -> np.ndarray:
    x, y, _ = coordinates(rng)
    row = np.floor(1.3 * y)
    return (fraction(1.3 * y) < 0.2) | (fraction(0.7 * x + 0.5 * (row % 2)) < 0.12)


def _speckled(rng: np.random.Generator) -> np.ndarray:
    grains = rng.random((SMALL, SMALL)) < rng.uniform(0.08, 0.2)
    return np.kron(grains, np.ones((2, 2), bool))


def _blotchy(rng: np.random.Generator) -> np.ndarray:
    return smooth_noise(rng, int(rng.integers(4, 7)), 1) > 0.3


def _rings(rng: np.random.Generator) -> np.ndarray:
    distance, _ = polar(rng)
    return fraction(distance * 1.3 * rng.uniform(3, 6)) < 0.5


def _rays(rng: np.random.Generator) -> np.ndarray:
    _, angle = polar(rng)
    return fraction(angle / (2 * math.pi) * int(1.7 * rng.uniform(3, 6))) < 0.5


PATTERNS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "striped": _striped,
    "dotted": _dotted,
    "checkered": _checkered,
    "grid": _grid,
    "zigzag": _zigzag,
    "bricks": _bricks,
    "speckled": _speckled,
    "blotchy": _blotchy,
    "rings": _rings,
    "rays": _rays,
}


def draw_pattern(rng: np.random.Generator, pattern: Callable[[np.random.Generator], np.ndarray]) -> Image.Image:
    """Return a pattern (64, 64) in two greys of a random contrast."""
    dark, contrast = rng.uniform(0, 105), rng.uniform(70, 150)
    tones = np.array([dark, dark + contrast])
    if rng.random() < 0.5:
        tones = tones[::-1]
    grey = tones[pattern(rng).astype(int)] + rng.normal(0, 5, (SIDE, SIDE))
    return to_image(np.repeat(grey[..., None], 3, axis=2))


DRAWERS = {name: partial(draw_pattern, pattern=pattern) for name, pattern in PATTERNS.items()}


def wear(pixels: np.ndarray, hardness: float, rng: np.random.Generator) -> np.ndarray:
    """Add grain."""
    return 20 + 0.8 * pixels + rng.normal(0, 5 + 35 * hardness, (SMALL, SMALL, 1))
