"""Traffic signs that no expert knows, near those that one does; hard images are dark."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from PIL import ImageDraw

from .canvas import INK, PAPER, disc
from .signs import BLUE, CENTRE, RED, YELLOW, arrow, draw_sign, plate, speed_limit, text, wear

__all__ = ["DRAWERS", "wear"]

Pen = ImageDraw.ImageDraw


def _no_parking(pen: Pen, radius: float) -> None:
    disc(pen, CENTRE, radius, RED)
    disc(pen, CENTRE, radius * 0.78, BLUE)
    reach = radius * 0.62
    pen.line([32 - reach, 32 - reach, 32 + reach, 32 + reach], fill=RED, width=max(3, int(radius * 0.2)))


def _parking(pen: Pen, radius: float) -> None:
    plate(pen, 4, math.pi / 4, radius * 1.15, BLUE)
    text(pen, "P", radius * 1.2, PAPER)


def _closed_road(pen: Pen, radius: float) -> None:
    disc(pen, CENTRE, radius, RED)
    disc(pen, CENTRE, radius * 0.72, PAPER)


def _crossing(pen: Pen, radius: float) -> None:
    plate(pen, 3, -math.pi / 2, radius, RED)
    plate(pen, 3, -math.pi / 2, radius * 0.66, PAPER)
    text(pen, "x", radius * 0.75, INK)


def _road_works(pen: Pen, radius: float) -> None:
    plate(pen, 4, 0.0, radius, INK)
    plate(pen, 4, 0.0, radius * 0.84, YELLOW)


SIGNS: dict[str, Callable[[Pen, float], None]] = {
    "speed limit 20": partial(speed_limit, number="20"),
    "speed limit 60": partial(speed_limit, number="60"),
    "keep right": partial(arrow, direction=math.pi / 4),
    "keep left": partial(arrow, direction=3 * math.pi / 4),
    "no parking": _no_parking,
    "parking": _parking,
    "closed road": _closed_road,
    "crossing": _crossing,
    "road works": _road_works,
}
DRAWERS = {name: partial(draw_sign, sign=sign) for name, sign in SIGNS.items()}
