"""Weight disentanglement of two experts as heatmaps, the ordinary encoder beside the linearised one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from .drawing import Drawing, compose, number, plain
from .palette import CIVIDIS, INK, Theme

Quantity = Literal["disagreement", "features"]
FORWARDS = {"standard": "Ordinary encoder", "linearised": "Linearised"}


def disentanglement_figure(
    document: Mapping[str, Any], titles: Sequence[str], quantity: Quantity, theme: Theme
) -> Drawing:
    """Draw ξ(α₁, α₂) for both ways of evaluation on one scale, with the box in which λ is searched.

    Args:
        document: what the view left.
        titles: of both experts.
        quantity: ``disagreement`` (0 to 2) or ``features``.
        theme: ``light`` or ``dark``.
    """
    alphas, low, high = document["alphas"], *document["search"]
    grids = {forward: np.array(document[forward][quantity]) for forward in FORWARDS}
    top = max(float(grid.max()) for grid in grids.values()) or 1.0
    maps = [
        go.Heatmap(
            x=alphas,
            y=alphas,
            z=grid.T,  # α₁ to the right
            xaxis="x" if place == 0 else "x2",
            zmin=0,
            zmax=top,
            colorscale=CIVIDIS,
            showscale=place == 1,
            colorbar={"title": {"text": "ξ"}, "thickness": 10, "outlinewidth": 0},
            name=plain(FORWARDS[forward]),
            hovertemplate="α₁ %{x:.2f}, α₂ %{y:.2f}: ξ %{z:.3f}<extra>%{fullData.name}</extra>",
        )
        for place, (forward, grid) in enumerate(grids.items())
    ]
    box = {"type": "rect", "x0": low, "x1": high, "y0": low, "y1": high, "line": {"color": "#FFFFFF", "width": 2}}
    figure = compose(
        maps,
        theme,
        height=420,
        xaxis={"title": f"α₁ · {plain(titles[0])}", "domain": [0, 0.47]},
        yaxis={"title": f"α₂ · {plain(titles[1])}"},
        xaxis2={"title": {"text": f"α₁ · {plain(titles[0])}"}, "domain": [0.53, 1], "automargin": True},
        shapes=[{**box, "xref": "x", "yref": "y"}, {**box, "xref": "x2", "yref": "y"}],
        annotations=[
            {
                "text": plain(title),
                "x": x,
                "y": 1.0,
                "xref": "paper",
                "yref": "paper",
                "xanchor": "center",
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"color": INK[theme], "size": 13},
            }
            for title, x in zip(FORWARDS.values(), (0.235, 0.765), strict=True)
        ],
    )
    figure.layout.margin.t = 32
    figure.layout.xaxis2.tickfont = figure.layout.xaxis.tickfont
    figure.layout.xaxis2.title.font = figure.layout.xaxis.title.font
    rows = [
        {"evaluated": FORWARDS[forward], "alpha_1": one, "alpha_2": two, "xi": float(grid[i, j])}
        for forward, grid in grids.items()
        for i, one in enumerate(alphas)
        for j, two in enumerate(alphas)
    ]
    found = inside(document, quantity).items()
    said = ", ".join(f"{FORWARDS[forward]} {number(value, 3)}" for forward, value in found) or "no value was measured"
    return Drawing(figure, pd.DataFrame(rows), f"Mean ξ inside the box of the search of λ: {said}.", "disentanglement")


def inside(document: Mapping[str, Any], quantity: Quantity) -> dict[str, float]:
    """Return the mean of ξ over the grid points inside the box in which λ is searched, by way of evaluation.

    Nothing where the grid has none there but the origin, where ξ is 0 whatever the experts.
    """
    low, high = document["search"]
    chosen = [place for place, alpha in enumerate(document["alphas"]) if low - 1e-9 <= alpha <= high + 1e-9]
    if all(abs(document["alphas"][place]) < 1e-9 for place in chosen):
        return {}
    return {
        forward: float(np.array(document[forward][quantity])[np.ix_(chosen, chosen)].mean()) for forward in FORWARDS
    }
