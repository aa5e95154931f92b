"""Charts and diagrams on a white page; hard images are on stained paper."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from .canvas import SMALL, Colour, blank, blurred, disc, smooth_noise

LINE: Colour = (60, 60, 60)
PALETTE: tuple[Colour, ...] = (
    (31, 119, 180),
    (255, 127, 14),
    (44, 160, 44),
    (214, 39, 40),
    (148, 103, 189),
    (140, 86, 75),
    (227, 119, 194),
    (23, 190, 207),
)


class Page(NamedTuple):
    """A page to draw on: pen, plotting area in pixels, shuffled colours and the paper's colour."""

    pen: ImageDraw.ImageDraw
    left: float
    top: float
    right: float
    bottom: float
    colours: list[Colour]
    paper: Colour

    @property
    def width(self) -> float:
        """Return the width of the plotting area."""
        return self.right - self.left

    @property
    def height(self) -> float:
        """Return the height of the plotting area."""
        return self.bottom - self.top

    def axes(self) -> None:
        """Draw the two axes."""
        self.pen.line([(self.left, self.top), (self.left, self.bottom), (self.right, self.bottom)], fill=LINE, width=2)


def _bar_chart(rng: np.random.Generator, page: Page) -> None:
    page.axes()
    count, one_colour = int(rng.integers(4, 7)), rng.random() < 0.5
    step = page.width / count
    for bar in range(count):
        left = page.left + (bar + 0.2) * step
        top = page.bottom - rng.uniform(0.2, 1) * page.height
        colour = page.colours[0 if one_colour else bar]
        page.pen.rectangle([left, top, left + 0.65 * step, page.bottom - 2], fill=colour)


def _curve(page: Page, values: np.ndarray) -> list[tuple[float, float]]:
    xs = np.linspace(page.left + 3, page.right - 1, len(values))
    return [(float(x), float(page.bottom - 3 - value * (page.height - 4))) for x, value in zip(xs, values, strict=True)]


def _line_chart(rng: np.random.Generator, page: Page) -> None:
    page.axes()
    for line in range(rng.integers(1, 3)):
        walk = np.cumsum(rng.normal(0, 0.3, rng.integers(5, 9))) + rng.uniform(0.3, 0.7)
        page.pen.line(_curve(page, np.clip(walk, 0.08, 0.95)), fill=page.colours[line], width=2)


def _area_chart(rng: np.random.Generator, page: Page) -> None:
    page.axes()
    curve = _curve(page, rng.uniform(0.35, 0.95, rng.integers(5, 9)))
    page.pen.polygon([(curve[0][0], page.bottom - 2), *curve, (curve[-1][0], page.bottom - 2)], fill=page.colours[0])


def _pie_chart(rng: np.random.Generator, page: Page, hole: bool = False) -> None:
    radius, centre = rng.uniform(21, 27), (rng.uniform(28, 36), rng.uniform(28, 36))
    shares = rng.dirichlet([4] * int(rng.integers(3, 6)))
    angles = np.cumsum([rng.uniform(0, 360), *(360 * shares)])
    x, y = centre
    for colour, start, end in zip(page.colours, angles[:-1], angles[1:], strict=False):
        page.pen.pieslice([x - radius, y - radius, x + radius, y + radius], start, end, fill=colour)
    if hole:
        disc(page.pen, centre, radius * rng.uniform(0.45, 0.6), page.paper)


def _scatter_plot(rng: np.random.Generator, page: Page) -> None:
    page.axes()
    xs = rng.uniform(0, 1, rng.integers(14, 30))
    slope = rng.choice([-0.7, 0.7])
    ys = np.clip(0.5 + slope * (xs - 0.5) + rng.normal(0, 0.17, len(xs)), 0, 1)
    for x, y in zip(xs, ys, strict=True):
        point = (page.left + 4 + x * (page.width - 6), page.bottom - 4 - y * (page.height - 6))
        disc(page.pen, point, 2, page.colours[0])


def _heat_map(rng: np.random.Generator, page: Page) -> None:
    count = int(rng.integers(5, 8))
    width, height = page.width / count, page.height / count
    for cell in range(count * count):
        left, top = page.left + cell % count * width, page.top + cell // count * height
        red, green, blue = (255 - (255 - np.array(page.colours[0])) * rng.random()).astype(int).tolist()
        page.pen.rectangle([left, top, left + width, top + height], fill=(red, green, blue))


