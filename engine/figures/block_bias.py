"""Distance of every state from the experts, block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go

from ..analysis.accuracy import mean
from ..report import Report
from .drawing import Drawing, compose, listed, plain
from .palette import Theme, state_colour, state_dash, state_title

QUANTITIES = {"l1": "L1 to the expert (feature units)", "cka": "Linear CKA with the expert"}
STATISTICS = {"class": "Class token", "mean": "Mean over tokens"}
FEATURES = "Features"
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")


def block_table(document: Mapping[str, Any], quantity: str, statistic: str, tasks: Sequence[str]) -> pd.DataFrame:
    """Return one row per state and station: the mean over tasks after every block, and of the features at the end.

    Args:
        document: what the comparison left.
        quantity: ``l1`` or ``cka``.
        statistic: ``class`` or ``mean``, of the block's tokens.
        tasks: which are averaged.
    """
    parts = [document["tasks"][task] for task in tasks]
    rows = []
    for state in parts[0]["states"]:
        by_task = [part["states"][state] for part in parts]
        for block in range(parts[0]["blocks"]):
            value = mean(found[statistic][quantity][block] for found in by_task)
            rows.append({"state": state, "station": f"Block {block + 1}", "value": value})
        value = mean(found["features"][quantity] for found in by_task)
        rows.append({"state": state, "station": FEATURES, "value": value})
    return pd.DataFrame(rows).astype({"value": float})


def block_figure(
    document: Mapping[str, Any],
    report: Report,
    quantity: Literal["l1", "cka"],
    statistic: Literal["class", "mean"],
    tasks: Sequence[str],
    theme: Theme,
) -> Drawing:
    """Draw a line a state over the blocks; features stand apart at the right end, because they are another space."""
    table = block_table(document, quantity, statistic, tasks)
    states = list(table["state"].unique())
    shown = table.assign(station=table["station"].str.removeprefix("Block "))
    lines = []
    for number, state in enumerate(states):
        rows = shown[shown["state"] == state]
        for part, legend in ((rows[:-1], True), (rows[-1:], False)):
            lines.append(
                go.Scatter(
                    name=plain(state_title(state, report)),
                    x=part["station"].tolist(),
                    y=part["value"].tolist(),
                    mode="lines+markers" if legend else "markers",
                    legendgroup=state,
                    showlegend=legend,
                    line={"color": state_colour(state, theme), "dash": state_dash(state, states), "width": 2.4},
                    marker={"size": 7 if legend else 11, "symbol": SYMBOLS[number % len(SYMBOLS)]},
                    hovertemplate="%{y:.3f}",
                )
            )
    figure = compose(
        lines,
        theme,
        height=380,
        legend=True,
        hovermode="x unified",
        xaxis={"title": "After block", "type": "category", "showgrid": False},
        yaxis={"title": QUANTITIES[quantity], "rangemode": "tozero" if quantity == "l1" else "normal"},
    )
    ends = table[table["station"] == FEATURES]
    said = listed([(state_title(row.state, report), row.value) for row in ends.itertuples()], "", 3)
    alt = f"{QUANTITIES[quantity]} after every block, {STATISTICS[statistic].lower()}. Of the features: {said}."
    return Drawing(figure, table, alt, f"blocks-{quantity}-{statistic}")
