"""Silhouettes of vehicles from the side; hard images are faded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image

from .canvas import Silhouette, blurred, contrasting_colour, random_colour

WINDOW = 90


def _sedan(shape: Silhouette, lift: float) -> None:
    roof = -0.4 + lift
    shape.polygon((-1, 0), (-0.55, -0.05), (-0.35, roof), (0.3, roof), (0.55, -0.05), (1, 0), (1, 0.3), (-1, 0.3))
    shape.circle(-0.6, 0.3, 0.18)
    shape.circle(0.6, 0.3, 0.18)


def _pickup(shape: Silhouette, lift: float) -> None:
    cab = ((-0.1, -0.1), (-0.1, -0.5 + lift), (0.35, -0.5 + lift), (0.5, -0.1))
    shape.polygon((-1, -0.1), *cab, (1, -0.05), (1, 0.3), (-1, 0.3))
    shape.circle(-0.6, 0.3, 0.2)
    shape.circle(0.6, 0.3, 0.2)


def _bus(shape: Silhouette, lift: float) -> None:
    shape.box(-1, -0.55 + lift, 1, 0.35)
    for left in np.linspace(-0.85, 0.6, 5):
        shape.box(left, -0.4, left + 0.2, -0.1, shade=WINDOW)
    shape.circle(-0.6, 0.35, 0.15)
    shape.circle(0.6, 0.35, 0.15)


def _van(shape: Silhouette, lift: float) -> None:
    roof = -0.5 + lift
    shape.polygon((-1, roof), (0.4, roof), (0.75, -0.05), (1, 0), (1, 0.3), (-1, 0.3))
    shape.polygon((0.1, roof + 0.1), (0.36, roof + 0.1), (0.6, -0.08), (0.1, -0.08), shade=WINDOW)
    shape.circle(-0.6, 0.3, 0.17)
    shape.circle(0.6, 0.3, 0.17)


def _bicycle(shape: Silhouette, lift: float) -> None:
    back, front, pedals, saddle, fork = (
        (-0.55, 0.2),
        (0.55, 0.2),
        (-0.1, 0.2),
        (-0.25, -0.3 + lift),
        (0.35, -0.3 + lift),
    )
    shape.hoop(*back, 0.38)
    shape.hoop(*front, 0.38)
    shape.line(back, pedals, fork, saddle, pedals)
    shape.line(back, saddle)
    shape.line((0.3, -0.45 + lift), fork, front)


def _airplane(shape: Silhouette, lift: float) -> None:
    shape.polygon((-1, 0), (-0.8, -0.1), (0.8, -0.1), (1, 0.03), (0.8, 0.12), (-0.8, 0.1))
    shape.polygon((-0.1, 0), (-0.4, 0.7 + lift), (-0.15, 0.7 + lift), (0.3, 0))
    shape.polygon((-0.1, 0), (-0.35, -0.6), (-0.15, -0.6), (0.25, 0))
    shape.polygon((-1, 0), (-1.05, -0.4), (-0.9, -0.4), (-0.7, 0))


def _boat(shape: Silhouette, lift: float) -> None:
    shape.polygon((-1, 0.05), (1, 0.05), (0.65, 0.45), (-0.65, 0.45))
    shape.polygon((0, -0.9 + lift), (0.6, -0.05), (0, -0.05))
    shape.polygon((-0.05, -0.7), (-0.05, -0.05), (-0.5, -0.05))


def _train(shape: Silhouette, lift: float) -> None:
    cab = ((0.3, -0.3), (0.3, -0.6 + lift), (0.9, -0.6 + lift))
    shape.polygon((-1, -0.3), *cab, (0.9, 0.3), (-1, 0.3))
    shape.box(-0.8, -0.65, -0.6, -0.3)
    for x in (-0.75, -0.35, 0.05, 0.5):
        shape.circle(x, 0.33, 0.16)


def _motorcycle(shape: Silhouette, lift: float) -> None:
    shape.hoop(-0.6, 0.2, 0.34, width=4)
    shape.hoop(0.6, 0.2, 0.34, width=4)
    shape.polygon((-0.75, -0.3), (-0.1, -0.2), (0.3, -0.25 + lift), (0.35, 0.1), (0.0, 0.3), (-0.3, 0.1))
    shape.line((0.2, -0.5 + lift), (0.4, -0.5 + lift), (0.6, 0.2), width=3)


def _tractor(shape: Silhouette, lift: float) -> None:
    shape.circle(-0.45, 0.1, 0.42)
    shape.circle(0.6, 0.28, 0.22)
    shape.box(-0.2, -0.15, 0.8, 0.2)
    shape.box(-0.7, -0.75 + lift, -0.1, -0.1)


VEHICLES: dict[str, Callable[[Silhouette, float], None]] = {
    "sedan": _sedan,
    "pickup": _pickup,
    "bus": _bus,
    "van": _van,
    "bicycle": _bicycle,
    "airplane": _airplane,
    "boat": _boat,
    "train": _train,
    "motorcycle": _motorcycle,
    "tractor": _tractor,
}


def _draw(rng: np.random.Generator, vehicle: Callable[[Silhouette, float], None]) -> Image.Image:
    background = random_colour(rng)
    shape = Silhouette(centre=(32.0, 36.0))
    vehicle(shape, rng.uniform(-0.06, 0.06))
    shift = tuple(rng.uniform(-3, 3, 2).tolist())
    shape.mask = shape.mask.rotate(rng.uniform(-8, 8), Image.Resampling.BILINEAR, translate=shift)
    if rng.random() < 0.5:
        shape.mask = shape.mask.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return shape.paint(contrasting_colour(rng, background), background)


DRAWERS = {name: partial(_draw, vehicle=vehicle) for name, vehicle in VEHICLES.items()}


def wear(pixels: np.ndarray, hardness: float, rng: np.random.Generator) -> np.ndarray:
    """Fade colours, contrast and outlines."""
    soft = blurred(pixels, hardness)
    faded = soft * (1 - 0.4 * hardness) + 0.4 * hardness * soft.mean(axis=2, keepdims=True)
    return 128 + (faded - 128) * (1 - 0.7 * hardness) + rng.normal(0, 4, pixels.shape)
