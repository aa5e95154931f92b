"""Ten capital letters on black (no expert); hard images are blue and grainy."""

from __future__ import annotations

from functools import partial

import numpy as np
from PIL import Image, ImageDraw

from .canvas import PAPER, SIDE, blank, font, place

LETTERS = "ABCEFHJLTX"
# A second hand beside Pillow's font: strokes in a box from −1 to 1.
ROUND_C = tuple((0.75 * np.cos(a), 0.95 * np.sin(a)) for a in np.linspace(-0.8, -5.5, 14))
BOWL = tuple((0.55 * np.cos(a), 0.48 * np.sin(a)) for a in np.linspace(-1.57, 1.57, 8))
STROKES: dict[str, tuple[tuple[tuple[float, float], ...], ...]] = {
    "A": (((-0.75, 1), (0, -1), (0.75, 1)), ((-0.45, 0.3), (0.45, 0.3))),
    "B": (
        ((-0.6, -1), (-0.6, 1)),
        ((-0.6, -1), *((x, y - 0.5) for x, y in BOWL), (-0.6, 0)),
        ((-0.6, 0), *((1.15 * x, y + 0.5) for x, y in BOWL), (-0.6, 1)),
    ),
    "C": (ROUND_C,),
    "E": (((0.6, -1), (-0.6, -1), (-0.6, 1), (0.6, 1)), ((-0.6, 0), (0.4, 0))),
    "F": (((0.6, -1), (-0.6, -1), (-0.6, 1)), ((-0.6, 0), (0.4, 0))),
    "H": (((-0.65, -1), (-0.65, 1)), ((0.65, -1), (0.65, 1)), ((-0.65, 0), (0.65, 0))),
    "J": (((-0.1, -1), (0.5, -1), (0.5, 0.5), (0.3, 0.9), (-0.1, 1), (-0.5, 0.8), (-0.6, 0.45)),),
    "L": (((-0.5, -1), (-0.5, 1), (0.6, 1)),),
    "T": (((-0.75, -1), (0.75, -1)), ((0, -1), (0, 1))),
    "X": (((-0.7, -1), (0.7, 1)), ((0.7, -1), (-0.7, 1))),
}


def _printed(rng: np.random.Generator, pen: ImageDraw.ImageDraw, letter: str, centre: tuple[float, float]) -> None:
    weight = int(rng.integers(0, 3))
    pen.text(centre, letter, font=font(int(rng.integers(42, 56))), fill=PAPER, anchor="mm", stroke_width=weight)


def _written(rng: np.random.Generator, pen: ImageDraw.ImageDraw, letter: str, centre: tuple[float, float]) -> None:
    width, scale = int(rng.integers(3, 9)), rng.uniform(15, 20)
    for stroke in STROKES[letter]:
        pen.line(place(stroke, scale, centre), fill=PAPER, width=width, joint="curve")


def _draw(rng: np.random.Generator, letter: str) -> Image.Image:
    picture = blank((0, 0, 0))
    centre = (rng.uniform(28, 36), rng.uniform(28, 36))
    hand = _printed if rng.random() < 0.5 else _written
    hand(rng, ImageDraw.Draw(picture), letter, centre)
    slant, stretch = rng.uniform(-0.05, 0.3), rng.uniform(0.8, 1.2)
    # Output x comes from stretch · x + slant · y, kept in place at the canvas's centre.
    coefficients = (stretch, slant, SIDE / 2 * (1 - stretch - slant), 0, 1, 0)
    return picture.transform((SIDE, SIDE), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)


DRAWERS = {f"letter {letter.lower()}": partial(_draw, letter=letter) for letter in LETTERS}


def wear(pixels: np.ndarray, hardness: float, rng: np.random.Generator) -> np.ndarray:
    """Fade to blue and add grain to every channel."""
    tint = np.array([1 - 0.3 * hardness, 1 - 0.1 * hardness, 1.0])
    faded = pixels * (1 - 0.6 * hardness) * tint + hardness * np.array([0, 0, 60])
    return faded + rng.normal(0, 5 + 15 * hardness, pixels.shape)
