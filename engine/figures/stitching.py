"""Networks stitched from a state and a task's expert, and how nearly activations add up as weights do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go

from ..analysis.accuracy import mean
from ..report import Report
from .block_bias import SYMBOLS
from .drawing import Drawing, compose, listed, plain
from .palette import Theme, state_colour, state_dash, state_title

ORDERS = {"begins": "Its parts first", "ends": "The expert's first"}
QUANTITIES = {"change": "Cosine of the changes", "cosine": "Cosine of the activations"}
OTHER = "expert"  # stands for another task's expert where it is stitched
OUTPUT = "Output"


def places(blocks: int) -> list[str]:
    """Return the last of the first network's parts at every cut: none, the embedding, each block, all."""
    return ["none", "emb.", *map(str, range(1, blocks + 1)), "all"]


def stitched_table(document: Mapping[str, Any], tasks: Sequence[str]) -> pd.DataFrame:
    """Return one row a state, order and place: the mean accuracy over tasks, in percent.

    Args:
        document: what stitching left.
        tasks: which are averaged.
    """
    parts = [document["tasks"][task] for task in tasks]
    rows = []
    for state in parts[0]["states"]:
        for order in ORDERS:
            columns = zip(*(part["states"][state][order] for part in parts), strict=True)
            for place, values in zip(places(parts[0]["blocks"]), columns, strict=True):
                rows.append({"state": state, "order": order, "first_up_to": place, "accuracy": mean(values)})
    return pd.DataFrame(rows)


def stitched_figure(
    document: Mapping[str, Any], report: Report, order: Literal["begins", "ends"], tasks: Sequence[str], theme: Theme
) -> Drawing:
    """Draw a line a state: accuracy against how many of the parts come from the first network."""
    table = stitched_table(document, tasks)
    shown = table[table["order"] == order]
    lines = _lines(shown, "first_up_to", "accuracy", report, theme, "%{y:.1f} %", {OTHER: "Another task's expert"})
    first = "Its" if order == "begins" else "The expert's"
    figure = compose(
        lines,
        theme,
        height=380,
        legend=True,
        hovermode="x unified",
        xaxis={"title": f"{first} parts up to", "type": "category", "showgrid": False},
        yaxis={"title": "Accuracy (%)"},
    )
    inside = shown[~shown["first_up_to"].isin(["none", "all"])].groupby("state", sort=False)["accuracy"].mean()
    said = listed([(_title(state, report, {OTHER: "another task's expert"}), value) for state, value in inside.items()])
    alt = f"Accuracy of stitched networks. {ORDERS[order]}. Mean over all places between two parts: {said}."
    return Drawing(figure, table, alt, f"stitched-{order}")


def linearity_table(document: Mapping[str, Any], quantity: str, tasks: Sequence[str]) -> pd.DataFrame:
    """Return one row a state and station: the mean cosine over tasks after every block, and of the output.

    Args:
        document: what stitching left.
        quantity: ``cosine`` or ``change``.
        tasks: which are averaged.
    """
    parts = [document["tasks"][task] for task in tasks]
    stations = [*map(str, range(1, parts[0]["blocks"] + 1)), OUTPUT]
    rows = [
        {"state": state, "station": station, "value": mean(values)}
        for state in parts[0]["linearity"]
        for station, values in zip(
            stations, zip(*(part["linearity"][state][quantity] for part in parts), strict=True), strict=True
        )
    ]
    return pd.DataFrame(rows).astype({"value": float}).dropna(subset="value")


def linearity_figure(
    document: Mapping[str, Any],
    report: Report,
    quantity: Literal["cosine", "change"],
    tasks: Sequence[str],
    theme: Theme,
) -> Drawing:
    """Draw a line a state: cosine with the combination of the experts' activations."""
    table = linearity_table(document, quantity, tasks)
    own = {"expert": "The task's expert"}
    figure = compose(
        _lines(table, "station", "value", report, theme, "%{y:.3f}", own),
        theme,
        height=340,
        legend=True,
        hovermode="x unified",
        xaxis={"title": "After block", "type": "category", "showgrid": False},
        yaxis={"title": QUANTITIES[quantity]},
    )
    ends = table[table["station"] == OUTPUT]
    said = listed([(_title(row.state, report, own), row.value) for row in ends.itertuples()], "", 3)
    alt = f"{QUANTITIES[quantity]} with the combined experts after every block. Of the output: {said}."
    return Drawing(figure, table, alt, f"linearity-{quantity}")


def _lines(
    table: pd.DataFrame, x: str, y: str, report: Report, theme: Theme, shown: str, titles: Mapping[str, str]
) -> list[go.Scatter]:
    states = list(table["state"].unique())
    lines = []
    for number, state in enumerate(states):
        rows = table[table["state"] == state]
        dash = "dot" if state == OTHER else state_dash(state, states)
        lines.append(
            go.Scatter(
                name=plain(_title(state, report, titles)),
                x=rows[x].tolist(),
                y=rows[y].tolist(),
                mode="lines+markers",
                line={"color": state_colour(state, theme), "dash": dash, "width": 2.4},
                marker={"size": 7, "symbol": SYMBOLS[number % len(SYMBOLS)]},
                hovertemplate=shown,
            )
        )
    return lines


def _title(state: str, report: Report, titles: Mapping[str, str]) -> str:
    return titles.get(state) or state_title(state, report)
