"""Two-tone grey weaves and prints (no expert), near the textures; hard images are grainy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from .textures import coordinates, draw_pattern, fraction, polar, wear

__all__ = ["DRAWERS", "wear"]


def _waves(rng: np.random.Generator) -> np.ndarray:
    x, y, _ = coordinates(rng)
    return fraction(y + 0.25 * np.sin(2 * math.pi * x)) < 0.5


def _diamonds(rng: np.random.Generator) -> np.ndarray:
    x, y, _ = coordinates(rng)
    return np.abs(fraction(x) - 0.5) + np.abs(fraction(y) - 0.5) < 0.35


def _crosses(rng: np.random.Generator) -> np.ndarray:
    x, y, _ = coordinates(rng)
    across, down = np.abs(fraction(x) - 0.5), np.abs(fraction(y) - 0.5)
    return (np.minimum(across, down) < 0.12) & (np.maximum(across, down) < 0.38)


def _spiral(rng: np.random.Generator) -> np.ndarray:
    distance, angle = polar(rng)
    return fraction(distance * rng.uniform(4, 7) + angle / (2 * math.pi)) < 0.5


def _basket(rng: np.random.Generator) -> np.ndarray:
    x, y, _ = coordinates(rng)
    upright = (np.floor(0.6 * x) + np.floor(0.6 * y)) % 2 == 0
    return fraction(np.where(upright, x, y) * 1.8) < 0.5


def _dashed(rng: np.random.Generator) -> np.ndarray:
    x, y, _ = coordinates(rng)
    return (fraction(y) < 0.35) & (fraction(x + 0.5 * (np.floor(y) % 2)) < 0.6)


FABRICS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "waves": _waves,
    "diamonds": _diamonds,
    "crosses": _crosses,
    "spiral": _spiral,
    "basket weave": _basket,
    "dashed": _dashed,
}
DRAWERS = {name: partial(draw_pattern, pattern=pattern) for name, pattern in FABRICS.items()}
