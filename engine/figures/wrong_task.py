"""Effect of one task's calibrator on another task's images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..report import Report
from .accuracy import NUMBERS_UP_TO
from .drawing import Drawing, beside, colour_bar, compose, number, plain, task_titles
from .palette import GAP, INK, Theme, diverging


def wrong_task_figure(document: Mapping[str, Any], report: Report, state: str, theme: Theme) -> Drawing:
    """Draw the accuracy of a row's task with a column's module; colour is the change against no correction.

    Args:
        document: what the check left: by state ``tasks``, ``accuracy`` (percent) and ``uncorrected``.
        report: gives titles.
        state: the calibrator.
        theme: ``light`` or ``dark``.
    """
    found = document["states"][state]
    known = task_titles(report)
    titles = [known.get(task, task) for task in found["tasks"]]
    matrix, plainly = np.array(found["accuracy"], dtype=float), np.array(found["uncorrected"], dtype=float)
    change = matrix - plainly[:, None]
    limit = max(float(np.abs(change).max()), 1e-9)
    names = [plain(title) for title in titles]
    heatmap = go.Heatmap(
        z=change,
        x=names,
        y=names,
        zmin=-limit,
        zmax=limit,
        colorscale=diverging(theme),
        xgap=2,
        ygap=2,
        text=[[number(value) for value in row] for row in matrix],
        texttemplate="%{text}" if len(names) <= NUMBERS_UP_TO else None,
        textfont={"color": INK["dark"]} if theme == "dark" else {},
        colorbar=colour_bar("points gained", theme),
        hovertemplate="Images of %{y}, module of %{x}: %{text} %, %{z:+.1f} points<extra></extra>",
    )
    figure = compose(
        [heatmap],
        theme,
        height=150 + 34 * len(names),
        plot_bgcolor=GAP[theme],
        margin={"l": 8, "r": 12, "t": 64, "b": 8},
        xaxis={"title": "Module of", "type": "category", "showgrid": False, "tickangle": -45},
        yaxis={"title": "Images of", "type": "category", "showgrid": False, "autorange": "reversed"},
    )
    table = pd.DataFrame(matrix, columns=beside(("images of", "uncorrected"), titles, "task"))
    table.insert(0, "uncorrected", plainly)
    table.insert(0, "images of", titles)
    own, others = own_and_others(document, state)
    alt = (
        f"Mean accuracy with the task's own module {number(own)} %, with other tasks' modules {number(others)} %, "
        f"without correction {number(float(plainly.mean()))} %."
    )
    return Drawing(figure, table, alt, f"wrong-task-{state}")


def own_and_others(document: Mapping[str, Any], state: str) -> tuple[float, float | None]:
    """Return mean accuracy with the task's own module, and with those of other tasks (None where there is one task)."""
    matrix = np.array(document["states"][state]["accuracy"], dtype=float)
    rest = matrix[~np.eye(len(matrix), dtype=bool)]
    return float(np.diag(matrix).mean()), float(rest.mean()) if len(rest) else None
