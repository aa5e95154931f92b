"""Plots with layers on the horizontal axis, in order of depth. Columns align between all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from ..analysis.layers import Layer
from .drawing import compose, plain, vertical
from .palette import Theme

NAMES_UP_TO = 30  # layers that are named one by one; above it, blocks are
BELOW = {  # what the numbers of blocks are; an axis title may be laid on them
    "text": "Block",
    "xref": "paper",
    "yref": "paper",
    "x": 0.5,
    "y": 0,
    "yanchor": "top",
    "yshift": -20,
    "showarrow": False,
}
LETTER = 7.3  # px of a letter, on the safe side
ALWAYS = ("Shared mask",)  # rows that some plot has and others leave room for


def by_layer(
    heatmap: go.Heatmap,
    layers: Sequence[Layer],
    rows: Sequence[str],
    theme: Theme,
    *,
    top: int,
    deep: bool = True,
    **layout: Any,
) -> go.Figure:
    """Draw a plot of layers: few are named one by one, of many the blocks are. Columns align between such plots.

    ``deep``: the layers are in order of depth; else their blocks mean nothing.
    """
    named = len(layers) <= NAMES_UP_TO
    left = 14 + round(LETTER * max(len(name) for name in [*rows, *ALWAYS]))
    bottom = (
        20 + round(LETTER * max((len(layer.short) for layer in layers), default=0)) if named else 48 if deep else 32
    )
    return compose(
        [heatmap],
        theme,
        height=top + bottom + 26 * len(rows),
        margin={"l": left, "r": 12, "t": top, "b": bottom},
        xaxis={"showgrid": False, "zeroline": False, "automargin": False, **_layer_ticks(layers, named, deep)},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False, "dtick": 1, "automargin": False},
        shapes=[]
        if named or not deep
        else [vertical(start - 0.5, theme) | {"opacity": 0.5} for start in _starts(layers)[1:]],
        annotations=[BELOW] if deep and not named and any(layer.block is not None for layer in layers) else [],
        **layout,
    )


def _layer_ticks(layers: Sequence[Layer], named: bool, deep: bool) -> dict[str, Any]:
    """Return ticks under every layer, or in the middle of every block."""
    if named:
        names = [plain(layer.short) for layer in layers]
        return {"tickvals": list(range(len(layers))), "ticktext": names, "tickangle": -90}
    if not deep:
        return {"tickvals": [0, len(layers) - 1], "ticktext": ["most", "least salient"], "tickangle": 0}
    starts = _starts(layers)
    middle = [(start + end - 1) / 2 for start, end in zip(starts, [*starts[1:], len(layers)], strict=True)]
    names = [_tick(layers[start]) for start in starts]
    return {"tickvals": middle, "ticktext": names, "tickangle": 0}


def _starts(layers: Sequence[Layer]) -> list[int]:
    """Return the position at which each block begins."""
    return [i for i, layer in enumerate(layers) if i == 0 or layer.group != layers[i - 1].group]


def _tick(layer: Layer) -> str:
    """Return a block's number; the group of layers that lie in none."""
    return layer.group if layer.block is None else str(layer.block + 1)
