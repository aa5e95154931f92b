"""Land seen from above; hard images are hazy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from PIL import Image, ImageDraw

from .canvas import COLUMNS, ROWS, smooth_noise, to_image

WATER = np.array((45, 70, 105))
ASPHALT = np.array((170, 170, 170))


@dataclass
class Ground:
    """The ground of a drawing: pixels (64, 64, 3) to change in place, and coordinates (64, 64) along and across."""

    pixels: np.ndarray
    along: np.ndarray
    across: np.ndarray
    offset: float
    relief: np.ndarray


def _forest(rng: np.random.Generator, ground: Ground) -> None:
    ground.pixels += 15 * smooth_noise(rng, 16, 2)[..., None]


def _river(rng: np.random.Generator, ground: Ground) -> None:
    bends = 0.1 * np.sin(ground.across * rng.uniform(4, 8))
    ground.pixels[np.abs(ground.along - ground.offset - bends) < rng.uniform(0.05, 0.1)] = WATER


def _highway(rng: np.random.Generator, ground: Ground) -> None:
    ground.pixels[np.abs(ground.along - ground.offset) < rng.uniform(0.04, 0.07)] = ASPHALT
    if rng.random() < 0.5:
        ground.pixels[np.abs(ground.across - ground.offset) < 0.04] = ASPHALT


def _houses(rng: np.random.Generator, ground: Ground, count: tuple[int, int], size: tuple[float, float]) -> None:
    picture = to_image(ground.pixels)
    pen = ImageDraw.Draw(picture)
    for _ in range(rng.integers(*count)):
        left, top = rng.uniform(0, 60, 2)
        width, height = rng.uniform(*size, 2)
        light, warmth = int(rng.integers(150, 240)), int(rng.integers(0, 60))
        pen.rectangle([left, top, left + width, top + height], fill=(light, light - warmth, light - warmth))
    ground.pixels[:] = np.asarray(picture)


def _cropland(rng: np.random.Generator, ground: Ground) -> None:
    fields = np.floor(ground.along * rng.uniform(2, 4) + ground.offset) * 3
    fields = fields + np.floor(ground.across * rng.uniform(2, 4))
    ground.pixels += np.sin(fields * 2.3 + ground.offset * 20)[..., None] * np.array([38, 30, 15])


def _orchard(rng: np.random.Generator, ground: Ground) -> None:
    waves = 2 * math.pi * rng.uniform(6, 9)
    trees = np.sin(ground.along * waves) * np.sin(ground.across * waves) > 0.15
    ground.pixels -= trees[..., None] * np.array([60, 35, 32])


def _desert(rng: np.random.Generator, ground: Ground) -> None:
    ground.pixels += 11 * np.sin((ground.along + 0.05 * ground.relief) * rng.uniform(25, 45))[..., None]


def _plain(rng: np.random.Generator, ground: Ground) -> None:
    """Pasture and lakes are only their colour and relief."""


LAND = {
    "forest": ((35, 75, 40), _forest),
    "river": ((95, 120, 70), _river),
    "highway": ((110, 120, 85), _highway),
    "residential": ((130, 120, 110), partial(_houses, count=(25, 40), size=(2, 5))),
    "industrial": ((140, 135, 135), partial(_houses, count=(4, 9), size=(8, 17))),
    "cropland": ((150, 140, 80), _cropland),
    "orchard": ((125, 120, 75), _orchard),
    "pasture": ((115, 145, 75), _plain),
    "lake": ((35, 60, 100), _plain),
    "desert": ((190, 165, 120), _desert),
}


def _draw(rng: np.random.Generator, cover: str) -> Image.Image:
    colour, details = LAND[cover]
    relief = smooth_noise(rng, 4, 4)
    angle, offset = rng.uniform(0, math.pi), rng.uniform(-0.2, 0.2)
    cosine, sine = math.cos(angle), math.sin(angle)
    x, y = COLUMNS - 0.5, ROWS - 0.5
    pixels = np.array(colour) + rng.normal(0, 8, 3) + 9 * relief[..., None]
    details(rng, Ground(pixels, x * cosine + y * sine, y * cosine - x * sine, offset, relief))
    return to_image(pixels)


DRAWERS = {name: partial(_draw, cover=name) for name in LAND}


def wear(pixels: np.ndarray, hardness: float, rng: np.random.Generator) -> np.ndarray:
    """Cover up to 70 % with a bluish haze."""
    haze = 0.7 * hardness * np.array([150, 165, 185])
    return pixels * (1 - 0.7 * hardness) + haze + rng.normal(0, 3, pixels.shape)
