"""Accuracy against the pruning ratio η, beside controls that keep its norm without choosing layers."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ..catalog.titles import method_title
from ..sweeps import SweepTable
from .drawing import Drawing, compose, number, plain, vertical
from .palette import INK, MUTED, Theme, state_colour
from .sweep import MEASURES

DASHES = ("dash", "dot", "dashdot")


def pruning_table(table: SweepTable, state: str = "merged") -> pd.DataFrame:
    """Return one row a point: transform, η, and the state's averages in percent.

    Args:
        table: of a sweep over the transform (first place) and its η (second place).
        state: whose accuracy it is.
    """
    rows = []
    for point in table.points:
        average, (method, eta) = point.evaluation.get(state), point.values
        if average is not None:
            title = method_title(str(method))
            rows.append(
                {
                    "transform": title,
                    "eta": float(eta),
                    "in": average.within,
                    "out": average.out,
                    "h_score": average.h_score,
                }
            )
    return pd.DataFrame(rows, columns=["transform", "eta", "in", "out", "h_score"])


def pruning_curves(table: SweepTable, measure: str, theme: Theme, eta: float | None = None) -> Drawing:
    """Draw one line a transform over η: the first in the merged model's colour, controls in grey with dashes.

    Args:
        table: of a sweep over the transform (first place) and its η (second place).
        measure: a key of `MEASURES`: in, out, or h_score.
        theme: light or dark.
        eta: where to draw an upright line.
    """
    title, axis, _ = MEASURES[measure]
    frame = pruning_table(table).dropna(subset=[measure]).sort_values("eta", kind="stable")
    names = [name for name in dict.fromkeys(pruning_table(table)["transform"]) if name in set(frame["transform"])]
    traces = [_line(frame, name, measure, place, theme) for place, name in enumerate(names)]
    figure = compose(
        traces,
        theme,
        height=360,
        legend=True,
        hovermode="x unified",
        xaxis={"title": "Pruning ratio η", "range": [-0.02, 1.02]},
        yaxis={"title": axis},
        shapes=[] if eta is None else [vertical(eta, theme, "dot")],
    )
    tops = frame.loc[frame.groupby("transform", sort=False)[measure].idxmax()] if len(frame) else frame
    best = [f"{row['transform']} {number(row[measure])} % at η = {row['eta']:g}" for _, row in tops.iterrows()]
    alt = f"{title} over the pruning ratio. Highest: {'; '.join(best) or 'no value'}."
    return Drawing(figure, pruning_table(table), alt, f"pruning-{measure}")


def _line(frame: pd.DataFrame, name: str, measure: str, place: int, theme: Theme) -> Any:
    part = frame[frame["transform"] == name]
    colour = state_colour("merged", theme) if place == 0 else INK[theme] if place == 1 else MUTED[theme]
    dash = "solid" if place == 0 else DASHES[(place - 1) % len(DASHES)]
    return go.Scatter(
        name=plain(name),
        x=part["eta"].tolist(),
        y=part[measure].tolist(),
        mode="lines+markers",
        line={"color": colour, "width": 2.6 if place == 0 else 1.8, "dash": dash},
        marker={"size": 6},
        hovertemplate="%{y:.1f} %",
    )
