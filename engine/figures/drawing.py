"""The parts of a figure: the Plotly figure, the table behind it, and its message in words."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ..report import Report
from ..rounding import rounded
from .palette import GRID, INK, MUTED, SURFACE, Theme

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
CLEAR = "rgba(0,0,0,0)"
CELL = 24  # px of what can be clicked in a cell of a heatmap
UPRIGHT = 10  # labels under groups of bars that are not turned


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
    """Escape text for Plotly, which reads angle brackets as markup and ``%{…}`` as a template."""
    escaped = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("%{", "%&#8203;{")


def spread(values: Iterable[float], low: Iterable[float], high: Iterable[float], colour: str) -> dict[str, Any]:
    """Return the error bars of values in a scatter, from the ends of their intervals."""
    kept, low, high = list(values), list(low), list(high)
    return {
        "type": "data",
        "symmetric": False,
        "array": [end - value for value, end in zip(kept, high, strict=True)],
        "arrayminus": [value - end for value, end in zip(kept, low, strict=True)],
        "thickness": 1.5,
        "width": 0,
        "color": colour,
    }


def begun(text: str) -> str:
    """Return a text with a capital letter, but for symbols such as λ, whose capitals are other symbols."""
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def compose(
    traces: Sequence[Any],
    theme: Theme,
    *,
    height: int,
    legend: bool = False,
    xaxis: Mapping[str, Any] | None = None,
    yaxis: Mapping[str, Any] | None = None,
    **layout: Any,
) -> go.Figure:
    """Make a figure with the look of all figures: transparent, the theme's ink, room for every label.

    Everything is handed over at once, because Plotly takes ten times as long to change a figure as to make one.

    Args:
        traces: what is drawn.
        theme: ``light`` or ``dark``.
        height: px.
        legend: whether to show one, in a row above the plot.
        xaxis: fields of the horizontal axis; ``title`` is its text.
        yaxis: the same for the vertical axis.
        layout: further fields of the layout.
    """
    look = {
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 36 if legend else 12, "b": 8},
        "font": {"family": FONT, "size": 13, "color": INK[theme]},
        "hoverlabel": {
            "bgcolor": SURFACE[theme],
            "bordercolor": GRID[theme],
            "font": {"color": INK[theme], "size": 13},
        },
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "bgcolor": CLEAR, "title": {"text": ""}},
        "dragmode": False,
        "modebar": {"bgcolor": CLEAR, "color": MUTED[theme], "activecolor": INK[theme]},
        "xaxis": _axis(theme, xaxis or {}),
        "yaxis": _axis(theme, yaxis or {}),
    }
    return go.Figure(data=list(traces), layout={**look, **layout})


def cells(
    rows: Sequence[str], columns: Sequence[str], customdata: Sequence[Sequence[Any]], hovertemplate: str
) -> go.Scatter:
    """Return invisible marks over a heatmap's cells: browsers tell of clicks on marks, and not of those on cells.

    Args:
        rows: categories of the vertical axis.
        columns: of the horizontal one.
        customdata: by row and column.
        hovertemplate: in the heatmap's place.
    """
    pairs = [(row, column) for row in range(len(rows)) for column in range(len(columns))]
    return go.Scatter(
        x=[columns[column] for _, column in pairs],
        y=[rows[row] for row, _ in pairs],
        mode="markers",
        marker={"size": CELL, "symbol": "square", "opacity": 0},
        customdata=[customdata[row][column] for row, column in pairs],
        hovertemplate=hovertemplate,
        showlegend=False,
    )


def vertical(x: float, theme: Theme, dash: str = "solid") -> dict[str, Any]:
    """Return a thin vertical line over the whole height, as a shape."""
    line = {"color": MUTED[theme], "width": 1, "dash": dash}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}


def _axis(theme: Theme, fields: Mapping[str, Any]) -> dict[str, Any]:
    axis = {
        "gridcolor": GRID[theme],
        "zerolinecolor": GRID[theme],
        "linecolor": GRID[theme],
        "automargin": True,
        "ticks": "",
        "tickfont": {"color": MUTED[theme]},
        **fields,
    }
    title = {"text": fields.get("title", ""), "standoff": 8, "font": {"size": 12.5, "color": MUTED[theme]}}
    return {**axis, "title": title}


def colour_bar(title: str, theme: Theme) -> dict[str, Any]:
    """Return a colour bar above the plot, at its right end, so that narrow screens keep their width."""
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


def wrapped(text: str, width: int = 14) -> str:
    """Break a name into short lines, so that labels under narrow groups stay upright; words are never cut."""
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [text]
    return "<br>".join(map(plain, lines))


def under_groups(titles: Sequence[str]) -> list[str]:
    """Return labels under groups: short lines where few stand upright; many are turned and stay on one line."""
    return [plain(title) if len(titles) > UPRIGHT else wrapped(title) for title in titles]


def task_titles(report: Report, tasks: Iterable[str] | None = None) -> dict[str, str]:
    """Return task → title; where two tasks share one, their names tell them apart."""
    chosen = list(report.tasks if tasks is None else tasks)
    titles = {name: report.tasks[name].title or name for name in chosen}
    found = list(titles.values())
    return {name: f"{title} ({name})" if found.count(title) > 1 else title for name, title in titles.items()}


def expert_titles(report: Report, names: Sequence[str]) -> list[str]:
    """Return experts by the title of the task that they know, by their name where that is not known or not unique."""
    of = {report.tasks[task].expert: report.tasks[task].title for task in report.tasks_of("in")}
    found = [of.get(name) or name for name in names]
    return found if len(set(found)) == len(found) else list(names)


def beside(taken: Sequence[str], titles: Iterable[str], what: str = "expert") -> list[str]:
    """Return titles that people gave as names of columns beside others of fixed names.

    Args:
        taken: the fixed names.
        titles: of the other columns.
        what: they are of; said of a title that is taken.
    """
    return [f"{title} ({what})" if title in taken else title for title in titles]


def listed(values: Sequence[tuple[str, float | None]], unit: str = " %", digits: int = 1) -> str:
    """Return name and number pairs as a phrase for alternative texts."""
    return ", ".join(f"{name} {number(value, digits)}{unit if value is not None else ''}" for name, value in values)


def number(value: float | None, digits: int = 1) -> str:
    """Return a number for people, a dash where there is none."""
    return "–" if value is None or value != value else rounded(value, digits)


def reworded(figure: go.Figure, said: Callable[[str], str]) -> None:
    """Change a figure about images into one about samples of another kind: its legend, hints and axes.

    Args:
        figure: changed in place; doing it twice changes nothing more.
        said: gives a text about images as one about those samples.
    """
    for trace in figure.data:
        for name in ("name", "hovertemplate"):
            text = getattr(trace, name, None)
            if isinstance(text, str) and said(text) != text:  # to set what is there already takes Plotly as long
                trace[name] = said(text)
    for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
        if axis.title.text and said(axis.title.text) != axis.title.text:
            axis.title.text = said(axis.title.text)
