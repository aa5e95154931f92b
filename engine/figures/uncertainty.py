"""Predicted spread of a calibrator against what is really left, and against errors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..report import Report
from .drawing import Drawing, compose, number
from .palette import INK, MUTED, Theme, state_colour, state_title

GROUPS = 10


@dataclass(frozen=True)
class Agreement:
    """Agreement of predicted σ with what is left of the drift."""

    rank_correlation: float  # Spearman, of an image's mean σ with its distance to the expert after correction
    wrong_low: float | None  # percent wrong among the tenth of images with the smallest σ; None of numbers alone
    wrong_high: float | None  # and the largest
    images: int


def graded_tasks(report: Report) -> list[str]:
    """Return the tasks whose answers are numbers."""
    return [name for name, task in report.tasks.items() if task.graded]


def uncertain_states(samples: pd.DataFrame, report: Report) -> list[str]:
    """Return the calibrators that predict a spread."""
    with_sigma = samples.loc[samples["sigma"].notna(), "state"].unique()
    return [state for state in report.calibrators if state in with_sigma]


def uncertainty_table(
    samples: pd.DataFrame, state: str, task: str | None = None, graded: Collection[str] = ()
) -> pd.DataFrame:
    """Return ten equal groups of images by predicted σ: mean σ, mean distance to the expert, percent wrong.

    Args:
        samples: the run's table of samples.
        state: a calibrator with σ.
        task: one task; None for all, each image ranked within its task so that tasks of other scale do not decide.
        graded: tasks whose answers are numbers, which are never wrong.
    """
    rows = samples[(samples["state"] == state) & samples["sigma"].notna()]
    rows = rows if task is None else rows[rows["task"] == task]
    rank = rows.groupby("task")["sigma"].rank(method="first", pct=True)
    group = np.minimum((rank * GROUPS).apply(np.ceil).astype(int), GROUPS)
    wrong = (100.0 * (rows["prediction"] != rows["label"])).mask(rows["task"].isin(graded))
    table = pd.DataFrame({"group": group, "sigma": rows["sigma"], "shift": rows["shift"], "wrong": wrong})
    found = table.groupby("group").agg(
        n=("sigma", "size"), sigma=("sigma", "mean"), shift=("shift", "mean"), wrong=("wrong", "mean")
    )
    return found.reset_index()


def agreement(samples: pd.DataFrame, state: str, task: str | None = None, graded: Collection[str] = ()) -> Agreement:
    """Return the agreement that the figure shows, in numbers."""
    rows = samples[(samples["state"] == state) & samples["sigma"].notna()]
    rows = rows if task is None else rows[rows["task"] == task]
    by_task = [
        part["sigma"].corr(part["shift"], method="spearman") for _, part in rows.groupby("task") if len(part) > 2
    ]
    table = uncertainty_table(samples, state, task, graded)
    wrong = [None if np.isnan(value) else float(value) for value in table["wrong"].iloc[[0, -1]]]
    return Agreement(float(np.nanmean(by_task)) if by_task else float("nan"), wrong[0], wrong[1], len(rows))


def uncertainty_figure(
    samples: pd.DataFrame, state: str, report: Report, theme: Theme, task: str | None = None
) -> Drawing:
    """Draw groups of images from sure to unsure: what is left of the drift (line), and how many are wrong (bars)."""
    graded = graded_tasks(report)
    table = uncertainty_table(samples, state, task, graded)
    names = [str(group) for group in table["group"]]
    bars = go.Bar(
        name="Wrong (%)",
        x=names,
        y=table["wrong"].tolist(),
        yaxis="y2",
        opacity=0.35,
        marker={"color": MUTED[theme]},
        hovertemplate="%{y:.1f} %",
    )
    line = go.Scatter(
        name="Distance to the expert",
        x=names,
        y=table["shift"].tolist(),
        mode="lines+markers",
        line={"color": state_colour(state, theme), "width": 2.6},
        hovertemplate="%{y:.2f}",
    )
    figure = compose(
        [bars, line],
        theme,
        height=340,
        legend=True,
        hovermode="x unified",
        xaxis={"title": "Tenth of the images, from the surest to the least sure", "type": "category"},
        yaxis={"title": "Mean distance to the expert after correction", "rangemode": "tozero"},
        yaxis2={
            "title": {"text": "Wrong (%)", "font": {"color": INK[theme], "size": 12.5}},
            "overlaying": "y",
            "side": "right",
            "rangemode": "tozero",
            "tickmode": "auto",
            "showgrid": False,
            "automargin": True,
        },
    )
    found = agreement(samples, state, task, graded)
    first, last = (number(float(table["shift"].iloc[row]), 2) for row in (0, -1))
    alt = (
        f"{state_title(state, report)}: from the surest to the least sure tenth of images the distance to the expert "
        f"goes from {first} to {last} and errors from {number(found.wrong_low)} % to {number(found.wrong_high)} %."
    )
    return Drawing(figure, table, alt, f"uncertainty-{state}")
