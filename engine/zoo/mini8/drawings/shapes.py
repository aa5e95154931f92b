"""Flat geometric shapes (no expert); hard images lose contrast."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from PIL import Image, ImageDraw

from .canvas import blank, contrasting_colour, place, random_colour, regular_polygon


def _heart() -> np.ndarray:
    angle = np.linspace(0, 2 * math.pi, 24)
    height = 13 * np.cos(angle) - 5 * np.cos(2 * angle) - 2 * np.cos(3 * angle) - np.cos(4 * angle)
    return np.stack([16 * np.sin(angle) ** 3, -height], axis=1) / 17


def _crescent() -> np.ndarray:
    angle = np.linspace(-2.2, 2.2, 20) + math.pi
    outside = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    inside = outside[::-1] * np.array([0.55, 0.95]) + np.array([0.12, 0])
    return np.concatenate([outside, inside])


def _ring() -> np.ndarray:
    outside = regular_polygon(24)
    return np.concatenate([outside, outside[:1], 0.65 * outside[:1], 0.65 * outside[::-1]])


def _cross(arm: float = 0.33) -> np.ndarray:
    quarter = np.array([(-arm, -1), (arm, -1), (arm, -arm)])
    turn = np.array([[0, 1], [-1, 0]])
    return np.concatenate([quarter @ np.linalg.matrix_power(turn, times) for times in range(4)])


ARROW = np.array([(-1, -0.3), (0.1, -0.3), (0.1, -0.8), (1, 0), (0.1, 0.8), (0.1, 0.3), (-1, 0.3)])
BAR = np.array([(-1, -0.22), (1, -0.22), (1, 0.22), (-1, 0.22)])
OUTLINES = {
    "circle": regular_polygon(24),
    "square": regular_polygon(4, math.pi / 4),
    "triangle": regular_polygon(3, -math.pi / 2),
    "star": regular_polygon(5, -math.pi / 2, inner=0.42),
    "cross": _cross(),
    "ring": _ring(),
    "pentagon": regular_polygon(5, -math.pi / 2),
    "crescent": _crescent(),
    "heart": _heart(),
    "arrow": ARROW,
    "bar": BAR,
    "ellipse": regular_polygon(24) * np.array([1, 0.5]),
}


def _draw(rng: np.random.Generator, outline: np.ndarray) -> Image.Image:
    background = random_colour(rng)
    picture = blank(background)
    corners = place(outline, rng.uniform(16, 26), tuple(rng.uniform(28, 36, 2).tolist()), rng.uniform(-0.3, 0.3))
    ImageDraw.Draw(picture).polygon(corners, fill=contrasting_colour(rng, background))
    return picture


DRAWERS = {name: partial(_draw, outline=outline) for name, outline in OUTLINES.items()}


def wear(pixels: np.ndarray, hardness: float, rng: np.random.Generator) -> np.ndarray:
    """Lower the contrast and add grain."""
    return 128 + (pixels - 128) * (1 - 0.4 * hardness) + rng.normal(0, 5 + 15 * hardness, pixels.shape)
