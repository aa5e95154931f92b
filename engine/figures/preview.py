"""A preview of a merge: its images in one map with those of the run shown, and its accuracies task by task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from .drawing import Drawing, compose, number, plain, spread
from .palette import INK, MUTED, Theme, state_colour

RIGHT, WRONG, NEITHER = "right", "wrong", "answer is a number"
OUTCOMES = {
    "light": {RIGHT: "#009E73", WRONG: "#CC3311", NEITHER: INK["light"]},
    "dark": {RIGHT: "#4FC3A1", WRONG: "#FF7A66", NEITHER: INK["dark"]},
}
SYMBOLS = {RIGHT: "circle", WRONG: "x", NEITHER: "circle-open"}
COLUMNS = ("task", "preview", "low", "high", "run shown", "n", "domain")
ROW = 24  # px of a task
HEIGHT = 300  # px at least
HIDDEN = {"visible": False}
NO_ACCURACY = "No task of the sample has an accuracy: their answers are numbers."


def shown_average(document: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return a domain, for people, and the means that sum a preview up; None where no task has an accuracy."""
    average = document["average"]
    for domain, title in (("in", "in-domain"), ("out", "out-of-domain")):
        if average.get(domain):
            return title, average[domain]
    return None


def preview_points(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray], theme: Theme) -> Drawing:
    """Draw every image of the sample where the merge puts it, right or wrong, over where the run shown has it.

    Args:
        document: what the step of a preview wrote.
        arrays: the same.
        theme: ``light`` or ``dark``.
    """
    titles = np.array([task["title"] for task in document["tasks"]])
    points, right = arrays["merged/points"], arrays["merged/right"].astype(bool)
    placed = ~np.isnan(points[:, 0])
    scored = np.array(["merged" in task for task in document["tasks"]])[arrays["task"]]  # of others answers are numbers
    known = placed & scored
    traces, before = [], arrays.get("against/points")
    if before is not None:
        marker = {"color": MUTED[theme], "size": 4, "opacity": 0.35}
        traces.append(_marks(before, "run shown", marker, hoverinfo="skip"))
    outcomes = {RIGHT: right & known, WRONG: ~right & known} | ({NEITHER: placed & ~scored} if not scored.all() else {})
    for outcome, chosen in outcomes.items():
        marker = {"color": OUTCOMES[theme][outcome], "size": 6, "symbol": SYMBOLS[outcome], "opacity": 0.85}
        names = [plain(title) for title in titles[arrays["task"][chosen]]]
        hint = f"%{{customdata}}: {outcome}<extra></extra>"
        traces.append(_marks(points[chosen], outcome, marker, customdata=names, hovertemplate=hint))
    figure = compose(
        traces, theme, height=_height(document), legend=True, xaxis=HIDDEN, yaxis={**HIDDEN, "scaleanchor": "x"}
    )
    table = pd.DataFrame(
        {
            "task": titles[arrays["task"]],
            "row": arrays["index"],
            "x": points[:, 0],
            "y": points[:, 1],
            "right": right if scored.all() else pd.Series(right, dtype="boolean").mask(~scored),
        }
    )
    alt = f"{int(right[known].sum())} of {int(known.sum())} images of the sample are right."
    return Drawing(figure, table, alt, "preview-points")


def preview_tasks(document: Mapping[str, Any], theme: Theme) -> Drawing:
    """Draw the accuracy on the sample task by task with 95 % Wilson intervals, and that of the run shown as a mark.

    Tasks whose answers are numbers have no accuracy and are left out; where all are such, the table is empty.
    """
    rows = []
    for task in document["tasks"]:
        if "merged" not in task:
            continue
        value, low, high = task["merged"]
        before = task.get("against", [None])[0]
        facts = {"n": task["evaluated"], "domain": task["domain"]}
        rows.append({"task": task["title"], "preview": value, "low": low, "high": high, "run shown": before, **facts})
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    names = [plain(title) for title in table["task"]]
    colour = state_colour("merged", theme)
    traces = [
        go.Scatter(
            x=table["preview"].tolist(),
            y=names,
            mode="markers",
            name="preview",
            marker={"color": colour, "size": 9},
            error_x=spread(table["preview"], table["low"], table["high"], colour),
            customdata=table[["low", "high", "n"]].to_numpy(),
            hovertemplate="%{y}: %{x:.1f} % [%{customdata[0]:.1f}, %{customdata[1]:.1f}], n = %{customdata[2]}"
            "<extra>preview</extra>",
        )
    ]
    if table["run shown"].notna().any():
        marker = {"symbol": "line-ns-open", "size": 13, "color": MUTED[theme], "line": {"width": 2.5}}
        hint = "%{y}: %{x:.1f} %<extra>run shown, same images</extra>"
        before = [None if pd.isna(value) else float(value) for value in table["run shown"]]
        traces.append(
            go.Scatter(x=before, y=names, mode="markers", name="run shown", marker=marker, hovertemplate=hint)
        )
    figure = compose(
        traces,
        theme,
        height=_height(document),
        legend=True,
        xaxis={"title": "Accuracy of the sample (%)", "range": [-2, 102], "tickvals": [0, 25, 50, 75, 100]},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": True},
    )
    shown = shown_average(document)
    alt = f"On the sample {number(shown[1]['merged']['mean'])} % are right, mean over tasks." if shown else NO_ACCURACY
    return Drawing(figure, table, alt, "preview-tasks")


def _marks(points: np.ndarray, name: str, marker: Mapping[str, Any], **fields: Any) -> go.Scatter:
    x, y = points[:, 0].tolist(), points[:, 1].tolist()
    return go.Scatter(x=x, y=y, mode="markers", name=name, marker=marker, **fields)


def _height(document: Mapping[str, Any]) -> int:
    return max(HEIGHT, ROW * len(document["tasks"]) + 80)
