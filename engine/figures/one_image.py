"""Effect of a correction on one image: the likeliest classes before and after it, and the expert's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ..report import Report
from .drawing import Drawing, compose, number, plain
from .palette import Theme, state_colour, state_title

FATES = {
    "repaired": "Repaired",
    "broken": "Broken",
    "wrong": "Wrong before and after",
    "right": "Right before and after",
}


def fates(predictions: pd.DataFrame, labels: pd.Series, before: str, after: str) -> pd.Series:
    """Return the outcome for every image: a key of FATES by the image's index.

    Args:
        predictions: of one task: index, state, rank, label.
        labels: true class by the image's index.
        before: the state that is corrected.
        after: the corrected one.
    """
    first = predictions[predictions["rank"] == 1].set_index("index")
    right = {state: first.loc[first["state"] == state, "label"].eq(labels) for state in (before, after)}
    told = {(False, True): "repaired", (True, False): "broken", (False, False): "wrong", (True, True): "right"}
    pairs = zip(right[before].reindex(labels.index), right[after].reindex(labels.index), strict=True)
    return pd.Series([told[bool(first), bool(second)] for first, second in pairs], index=labels.index)


def one_image_figure(
    predictions: pd.DataFrame, report: Report, task: str, states: Sequence[str], truth: int, theme: Theme
) -> Drawing:
    """Draw the probability of the likeliest classes of one image, a bar a state.

    Args:
        predictions: of one image: state, rank, label, probability; at most five ranks a state.
        report: gives titles and classes.
        task: whose classes they are.
        states: in the order of the bars.
        truth: the true class.
        theme: ``light`` or ``dark``.
    """
    names = report.tasks[task].classes
    shown = predictions[predictions["state"].isin(list(states))]
    best = shown.groupby("label")["probability"].max().sort_values(ascending=False)
    order = [truth, *(label for label in best.index if label != truth)][:6]
    titles = {label: f"{plain(names[label])}{' ✓' if label == truth else ''}" for label in order}
    bars: list[Any] = []
    said = []
    for state in states:
        own = shown[shown["state"] == state].set_index("label")["probability"]
        values = [100 * float(own.get(label, 0.0)) for label in order]
        said.append(f"{state_title(state, report)} {names[own.idxmax()]}, {number(100 * float(own.max()))} %")
        bars.append(
            go.Bar(
                name=plain(state_title(state, report)),
                x=values,
                y=[titles[label] for label in order],
                orientation="h",
                marker={"color": state_colour(state, theme)},
                hovertemplate="%{y}: %{x:.1f} %",
            )
        )
    figure = compose(
        bars,
        theme,
        height=90 + 24 * len(states) * len(order),
        legend=True,
        barmode="group",
        xaxis={"title": "Probability (%)", "range": [0, 100]},
        yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
    )
    table = shown[["state", "rank", "label", "probability"]].copy()
    table.insert(2, "class", [names[label] for label in table["label"]])
    alt = f"An image of {names[truth]}. {'; '.join(said)}."
    return Drawing(figure, table.drop(columns="label").reset_index(drop=True), alt, f"one-image-{task}")
