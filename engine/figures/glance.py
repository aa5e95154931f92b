"""First accuracies of a run that is still at work: task by task, before any repair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from .drawing import Drawing, compose, number, plain, spread
from .palette import Theme, state_colour

TITLES = {"pretrained": "pretrained", "merged": "merged", "expert": "own expert"}
COLUMNS = ("task", "domain", "state", "accuracy", "low", "high", "n")
ROW = 24  # px of a task
AROUND = 90  # px of legend and axis


def first_accuracies(document: Mapping[str, Any], theme: Theme) -> Drawing:
    """Draw accuracies with 95 % Wilson intervals, a row a task and a mark a state.

    Args:
        document: what the glance step wrote.
        theme: ``light`` or ``dark``.
    """
    rows = [
        dict(zip(COLUMNS, (task["title"], task["domain"], state, *task[state], task["evaluated"]), strict=True))
        for task in document["tasks"]
        for state in TITLES
        if state in task
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    traces = [_marks(table[table["state"] == state], state, theme) for state in TITLES if state in set(table["state"])]
    figure = compose(
        traces,
        theme,
        height=ROW * table["task"].nunique() + AROUND,
        legend=True,
        xaxis={"title": "Accuracy (%)", "range": [-2, 102], "tickvals": [0, 25, 50, 75, 100]},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": True},
    )
    merged = document["means"].get("merged")
    alt = "No task has an accuracy." if merged is None else f"The merged model is right on {number(merged)} %."
    return Drawing(figure, table, alt, "first-accuracies")


def _marks(rows: pd.DataFrame, state: str, theme: Theme) -> go.Scatter:
    colour = state_colour(state, theme)
    return go.Scatter(
        x=rows["accuracy"].tolist(),
        y=[plain(title) for title in rows["task"]],
        mode="markers",
        name=TITLES[state],
        marker={"color": colour, "size": 9},
        error_x=spread(rows["accuracy"], rows["low"], rows["high"], colour),
        customdata=rows[["low", "high", "n"]].to_numpy(),
        hovertemplate="%{y}: %{x:.1f} % [%{customdata[0]:.1f}, %{customdata[1]:.1f}], n = %{customdata[2]}"
        f"<extra>{TITLES[state]}</extra>",
    )
