"""Task vectors and merges layer by layer: norms, angles, signs, and what a merge keeps of every expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..analysis.layers import layers_of
from .depth import NAMES_UP_TO, by_layer
from .drawing import Drawing, beside, colour_bar, compose, listed, plain
from .palette import CIVIDIS, GAP, INK, PURPLE_ORANGE, SURFACE, Theme, diverging
from .weight_measures import Arrays, LayerMeasure, conflicts, cosines, ratio, totals

PRINTED_UP_TO = 12  # rows and columns whose numbers are printed into a matrix
FULL_COSINE = 0.3  # the least cosine that has a full colour: task vectors at ±0.04 are as good as at right angles
TOGETHER = "All experts"


def layer_figure(
    arrays: Arrays,
    layers: Sequence[str],
    titles: Sequence[str],
    measure: LayerMeasure,
    theme: Theme,
    *,
    components: Sequence[str] | None = None,
    name: str = "layers",
) -> Drawing:
    """Draw a measure of every layer: experts are rows, layers columns in order of depth.

    Args:
        arrays: sums over the entries of every layer.
        layers: names of the layers, in the arrays' order.
        titles: of the experts, in the arrays' order.
        measure: a row of ``GEOMETRY`` or ``KEPT``.
        theme: ``light`` or ``dark``.
        components: which kinds of layers are shown; default all.
        name: stem of downloaded files.
    """
    values = measure.compute(arrays).T
    rows = [TOGETHER] if measure.together else list(titles)
    whole = totals(arrays, measure)
    drawing = layer_heatmap(
        values,
        layers,
        rows,
        theme,
        unit=measure.unit,
        signed=measure.signed,
        digits=measure.digits,
        components=components,
        name=name,
    )
    said = listed([(row, None if np.isnan(v) else float(v)) for row, v in zip(rows, whole, strict=True)], "", 3)
    return Drawing(drawing.figure, drawing.table, f"{measure.title} of every layer. Over all layers: {said}.", name)


def layer_heatmap(
    values: np.ndarray,
    layers: Sequence[str],
    rows: Sequence[str],
    theme: Theme,
    *,
    unit: str,
    signed: bool = False,
    digits: int = 3,
    components: Sequence[str] | None = None,
    limits: tuple[float, float] | None = None,
    name: str = "layers",
) -> Drawing:
    """Draw values (rows, L) as colours, layers in order of depth; missing ones are left out of the plot.

    Args:
        values: NaN where there is none.
        layers: names of the layers, in the order of the columns.
        rows: titles of the rows.
        theme: ``light`` or ``dark``.
        unit: what the colours mean.
        signed: colours centred on zero.
        digits: of the numbers in the tooltip.
        components: which kinds of layers are shown; default all.
        limits: of the colours; default the values' own.
        name: stem of downloaded files.
    """
    shown = [layer for layer in layers_of(layers) if components is None or layer.component in components]
    drawn = values[:, [layer.column for layer in shown]]
    low, high = limits or _limits(drawn, signed)
    about = [(layer.name, layer.component) for layer in shown]
    heatmap = go.Heatmap(
        z=np.where(np.isfinite(drawn), drawn, np.nan),
        x=list(range(len(shown))),
        y=[plain(row) for row in rows],
        zmin=low,
        zmax=high,
        colorscale=diverging(theme) if signed else CIVIDIS,
        customdata=[
            [(*words, f"{value:.{digits}f}") for words, value in zip(about, row, strict=True)] for row in drawn
        ],
        hovertemplate="%{y}<br>%{customdata[0]}<br>%{customdata[2]}<br>%{customdata[1]}<extra></extra>",
        xgap=1 if len(shown) <= NAMES_UP_TO else 0,
        ygap=2,
        colorbar=colour_bar(unit, theme),
    )
    figure = by_layer(heatmap, shown, list(rows), theme, top=64, plot_bgcolor=GAP[theme])
    table = pd.DataFrame(drawn.T, columns=beside(("layer", "component"), rows))
    table.insert(0, "component", [layer.component for layer in shown])
    table.insert(0, "layer", [layer.name for layer in shown])
    return Drawing(figure, table, f"{unit} of {len(shown)} layers.", name)


def pair_matrix(
    arrays: Arrays, titles: Sequence[str], what: Literal["cosine", "conflict"], theme: Theme, rows: Sequence[int] = ()
) -> Drawing:
    """Draw every pair of experts: cosine of their task vectors, or percent of entries with opposite signs.

    Args:
        arrays: sums over the entries of every layer.
        titles: of the experts.
        what: ``cosine`` or ``conflict``.
        theme: ``light`` or ``dark``.
        rows: layers to look at, by their place in the arrays; default all.
    """
    chosen = {name: values[list(rows)] if len(rows) else values for name, values in arrays.items()}
    summed = {name: values.sum(axis=0, keepdims=True) for name, values in chosen.items()}
    matrix = (cosines(summed) if what == "cosine" else conflicts(summed))[0]
    np.fill_diagonal(matrix, np.nan)
    names = [plain(title) for title in titles]
    digits, unit = (2, "Cosine of task vectors") if what == "cosine" else (0, "Sign conflict, percent of entries")
    low, high = _limits(matrix, what == "cosine", FULL_COSINE if what == "cosine" else 0.0)
    heatmap = go.Heatmap(
        z=matrix,
        x=names,
        y=names,
        zmin=low,
        zmax=high,
        xgap=2,
        ygap=2,
        colorscale=diverging(theme) if what == "cosine" else CIVIDIS,
        texttemplate=f"%{{z:.{digits}f}}" if len(names) <= PRINTED_UP_TO else None,
        hovertemplate=f"%{{y}}<br>%{{x}}<br>%{{z:.{digits + 1}f}}<extra></extra>",
        colorbar=colour_bar(unit, theme),
        hoverongaps=False,
    )
    figure = compose(
        [heatmap],
        theme,
        height=130 + 34 * len(names),
        plot_bgcolor=GAP[theme],
        margin={"l": 8, "r": 12, "t": 64, "b": 8},
        xaxis={"showgrid": False, "tickangle": -45, "type": "category"},
        yaxis={"autorange": "reversed", "showgrid": False, "type": "category"},
    )
    pairs = [(i, j) for i in range(len(names)) for j in range(i)]
    table = pd.DataFrame(matrix, columns=beside(("expert",), titles))
    table.insert(0, "expert", list(titles))
    highest = max((pair for pair in pairs if np.isfinite(matrix[pair])), key=matrix.__getitem__, default=None)
    alt = f"{unit} for {len(pairs)} pairs of experts." + (
        f" Highest: {titles[highest[0]]} and {titles[highest[1]]}, {matrix[highest]:.{digits + 1}f}." if highest else ""
    )
    return Drawing(figure, table, alt, f"pairs-{what}")


def fate_bars(arrays: Arrays, titles: Sequence[str], theme: Theme) -> Drawing:
    """Draw the fate of every expert's moved entries in the merged model: same sign, zeroed, flipped; all layers."""
    sums = {name: values.sum(axis=0) for name, values in arrays.items()}
    table = pd.DataFrame({"expert": list(titles)})
    bars = []
    colours = {"same": PURPLE_ORANGE[theme][-1], "zeroed": GAP[theme], "flipped": PURPLE_ORANGE[theme][0]}
    words = {"same": "Same sign", "zeroed": "Zeroed", "flipped": "Flipped"}
    for key, colour in colours.items():
        table[f"{key}_percent"] = 100 * ratio(sums[key], sums["moved"])
        hatch = {"shape": "/" if key == "flipped" else "", "fgcolor": SURFACE[theme], "fgopacity": 0.5, "solidity": 0.2}
        bars.append(
            go.Bar(
                name=words[key],
                y=[plain(title) for title in titles],
                x=table[f"{key}_percent"],
                orientation="h",
                marker={
                    "color": colour,
                    "pattern": {**hatch, "fillmode": "overlay"},
                    "line": {"color": INK[theme], "width": 0.4},
                },
                hovertemplate="%{y}<br>" + words[key] + " %{x:.1f} %<extra></extra>",
            )
        )
    figure = compose(
        bars,
        theme,
        height=90 + 30 * len(titles),
        legend=True,
        legend_traceorder="normal",
        barmode="stack",
        bargap=0.3,
        xaxis={"title": "Percent of entries that the expert moved", "range": [0, 100]},
        yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
    )
    alt = "Entries with the expert's sign in the merged model: " + listed(
        list(zip(titles, table["same_percent"].tolist(), strict=True))
    )
    return Drawing(figure, table, alt, "fate-of-entries")


def _limits(values: np.ndarray, signed: bool, least: float = 0.0) -> tuple[float, float]:
    """Return the ends of a colour scale; of signed values zero is in the middle, and the ends are ``least`` or more."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return -1.0 if signed else 0.0, 1.0
    if signed:
        reach = max(float(np.abs(finite).max()), least) or 1.0
        return -reach, reach
    return float(finite.min()), float(finite.max())
