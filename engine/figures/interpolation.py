"""Accuracy and loss on the straight path between two models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from .drawing import Drawing, compose, listed, plain
from .palette import INK, Theme, task_colours

POSITION, MEAN = "Position α", "Mean of all tasks"  # columns beside the tasks' titles


def path_figure(
    document: Mapping[str, Any],
    titles: Mapping[str, str],
    ends: tuple[str, str],
    quantity: Literal["accuracy", "loss"],
    theme: Theme,
) -> Drawing:
    """Draw a line for every task and one for their mean, against the position α on the path.

    Args:
        document: what the path's computation left: ``alphas`` and, by task, ``accuracy`` and ``loss``.
        titles: of the tasks, in their order.
        ends: titles of the two models.
        quantity: ``accuracy`` (percent) or ``loss`` (nats).
        theme: ``light`` or ``dark``.
    """
    alphas, tasks = document["alphas"], [task for task in titles if task in document["tasks"]]
    colours = task_colours(list(titles), theme)
    form = "%{y:.1f} %" if quantity == "accuracy" else "%{y:.3f}"
    rows = np.array([document["tasks"][task][quantity] for task in tasks], dtype=float)
    lines = [
        go.Scatter(
            name=plain(titles[task]),
            x=alphas,
            y=row,
            mode="lines",
            hovertemplate=form,
            line={"color": colours[task], "width": 1.8},
        )
        for task, row in zip(tasks, rows, strict=True)
    ]
    mean = rows.mean(axis=0)
    lines.append(
        go.Scatter(
            name="Mean",
            x=alphas,
            y=mean,
            mode="lines+markers",
            hovertemplate=form,
            line={"color": INK[theme], "width": 3},
        )
    )
    figure = compose(
        lines,
        theme,
        height=420,
        legend=True,
        hovermode="x unified",
        xaxis={"title": f"Position α: 0 is {plain(ends[0])}, 1 is {plain(ends[1])}", "range": [0, 1]},
        yaxis={"title": "Accuracy (%)" if quantity == "accuracy" else "Cross-entropy (nats)", "rangemode": "tozero"},
    )
    table = pd.DataFrame(rows.T, columns=[titles[task] for task in tasks])
    table.insert(0, POSITION, alphas)
    table[MEAN] = mean
    unit = " %" if quantity == "accuracy" else ""
    said = listed(
        [(ends[0], float(mean[0])), ("half-way", float(np.interp(0.5, alphas, mean))), (ends[1], float(mean[-1]))], unit
    )
    return Drawing(
        figure, table, f"Mean {quantity} over {len(tasks)} tasks along the path: {said}.", f"path-{quantity}"
    )


def barrier_table(document: Mapping[str, Any], titles: Mapping[str, str]) -> pd.DataFrame:
    """Return one row a task: accuracy at both ends, its lowest and highest value on the path, and the loss barrier."""
    rows = []
    for task, title in titles.items():
        found = document["tasks"].get(task)
        if found:
            accuracy = found["accuracy"]
            rows.append(
                {
                    "task": title,
                    "start": accuracy[0],
                    "end": accuracy[-1],
                    "lowest": min(accuracy),
                    "highest": max(accuracy),
                    "barrier": found["barrier"],
                    "images": found["images"],
                    "available": found["available"],
                }
            )
    return pd.DataFrame(rows)
