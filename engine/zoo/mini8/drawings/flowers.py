"""Flowers, told apart by petals and colours; hard images are blurred and green."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image, ImageDraw

from .canvas import Colour, Point, blank, blurred, contrasting_colour, disc, place, regular_polygon, vary

STEM: Colour = (50, 130, 55)


class Bloom:
    """One flower being drawn: pen, petal and heart colours, centre, radius and a random turn."""

    def __init__(self, rng: np.random.Generator, petal: Colour, heart: Colour) -> None:
        self.rng = rng
        self.petal, self.heart = vary(rng, petal, 15), vary(rng, heart, 15)
        self.picture = blank(contrasting_colour(rng, self.petal, 120))
        self.pen = ImageDraw.Draw(self.picture)
        self.centre: Point = (rng.uniform(28, 36), rng.uniform(28, 36))
        self.radius = rng.uniform(21, 27)
        self.turn = rng.uniform(0, 2 * math.pi)

    def petals(self, count: int, width: float, turn: float | None = None, reach: float = 1.0) -> None:
        """Draw oval petals around the centre; `width` relative to their length."""
        oval = regular_polygon(14) * np.array([0.5, width / 2]) + np.array([0.5, 0])
        first = self.turn if turn is None else turn
        for petal in range(count):
            angle = first + 2 * math.pi * petal / count
            self.pen.polygon(place(oval, self.radius * reach, self.centre, angle), fill=self.petal)

    def middle(self, size: float, colour: Colour | None = None) -> None:
        """Draw the heart, `size` relative to the flower's radius."""
        disc(self.pen, self.centre, self.radius * size, colour or self.heart)

    def stem(self) -> None:
        """Draw a stem down to the lower edge."""
        x, y = self.centre
        self.pen.line([(x, y), (x + self.rng.uniform(-3, 3), 66)], fill=vary(self.rng, STEM), width=4)


def _daisy(bloom: Bloom) -> None:
    bloom.petals(9, 0.42)
    bloom.middle(0.3)


def _tulip(bloom: Bloom) -> None:
    bloom.stem()
    cup = (
        (-0.6, -0.8),
        (-0.3, -0.3),
        (0, -0.9),
        (0.3, -0.3),
        (0.6, -0.8),
        (0.65, 0.1),
        (0.3, 0.5),
        (-0.3, 0.5),
        (-0.65, 0.1),
    )
    bloom.pen.polygon(place(cup, bloom.radius, bloom.centre), fill=bloom.petal)


def _sunflower(bloom: Bloom) -> None:
    bloom.petals(14, 0.28)
    bloom.middle(0.5)


def _rose(bloom: Bloom) -> None:
    bloom.petals(5, 0.95, reach=0.95)
    for size, colour in ((0.62, bloom.heart), (0.48, bloom.petal), (0.34, bloom.heart), (0.2, bloom.petal)):
        bloom.middle(size, colour)


def _iris(bloom: Bloom) -> None:
    tilt = bloom.rng.uniform(-0.3, 0.3)
    bloom.petals(3, 0.5, turn=math.pi / 2 + tilt)
    bloom.petals(3, 0.4, turn=-math.pi / 2 + tilt, reach=0.8)
    bloom.middle(0.14)


def _poppy(bloom: Bloom) -> None:
    bloom.petals(4, 0.95)
    bloom.middle(0.32)


def _clover(bloom: Bloom) -> None:
    bloom.stem()
    bloom.petals(3, 0.85, turn=-math.pi / 2 + bloom.rng.uniform(-0.3, 0.3), reach=0.95)
    bloom.middle(0.1)


def _lily(bloom: Bloom) -> None:
    leaf = ((0.0, 0.0), (0.45, -0.22), (1.0, 0.0), (0.45, 0.22))
    for petal in range(6):
        angle = bloom.turn + math.pi * petal / 3
        bloom.pen.polygon(place(leaf, bloom.radius, bloom.centre, angle), fill=bloom.petal)
    bloom.middle(0.16)


FLOWERS: dict[str, tuple[Colour, Colour, Callable[[Bloom], None]]] = {
    "daisy": ((245, 245, 245), (240, 200, 40), _daisy),
    "tulip": ((230, 60, 110), (240, 220, 60), _tulip),
    "sunflower": ((245, 200, 30), (90, 55, 25), _sunflower),
    "rose": ((190, 20, 50), (120, 5, 30), _rose),
    "iris": ((110, 70, 190), (245, 210, 60), _iris),
    "poppy": ((230, 60, 30), (25, 20, 25), _poppy),
    "clover": ((70, 160, 70), (50, 130, 55), _clover),
    "lily": ((250, 210, 225), (220, 160, 60), _lily),
}


def _draw(rng: np.random.Generator, flower: str) -> Image.Image:
    petal, heart, shape = FLOWERS[flower]
    bloom = Bloom(rng, petal, heart)
    shape(bloom)
    return bloom.picture


DRAWERS = {name: partial(_draw, flower=name) for name in FLOWERS}


def wear(pixels: np.ndarray, hardness: float, rng: np.random.Generator) -> np.ndarray:
    """Blur the picture and give it a green cast."""
    soft = blurred(pixels, 1.4 * hardness)
    return soft * (1 - 0.3 * hardness) + hardness * np.array([0, 45, 0]) + rng.normal(0, 3, pixels.shape)
