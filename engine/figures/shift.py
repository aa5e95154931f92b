"""Distances of single images to the expert's feature: the distribution behind a mean distance."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from ..report import Report
from .drawing import Drawing, compose, listed, plain
from .palette import Theme, fill, state_title

QUARTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def shift_table(samples: pd.DataFrame, task: str, report: Report) -> pd.DataFrame:
    """Return a row a state: n and the 5th, 25th, 50th, 75th and 95th percentile of the distance to the expert.

    Args:
        samples: the run's table of samples.
        task: one task.
        report: says which states there are.
    """
    rows = samples[(samples["task"] == task) & samples["shift"].notna()]
    states = [state for state in report.states() if state != "expert" and (rows["state"] == state).any()]
    found = []
    for state in states:
        values = rows.loc[rows["state"] == state, "shift"]
        found.append({"state": state, "n": len(values), **{f"p{int(100 * q)}": values.quantile(q) for q in QUARTILES}})
    return pd.DataFrame(found, columns=["state", "n", *(f"p{int(100 * q)}" for q in QUARTILES)])


def shift_distribution(samples: pd.DataFrame, task: str, report: Report, theme: Theme) -> Drawing:
    """Draw boxes of every image's distance to its expert feature: half the images in the box, 5 to 95 % in the line."""
    table = shift_table(samples, task, report)
    states = table["state"].tolist()
    boxes = [
        go.Box(
            name=plain(state_title(row.state, report)),
            y=[plain(state_title(row.state, report))],
            orientation="h",
            lowerfence=[row.p5],
            q1=[row.p25],
            median=[row.p50],
            q3=[row.p75],
            upperfence=[row.p95],
            marker={"color": fill(row.state, states, theme)["color"]},
            line={"width": 1.6},
            hovertemplate="%{y}<extra></extra>",
        )
        for row in table.itertuples()
    ]
    figure = compose(
        boxes,
        theme,
        height=90 + 44 * len(states),
        xaxis={"title": "Distance to the expert's feature (feature units)", "rangemode": "tozero"},
        yaxis={"autorange": "reversed"},
    )
    medians = [(state_title(row.state, report), row.p50) for row in table.itertuples()]
    alt = f"Distances of single images to the expert's feature; medians: {listed(medians, '', 2)}."
    return Drawing(figure, table, alt, f"shift-{task}")
