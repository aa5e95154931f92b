"""Places with a horizon; hard images have a warm colour cast."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image, ImageDraw

from .canvas import SIDE, Colour, blank, disc, vary

Pen = ImageDraw.ImageDraw
Scene = Callable[[np.random.Generator, Pen, float], None]


def _below(pen: Pen, top: float, colour: Colour) -> None:
    pen.rectangle([0, top, SIDE, SIDE], fill=colour)


def _beach(rng: np.random.Generator, pen: Pen, horizon: float) -> None:
    _below(pen, horizon, vary(rng, (40, 110, 160)))
    _below(pen, horizon + (SIDE - horizon) * rng.uniform(0.3, 0.6), vary(rng, (225, 205, 150)))


def _mountain(rng: np.random.Generator, pen: Pen, horizon: float) -> None:
    foot = horizon + 8
    for _ in range(3):
        x, half, top = rng.uniform(0, 64), rng.uniform(18, 34), rng.uniform(4, horizon * 0.6)
        pen.polygon([(x - half, foot), (x, top), (x + half, foot)], fill=vary(rng, (110, 110, 120)))
        snow = top + 0.25 * (foot - top)
        pen.polygon([(x - 0.25 * half, snow), (x, top), (x + 0.25 * half, snow)], fill=(245, 245, 245))
    _below(pen, foot, vary(rng, (80, 120, 70)))


def _skyline(rng: np.random.Generator, pen: Pen, horizon: float) -> None:
    left = 0.0
    while left < SIDE:
        width = rng.uniform(6, 14)
        pen.rectangle([left, rng.uniform(8, horizon + 5), left + width, SIDE], fill=vary(rng, (95, 95, 110), 25))
        left += width


def _dunes(rng: np.random.Generator, pen: Pen, horizon: float) -> None:
    _below(pen, horizon, vary(rng, (215, 170, 100)))
    left, right = rng.uniform(-40, 0), rng.uniform(40, 60)
    pen.ellipse([left, horizon - 6, right, horizon + 50], fill=vary(rng, (195, 150, 85)))


def _forest_path(rng: np.random.Generator, pen: Pen, horizon: float) -> None:
    _below(pen, 0, vary(rng, (50, 85, 45)))
    for _ in range(rng.integers(5, 10)):
        x, width, foot = rng.uniform(0, 64), rng.uniform(2, 5), rng.uniform(40, 60)
        pen.rectangle([x, 0, x + width, foot], fill=vary(rng, (70, 50, 35)))
    middle = rng.uniform(24, 40)
    pen.polygon(
        [(middle - 3, 44), (middle + 3, 44), (middle + 16, 64), (middle - 16, 64)], fill=vary(rng, (150, 125, 85))
    )


def _road(rng: np.random.Generator, pen: Pen, horizon: float) -> None:
    _below(pen, horizon, vary(rng, (95, 125, 75)))
    middle, left, right = rng.uniform(24, 40), rng.uniform(18, 30), rng.uniform(18, 30)
    corners = [(middle - 2, horizon), (middle + 2, horizon), (middle + right, SIDE), (middle - left, SIDE)]
    pen.polygon(corners, fill=vary(rng, (80, 80, 85)))
    pen.line([(middle, horizon), (middle, SIDE)], fill=(235, 235, 200), width=1)


def _field(rng: np.random.Generator, pen: Pen, horizon: float) -> None:
    _below(pen, horizon, vary(rng, (120, 165, 60)))
    for _ in range(8):
        furrow = [(32 + rng.uniform(-4, 4), horizon), (rng.uniform(-30, 94), SIDE)]
        pen.line(furrow, fill=vary(rng, (95, 140, 50)))


def _sunset(rng: np.random.Generator, pen: Pen, horizon: float) -> None:
    high, low = np.array(vary(rng, (80, 50, 110))), np.array(vary(rng, (250, 140, 60)))
    for y in range(int(horizon) + 1):
        red, green, blue = (high + (low - high) * y / horizon).astype(int).tolist()
        pen.line([(0, y), (SIDE, y)], fill=(red, green, blue))
    disc(pen, (rng.uniform(15, 49), horizon - 1), 8, (255, 220, 120))
    _below(pen, horizon, vary(rng, (45, 40, 55)))


def _night_sky(rng: np.random.Generator, pen: Pen, horizon: float) -> None:
    _below(pen, 0, vary(rng, (15, 18, 45), 8))
    for _ in range(25):
        x, y = rng.uniform(0, SIDE, 2)
        pen.rectangle([x, y, x + 1, y + 1], fill=(240, 240, 220))
    _below(pen, horizon + 12, vary(rng, (10, 12, 18), 6))


def _bedroom(rng: np.random.Generator, pen: Pen, horizon: float) -> None:
    _below(pen, 0, vary(rng, (200, 185, 165)))
    _below(pen, horizon, vary(rng, (150, 110, 75)))
    bed, window = rng.uniform(4, 20), rng.uniform(30, 44)
    pen.rectangle([bed, horizon - 4, bed + 36, horizon + 14], fill=vary(rng, (170, 60, 70), 45))
    pen.rectangle([bed, horizon - 14, bed + 4, horizon + 16], fill=vary(rng, (90, 60, 40)))
    pen.rectangle([window, 6, window + 14, 18], fill=vary(rng, (180, 215, 240)))


SCENES: dict[str, Scene] = {
    "beach": _beach,
    "mountain": _mountain,
    "skyline": _skyline,
    "desert dunes": _dunes,
    "forest path": _forest_path,
    "road": _road,
    "field": _field,
    "sunset": _sunset,
    "night sky": _night_sky,
    "bedroom": _bedroom,
}


def _draw(rng: np.random.Generator, scene: Scene) -> Image.Image:
    sky = (150, 195, 235) if rng.random() < 0.7 else (190, 195, 200)
    picture = blank(vary(rng, sky))
    scene(rng, ImageDraw.Draw(picture), SIDE * rng.uniform(0.45, 0.6))
    return picture


DRAWERS = {name: partial(_draw, scene=scene) for name, scene in SCENES.items()}


def wear(pixels: np.ndarray, hardness: float, rng: np.random.Generator) -> np.ndarray:
    """Warm the light: blue fades most."""
    cast = pixels * (1 - hardness * np.array([0.05, 0.25, 0.5])) + hardness * np.array([25, 5, 0])
    return cast + rng.normal(0, 3, pixels.shape)
