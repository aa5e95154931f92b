"""Coverage: the share of what is left after a correction inside a predicted spread, by level and by dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..report import Report
from .drawing import Drawing, compose, listed, number, plain
from .palette import MUTED, Theme, state_colour, state_dash, state_title


def coverage_figure(document: Mapping[str, Any], report: Report, tasks: Sequence[str], theme: Theme) -> Drawing:
    """Draw the percent of residuals inside the intervals that σ promises, a line a calibrator, mean over tasks.

    Args:
        document: by state and task, what the check left.
        report: gives titles.
        tasks: whose mean is shown.
        theme: ``light`` or ``dark``.
    """
    states, rows, lines = list(document), [], []
    for state in states:
        found = pd.DataFrame([document[state][task]["coverage"] for task in tasks if task in document[state]]).mean()
        levels = [float(level) for level in found.index]
        rows.append(pd.DataFrame({"state": state, "promised": levels, "covered": found.to_numpy()}))
        lines.append(
            go.Scatter(
                name=plain(state_title(state, report)),
                x=levels,
                y=found.tolist(),
                mode="lines+markers",
                line={"color": state_colour(state, theme), "dash": state_dash(state, states), "width": 2.2},
                hovertemplate="%{y:.1f} %",
            )
        )
    figure = compose(
        lines,
        theme,
        height=340,
        legend=True,
        hovermode="x unified",
        shapes=[_diagonal(0, 100, theme)],
        xaxis={"title": "Promised by σ (%)", "range": [0, 101]},
        yaxis={"title": "Residuals inside (%)", "range": [0, 101]},
    )
    table = pd.concat(rows, ignore_index=True)
    ends = [(state_title(row["state"], report), row["covered"]) for _, row in table[table["promised"] == 90].iterrows()]
    alt = f"Of the intervals that should hold 90 % of the residuals: {listed(ends)}. On the diagonal σ is right."
    return Drawing(figure, table, alt, "coverage")


def dimension_figure(
    document: Mapping[str, Any], report: Report, state: str, tasks: Sequence[str], theme: Theme
) -> Drawing:
    """Draw predicted σ and what is left, a point a dimension, root mean squares over images and tasks.

    Args:
        document: by state and task, what the check left.
        report: gives titles.
        state: one calibrator.
        tasks: over which squares are averaged.
        theme: ``light`` or ``dark``.
    """
    parts = [document[state][task]["dimensions"] for task in tasks if task in document[state]]
    sigma, residual = (
        np.sqrt(np.mean([np.square(part[name]) for part in parts], axis=0)) for name in ("sigma", "residual")
    )
    top = 1.05 * float(max(sigma.max(), residual.max()))
    points = go.Scatter(
        x=sigma.tolist(),
        y=residual.tolist(),
        mode="markers",
        text=[f"dimension {i}" for i in range(len(sigma))],
        marker={"color": state_colour(state, theme), "size": 6},
        opacity=0.7,
        hovertemplate="%{text}: σ %{x:.3f}, residual %{y:.3f}<extra></extra>",
    )
    figure = compose(
        [points],
        theme,
        height=340,
        shapes=[_diagonal(0, top, theme)],
        xaxis={"title": f"{plain(state_title(state, report))}: predicted σ", "range": [0, top]},
        yaxis={"title": "Residual (root mean square)", "range": [0, top]},
    )
    table = pd.DataFrame({"dimension": range(len(sigma)), "sigma": sigma, "residual": residual})
    wide = 100 * float(np.mean(sigma > residual))
    alt = (
        f"{state_title(state, report)}: over {len(sigma)} dimensions σ is {number(float(sigma.mean()), 3)} and the "
        f"residual {number(float(residual.mean()), 3)} on average; σ is the larger one in {number(wide, 0)} % of them."
    )
    return Drawing(figure, table, alt, f"sigma-by-dimension-{state}")


def _diagonal(low: float, high: float, theme: Theme) -> dict:
    line = {"color": MUTED[theme], "width": 1, "dash": "dot"}
    return {"type": "line", "x0": low, "y0": low, "x1": high, "y1": high, "line": line}
