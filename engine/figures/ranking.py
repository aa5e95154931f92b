"""The layers of an encoder ranked by what they mean to one expert."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..analysis.layers import Layer, layers_of
from ..report import SaliencePart
from .drawing import Drawing, compose, plain
from .palette import INK, SURFACE, Theme, state_colour

RANKED = 12  # layers drawn; the table has all


def ranked_layers(part: SaliencePart, expert: str, components: Sequence[str] | None = None) -> pd.DataFrame:
    """Return all layers, the most salient to one expert first.

    Args:
        part: the report's salience.
        expert: its name there.
        components: which kinds of layers; default all.

    Returns:
        Columns layer (full name), label (with its block in words), component, parameters, salience, others (mean over
        the other experts, NaN without any). Of equal ones the shallower first.
    """
    names = list(part.score)
    scores = np.array(list(part.score.values()), dtype=float)
    own = names.index(expert)
    rest = np.delete(scores, own, axis=0)
    others = rest.mean(axis=0) if len(rest) else np.full(scores.shape[1], np.nan)
    shown = [layer for layer in layers_of(part.layers) if components is None or layer.component in components]
    table = pd.DataFrame(
        [
            (
                layer.name,
                _label(layer),
                layer.component,
                part.parameters[layer.column],
                scores[own, layer.column],
                others[layer.column],
            )
            for layer in shown
        ],
        columns=["layer", "label", "component", "parameters", "salience", "others"],
    )
    return table.sort_values("salience", ascending=False, kind="stable", ignore_index=True)


def layer_ranking(
    part: SaliencePart, expert: str, theme: Theme, *, title: str, components: Sequence[str] | None = None
) -> Drawing:
    """Draw a bar for each of an expert's most salient layers, a mark where the other experts are on average."""
    table = ranked_layers(part, expert, components)
    top = table.head(RANKED)
    names = [plain(name) for name in top["label"]]
    bars = go.Bar(
        name=plain(title),
        x=top["salience"].tolist(),
        y=names,
        orientation="h",
        marker={"color": state_colour("expert", theme)},
        customdata=top[["layer", "component", "parameters"]].to_numpy().tolist(),
        hovertemplate="%{customdata[0]}<br>%{customdata[1]}, %{customdata[2]:,} parameters<br>"
        "salience %{x:.3g}<extra></extra>",
    )
    marks = go.Scatter(
        name="Mean of the other experts",
        x=top["others"].tolist(),
        y=names,
        mode="markers",
        marker={"color": SURFACE[theme], "size": 10, "symbol": "diamond", "line": {"color": INK[theme], "width": 1.5}},
        hovertemplate="other experts %{x:.3g}<extra></extra>",
    )
    figure = compose(
        [bars, marks] if top["others"].notna().any() else [bars],
        theme,
        height=96 + 26 * len(top),
        legend=True,
        bargap=0.3,
        xaxis={"title": "Salience (mean |τ − mean τ|)", "rangemode": "tozero", "exponentformat": "power"},
        yaxis={"type": "category", "autorange": "reversed", "dtick": 1, "showgrid": False},
    )
    first = f" First: {top.iloc[0]['layer']}." if len(top) else ""
    alt = f"The {len(top)} layers of highest salience to {title}, of {len(table)}.{first}"
    return Drawing(figure, table.drop(columns="label"), alt, f"layers-of-{expert}")


def _label(layer: Layer) -> str:
    """Return a layer's name, its block in words."""
    return layer.short if layer.block is None else f"block {': '.join(layer.short.split(' ', 1))}"
