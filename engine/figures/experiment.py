"""An experiment as a figure: one dot a point with its spread over seeds, controls hollow."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from ..experiments import Experiment, ExperimentResult, Measure, PointResult
from ..rounding import rounded
from .drawing import Drawing, compose, number, plain, wrapped
from .palette import GRID, MUTED, Theme, state_colour

ROW, LINE = 27, 13  # px of a point, and of every further line of its label
MARGIN = 0.18  # room at both ends, for the numbers
BEHIND = "\u00a0" * 3  # what keeps a number off a dot without a line


def experiment_dots(spec: Experiment, result: ExperimentResult, measure: Measure, theme: Theme) -> Drawing:
    """Draw every point's mean of one measure; the line through it is ± one standard deviation over seeds."""
    shown = [point for point in result.points if measure.name in point.cells]
    means = [point.cells[measure.name].mean for point in shown]
    halves = [point.cells[measure.name].sd or 0.0 for point in shown]
    ends = [mean + half for mean, half in zip(means, halves, strict=True)]
    digits = _digits(means, measure)
    colours = [_colour(point, theme) for point in shown]
    labels = [wrapped(point.title, 34) for point in shown]
    row = ROW + LINE * max((label.count("<br>") for label in labels), default=0)
    dots = go.Scatter(
        x=means,
        y=labels,
        mode="markers",
        marker={
            "color": colours,
            "symbol": ["diamond-open" if point.control else "circle" for point in shown],
            "size": 11,
            "line": {"color": colours, "width": 2},
        },
        error_x={
            "array": [half or None for half in halves],
            "thickness": 1.4,
            "width": 4,
            "color": MUTED[theme],
        },
        cliponaxis=False,
        showlegend=False,
        hovertemplate="%{y}<br>%{x:,.4g} " + plain(measure.unit) + "<extra></extra>",
    )
    numbers = go.Scatter(
        x=ends,
        y=labels,
        mode="text",
        text=[BEHIND + rounded(value, digits, grouped=True) for value in means],
        textposition="middle right",
        textfont={"size": 12},
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )
    figure = compose(
        [dots, numbers],
        theme,
        height=64 + row * len(shown),
        xaxis={
            "title": plain(f"{measure.title} ({measure.unit})" if measure.unit else measure.title),
            "range": _range([*ends, *(mean - half for mean, half in zip(means, halves, strict=True))]),
        },
        yaxis={"autorange": "reversed", "gridcolor": GRID[theme]},
    )
    said = ", ".join(f"{point.title} {number(value, digits)}" for point, value in zip(shown, means, strict=True))
    alt = f"{measure.title} of {len(shown)} points: {said}"
    return Drawing(figure, experiment_frame(spec, result), alt, f"{spec.name}-{measure.name}")


def experiment_frame(spec: Experiment, result: ExperimentResult) -> pd.DataFrame:
    """Return one row a point: mean and spread of every measure."""
    rows = []
    for point in result.points:
        row: dict[str, object] = {"point": point.title, "control": point.control, "seeds": len(point.seeds)}
        for measure in spec.measures:
            cell = point.cells.get(measure.name)
            row[measure.title] = cell.mean if cell else None
            row[f"{measure.title} sd"] = cell.sd if cell else None
        rows.append(row)
    return pd.DataFrame(rows).dropna(axis=1, how="all")


def _digits(values: Sequence[float], measure: Measure) -> int:
    if measure.unit == "%":
        return 1
    return 0 if max(map(abs, values), default=0) >= 100 else 3


def _colour(point: PointResult, theme: Theme) -> str:
    return state_colour(point.state, theme)


def _range(values: Sequence[float]) -> list[float] | None:
    if not values:
        return None
    low, high = min(values), max(values)
    room = (high - low or abs(high) or 1.0) * MARGIN
    return [low - room / 2, high + room]
