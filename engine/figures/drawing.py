"""What a figure is here: the Plotly figure, the table behind it, and what it says in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ..report import Report
from .palette import GRID, INK, MUTED, SURFACE, Theme

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
CLEAR = "rgba(0,0,0,0)"


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure and what goes with it.

    ``table`` holds the numbers that are drawn, one row a mark or as a matrix; ``alt`` says what the figure shows to
    people who do not see it; ``name`` is the stem of downloaded files.
    """

    figure: go.Figure
    table: pd.DataFrame
    alt: str
    name: str


def plain(text: object) -> str:
    """Text that Plotly shows as it is: it would read angle brackets as markup and ``%{…}`` as a template."""
    escaped = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("%{", "%&#8203;{")


def dress(figure: go.Figure, theme: Theme, *, height: int, legend: bool = False, **layout: Any) -> go.Figure:
    """Give a figure the look of all figures: transparent, the theme's ink, room for every label.

    Args:
        figure: changed in place.
        theme: ``light`` or ``dark``.
        height: px.
        legend: whether to show one, in a row above the plot.
        layout: further fields of the layout.
    """
    axis = {
        "gridcolor": GRID[theme],
        "zerolinecolor": GRID[theme],
        "linecolor": GRID[theme],
        "automargin": True,
        "ticks": "",
        "title": {"standoff": 8, "font": {"size": 12.5, "color": MUTED[theme]}},
    }
    figure.update_layout(
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        height=height,
        margin={"l": 8, "r": 12, "t": 36 if legend else 12, "b": 8},
        font={"family": FONT, "size": 13, "color": INK[theme]},
        hoverlabel={"bgcolor": SURFACE[theme], "bordercolor": GRID[theme], "font": {"color": INK[theme], "size": 13}},
        showlegend=legend,
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "bgcolor": CLEAR, "title": {"text": ""}},
        dragmode=False,
    )
    figure.update_xaxes(**axis, tickfont={"color": MUTED[theme]})
    figure.update_yaxes(**axis, tickfont={"color": MUTED[theme]})
    figure.update_layout(**layout)
    return figure


def colour_bar(title: str, theme: Theme) -> dict[str, Any]:
    """A colour bar above the plot, at its right end, so that narrow screens keep their width."""
    return {
        "title": {"text": title, "side": "top", "font": {"size": 12.5, "color": MUTED[theme]}},
        "orientation": "h",
        "thickness": 8,
        "lenmode": "pixels",
        "len": 240,
        "x": 1,
        "xanchor": "right",
        "xpad": 12,
        "y": 1,
        "yanchor": "bottom",
        "ypad": 8,
        "outlinewidth": 0,
        "tickfont": {"color": MUTED[theme], "size": 12},
        "nticks": 5,
    }


def task_titles(report: Report, tasks: Iterable[str] | None = None) -> dict[str, str]:
    """Task → title; where two tasks share one, their names tell them apart."""
    chosen = list(report.tasks if tasks is None else tasks)
    titles = {name: report.tasks[name].title or name for name in chosen}
    found = list(titles.values())
    return {name: f"{title} ({name})" if found.count(title) > 1 else title for name, title in titles.items()}


def listed(values: Sequence[tuple[str, float | None]], unit: str = " %", digits: int = 1) -> str:
    """Name and number pairs as a phrase for alternative texts."""
    return ", ".join(f"{name} {number(value, digits)}{unit if value is not None else ''}" for name, value in values)


def number(value: float | None, digits: int = 1) -> str:
    """A number for people, a dash where there is none."""
    return "–" if value is None or value != value else f"{value:.{digits}f}"
