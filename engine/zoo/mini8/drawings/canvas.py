"""Small drawing tools shared by all tasks: colours, polygons, smooth noise, silhouettes, shrinking."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SIDE = 64
SMALL = 32
INK = (20, 20, 20)
PAPER = (245, 245, 245)

Colour = tuple[int, int, int]
Point = tuple[float, float]
ROWS, COLUMNS = np.mgrid[0 : 1 : SIDE * 1j, 0 : 1 : SIDE * 1j]


def random_colour(rng: np.random.Generator) -> Colour:
    """Return a colour drawn uniformly."""
    red, green, blue = rng.integers(0, 256, 3).tolist()
    return red, green, blue


def contrasting_colour(rng: np.random.Generator, other: Colour, distance: int = 220) -> Colour:
    """Return a random colour whose brightness differs from `other` by more than `distance` (of 765)."""
    for _ in range(20):
        colour = random_colour(rng)
        if abs(sum(colour) - sum(other)) > distance:
            return colour
    return INK if sum(other) > 382 else PAPER


def vary(rng: np.random.Generator, colour: Iterable[float], spread: float = 12.0) -> Colour:
    """Return the colour with independent Gaussian noise of standard deviation `spread` on each channel."""
    red, green, blue = (int(np.clip(value + rng.normal(0, spread), 0, 255)) for value in colour)
    return red, green, blue


def blank(colour: Colour) -> Image.Image:
    """Return a canvas of one colour."""
    return Image.new("RGB", (SIDE, SIDE), colour)


def to_image(pixels: np.ndarray) -> Image.Image:
    """Return an image of real-valued pixels (height, width, 3), clipped to 0..255."""
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def blurred(pixels: np.ndarray, radius: float) -> np.ndarray:
    """Return pixels (height, width, 3) after a Gaussian blur."""
    return np.asarray(to_image(pixels).filter(ImageFilter.GaussianBlur(radius))).astype(np.float64)


def disc(pen: ImageDraw.ImageDraw, centre: Point, radius: float, colour: Colour) -> None:
    """Fill a circle."""
    x, y = centre
    pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=colour)


def regular_polygon(corners: int, phase: float = 0.0, inner: float | None = None) -> np.ndarray:
    """Return corners on the unit circle, shape (corners, 2); with `inner`, a star of (2 · corners, 2) points."""
    count = corners if inner is None else 2 * corners
    angle = phase + 2 * math.pi * np.arange(count) / count
    radius = np.where((np.arange(count) % 2 == 1) & (inner is not None), inner or 1.0, 1.0)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def place(points: Iterable[Point] | np.ndarray, scale: float, centre: Point, rotation: float = 0.0) -> list[Point]:
    """Scale, rotate (radians) and move points of shape (n, 2); returns what Pillow draws."""
    cosine, sine = math.cos(rotation), math.sin(rotation)
    turned = np.asarray(points, dtype=float) @ np.array([[cosine, sine], [-sine, cosine]])
    return [(float(x), float(y)) for x, y in turned * scale + np.array(centre)]


def smooth_noise(rng: np.random.Generator, cells: int, octaves: int = 3, side: int = SIDE) -> np.ndarray:
    """Return cloud-like noise of shape (side, side), standard deviation 1; `cells` is the coarsest grid."""
    total = np.zeros((side, side))
    for octave in range(octaves):
        grid = min(cells * 2**octave, side)
        coarse = Image.fromarray(rng.normal(0, 1, (grid, grid)).astype(np.float32))
        total += np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC)) / 2**octave
    return total / (total.std() + 1e-6)


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's bundled font, so that drawings do not depend on the fonts of a system."""
    return ImageFont.load_default(size)


def wobble(image: Image.Image, rng: np.random.Generator, strength: float) -> Image.Image:
    """Return a small random affine distortion about the centre; the border is continued, not blackened."""
    margin = SIDE // 4
    padded = Image.fromarray(np.pad(np.asarray(image), ((margin, margin), (margin, margin), (0, 0)), mode="edge"))
    matrix = np.eye(2) + rng.normal(0, strength, (2, 2))
    centre = np.full(2, SIDE / 2)
    # Pillow maps output to input coordinates; the margin shifts the input.
    offset = centre - matrix @ centre + margin
    coefficients = (*matrix[0], offset[0], *matrix[1], offset[1])
    return padded.transform((SIDE, SIDE), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)


def shrink(image: Image.Image) -> np.ndarray:
    """Average 2 × 2 pixels into floats of shape (32, 32, 3)."""
    return np.asarray(image.resize((SMALL, SMALL), Image.Resampling.BOX)).astype(np.float64)


class Silhouette:
    """A mask drawn in units in which the canvas reaches from about −1.2 to 1.2.

    Shade 255 takes the figure's colour, 0 the background's, values between mix the two.
    """

    def __init__(self, centre: Point = (32.0, 32.0), unit: float = 26.0) -> None:
        self.mask = Image.new("L", (SIDE, SIDE), 0)
        self.pen = ImageDraw.Draw(self.mask)
        self.centre, self.unit = centre, unit

    def polygon(self, *corners: Point, shade: int = 255) -> None:
        """Fill a polygon."""
        self.pen.polygon(place(corners, self.unit, self.centre), fill=shade)

    def box(self, left: float, top: float, right: float, bottom: float, shade: int = 255) -> None:
        """Fill an upright rectangle."""
        self.polygon((left, top), (right, top), (right, bottom), (left, bottom), shade=shade)

    def line(self, *points: Point, shade: int = 255, width: int = 2) -> None:
        """Draw connected lines, `width` in pixels."""
        self.pen.line(place(points, self.unit, self.centre), fill=shade, width=width)

    def circle(self, x: float, y: float, radius: float, shade: int = 160) -> None:
        """Fill a circle."""
        (left, top), (right, bottom) = place(
            [(x - radius, y - radius), (x + radius, y + radius)], self.unit, self.centre
        )
        self.pen.ellipse([left, top, right, bottom], fill=shade)

    def hoop(self, x: float, y: float, radius: float, width: int = 2) -> None:
        """Draw a circle's outline, `width` in pixels."""
        (left, top), (right, bottom) = place(
            [(x - radius, y - radius), (x + radius, y + radius)], self.unit, self.centre
        )
        self.pen.ellipse([left, top, right, bottom], outline=255, width=width)

    def paint(self, figure: Colour, background: Colour) -> Image.Image:
        """Return the coloured picture."""
        picture = blank(background)
        picture.paste(blank(figure), (0, 0), self.mask)
        return picture
