"""Emoji faces (no expert); hard images are grey and grainy."""

from __future__ import annotations

from functools import partial

import numpy as np
from PIL import Image, ImageDraw

from .canvas import INK, Colour, blank, disc, random_colour

MOODS = ("happy", "sad", "surprised", "neutral", "angry", "winking")
SKIN: Colour = (245, 210, 80)
Pen = ImageDraw.ImageDraw


def _eyes(pen: Pen, x: float, y: float, radius: float, mood: str) -> None:
    for side in (-1, 1):
        eye = (x + side * radius * 0.38, y - radius * 0.25)
        size = radius * 0.13
        if mood == "winking" and side == 1:
            pen.line([(eye[0] - 2 * size, eye[1]), (eye[0] + 2 * size, eye[1])], fill=INK, width=3)
        else:
            disc(pen, eye, size, INK)
        if mood == "angry":
            inner = (eye[0] - side * radius * 0.2, eye[1] - radius * 0.12)
            outer = (eye[0] + side * radius * 0.25, eye[1] - radius * 0.38)
            pen.line([inner, outer], fill=INK, width=3)


def _mouth(pen: Pen, x: float, y: float, radius: float, mood: str) -> None:
    half = radius * 0.5
    if mood in ("happy", "winking"):
        pen.arc([x - half, y - radius * 0.2, x + half, y + radius * 0.6], 20, 160, fill=INK, width=3)
    elif mood in ("sad", "angry"):
        pen.arc([x - half, y + radius * 0.3, x + half, y + radius], 200, 340, fill=INK, width=3)
    elif mood == "surprised":
        pen.ellipse([x - radius * 0.2, y + radius * 0.2, x + radius * 0.2, y + radius * 0.65], fill=INK)
    else:
        pen.line([(x - radius * 0.4, y + radius * 0.45), (x + radius * 0.4, y + radius * 0.45)], fill=INK, width=3)


def _draw(rng: np.random.Generator, mood: str) -> Image.Image:
    picture = blank(random_colour(rng))
    pen = ImageDraw.Draw(picture)
    radius, (x, y) = rng.uniform(24, 29), rng.uniform(30, 34, 2).tolist()
    disc(pen, (x, y), radius, SKIN)
    _eyes(pen, x, y, radius, mood)
    _mouth(pen, x, y, radius, mood)
    return picture


DRAWERS = {f"{mood} face": partial(_draw, mood=mood) for mood in MOODS}


def wear(pixels: np.ndarray, hardness: float, rng: np.random.Generator) -> np.ndarray:
    """Darken and grey the picture and add grain."""
    grey = pixels.mean(axis=2, keepdims=True)
    faded = pixels * (1 - 0.6 * hardness) + (0.4 * grey + 20) * hardness
    return faded + rng.normal(0, 5 + 10 * hardness, pixels.shape)
