"""Traffic signs on a plain background; hard images are dark."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image, ImageDraw

from .canvas import INK, PAPER, Colour, Point, blank, blurred, disc, font, place, random_colour, regular_polygon

RED: Colour = (200, 25, 35)
BLUE: Colour = (25, 70, 180)
YELLOW: Colour = (240, 190, 20)
ARROW = ((-1.0, -0.3), (0.1, -0.3), (0.1, -0.8), (1.0, 0.0), (0.1, 0.8), (0.1, 0.3), (-1.0, 0.3))
CENTRE: Point = (32.0, 32.0)
Pen = ImageDraw.ImageDraw


def text(pen: Pen, words: str, size: float, colour: Colour) -> None:
    """Write bold words into the middle; `size` in pixels."""
    pen.text(CENTRE, words, font=font(max(6, int(size))), fill=colour, anchor="mm", stroke_width=1, stroke_fill=colour)


def plate(pen: Pen, corners: int, phase: float, radius: float, colour: Colour) -> None:
    """Fill a regular polygon around the middle."""
    pen.polygon(place(regular_polygon(corners, phase), radius, CENTRE), fill=colour)


def _stop(pen: Pen, radius: float) -> None:
    plate(pen, 8, math.pi / 8, radius, RED)
    text(pen, "STOP", radius * 0.62, PAPER)


def _yield(pen: Pen, radius: float) -> None:
    plate(pen, 3, math.pi / 2, radius, RED)
    plate(pen, 3, math.pi / 2, radius * 0.6, PAPER)


def speed_limit(pen: Pen, radius: float, number: str) -> None:
    """Draw a round sign with a number."""
    disc(pen, CENTRE, radius, RED)
    disc(pen, CENTRE, radius * 0.76, PAPER)
    text(pen, number, radius * 1.0, INK)


def _no_entry(pen: Pen, radius: float) -> None:
    disc(pen, CENTRE, radius, RED)
    pen.rectangle([32 - radius * 0.65, 32 - radius * 0.18, 32 + radius * 0.65, 32 + radius * 0.18], fill=PAPER)


def arrow(pen: Pen, radius: float, direction: float) -> None:
    """Draw a blue sign with an arrow, turned clockwise by `direction` (radians)."""
    disc(pen, CENTRE, radius, BLUE)
    pen.polygon(place(ARROW, radius * 0.65, CENTRE, direction), fill=PAPER)


def _priority_road(pen: Pen, radius: float) -> None:
    plate(pen, 4, 0.0, radius, PAPER)
    plate(pen, 4, 0.0, radius * 0.72, YELLOW)


def _danger(pen: Pen, radius: float) -> None:
    plate(pen, 3, -math.pi / 2, radius, RED)
    plate(pen, 3, -math.pi / 2, radius * 0.66, PAPER)
    text(pen, "!", radius * 0.75, INK)


def _roundabout(pen: Pen, radius: float) -> None:
    disc(pen, CENTRE, radius, BLUE)
    reach = radius * 0.55
    pen.arc([32 - reach, 32 - reach, 32 + reach, 32 + reach], 20, 320, fill=PAPER, width=max(2, int(radius * 0.2)))


SIGNS: dict[str, Callable[[Pen, float], None]] = {
    "stop": _stop,
    "yield": _yield,
    "speed limit 30": partial(speed_limit, number="30"),
    "speed limit 50": partial(speed_limit, number="50"),
    "speed limit 80": partial(speed_limit, number="80"),
    "no entry": _no_entry,
    "turn left": partial(arrow, direction=math.pi),
    "turn right": partial(arrow, direction=0.0),
    "ahead only": partial(arrow, direction=-math.pi / 2),
    "priority road": _priority_road,
    "danger": _danger,
    "roundabout": _roundabout,
}


def draw_sign(rng: np.random.Generator, sign: Callable[[Pen, float], None]) -> Image.Image:
    """Return a sign of random size on a plain background."""
    picture = blank(random_colour(rng))
    sign(ImageDraw.Draw(picture), rng.uniform(25, 29))
    return picture


DRAWERS = {name: partial(draw_sign, sign=sign) for name, sign in SIGNS.items()}


def wear(pixels: np.ndarray, hardness: float, rng: np.random.Generator) -> np.ndarray:
    """Turn the picture to dusk: it loses up to 75 % of its light and is blurred."""
    return blurred(pixels, hardness) * (1 - 0.75 * hardness) + rng.normal(0, 4, pixels.shape)


def fog(pixels: np.ndarray, hardness: float, rng: np.random.Generator) -> np.ndarray:
    """Hide the picture behind fog instead: at least a third of its contrast is gone, at most three quarters."""
    left = 0.65 - 0.4 * hardness
    return blurred(pixels, 0.5 + hardness) * left + (1 - left) * 215 + rng.normal(0, 4, pixels.shape)