def _box_plot(rng: np.random.Generator, page: Page) -> None:
    page.axes()
    count = int(rng.integers(2, 5))
    step = page.width / count
    for box in range(count):
        low, high = sorted(rng.uniform(0.15, 0.85, 2))
        top, bottom = page.bottom - max(high, low + 0.2) * page.height, page.bottom - low * page.height
        left, right = page.left + (box + 0.25) * step, page.left + (box + 0.85) * step
        middle, median = (left + right) / 2, (top + bottom) / 2
        page.pen.line([(middle, top - 8), (middle, bottom + 6)], fill=LINE, width=2)
        page.pen.rectangle([left, top, right, bottom], fill=page.paper, outline=page.colours[box], width=2)
        page.pen.line([(left, median), (right, median)], fill=page.colours[box], width=2)


def _tree_diagram(rng: np.random.Generator, page: Page) -> None:
    root = (32 + rng.uniform(-4, 4), page.top + 2)
    branches = int(rng.integers(2, 4))
    for branch in range(branches):
        knot = (page.left + 4 + (branch + 0.5) * (page.width - 8) / branches, 32 + rng.uniform(-3, 3))
        page.pen.line([root, knot], fill=LINE, width=2)
        leaves = int(rng.integers(1, 4))
        for leaf in range(leaves):
            end = (knot[0] + 7 * (leaf - (leaves - 1) / 2), page.bottom - 4)
            page.pen.line([knot, end], fill=LINE)
            disc(page.pen, end, 3, page.colours[2])
        disc(page.pen, knot, 4, page.colours[1])
    disc(page.pen, root, 5, page.colours[0])


def _table(rng: np.random.Generator, page: Page) -> None:
    rows, columns = int(rng.integers(4, 7)), int(rng.integers(2, 4))
    height, width = page.height / rows, page.width / columns
    page.pen.rectangle([page.left, page.top, page.right, page.top + height], fill=page.colours[0])
    for row in range(rows + 1):
        page.pen.line([(page.left, page.top + row * height), (page.right, page.top + row * height)], fill=LINE)
    for column in range(columns + 1):
        page.pen.line([(page.left + column * width, page.top), (page.left + column * width, page.bottom)], fill=LINE)
    for row in range(1, rows):
        for column in range(columns):
            x, y = page.left + column * width + 3, page.top + (row + 0.5) * height
            page.pen.line([(x, y), (x + rng.uniform(4, 10), y)], fill=(150, 150, 150), width=2)


CHARTS: dict[str, Callable[[np.random.Generator, Page], None]] = {
    "bar chart": _bar_chart,
    "line chart": _line_chart,
    "pie chart": _pie_chart,
    "scatter plot": _scatter_plot,
    "heat map": _heat_map,
    "box plot": _box_plot,
    "tree diagram": _tree_diagram,
    "table": _table,
    "area chart": _area_chart,
    "donut chart": partial(_pie_chart, hole=True),
}


def _draw(rng: np.random.Generator, chart: Callable[[np.random.Generator, Page], None]) -> Image.Image:
    light = int(rng.integers(235, 256))
    paper = (light, light, light)
    picture = blank(paper)
    left, top, right, bottom = rng.uniform([6, 6, 54, 52], [11, 12, 60, 58]).tolist()
    colours = [PALETTE[index] for index in rng.permutation(len(PALETTE))]
    chart(rng, Page(ImageDraw.Draw(picture), left, top, right, bottom, colours, paper))
    return picture


DRAWERS = {name: partial(_draw, chart=chart) for name, chart in CHARTS.items()}


def wear(pixels: np.ndarray, hardness: float, rng: np.random.Generator) -> np.ndarray:
    """Print softly on yellowed, blotchy paper."""
    stains = 12 * hardness * smooth_noise(rng, 3, 2, side=SMALL)[..., None]
    return blurred(pixels, hardness) - hardness * np.array([10, 25, 60]) + stains + rng.normal(0, 3, pixels.shape)
