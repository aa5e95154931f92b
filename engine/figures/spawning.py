"""Instability of a training over the step at which two of its runs part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from .drawing import Drawing, compose, number
from .palette import MUTED, STATES, Theme

STABLE = 2.0  # points of error, in which Frankle et al. call a network stable


def spawning_figure(document: Mapping[str, Any], theme: Theme) -> Drawing:
    """Draw the instability against the parting step, with the level below which a training counts as stable.

    Where several pairs of runs were trained, the line is their mean and each is a point beside it.

    Args:
        document: what the view left.
        theme: ``light`` or ``dark``.
    """
    parts = document["parts"]
    table = pd.DataFrame([{name: part[name] for name in ("part", "instability", "barrier")} for part in parts])
    pairs = [(part["part"], pair["instability"]) for part in parts for pair in part["pairs"]]
    several = len(pairs) > len(parts)
    if several:
        ranges = [[pair["instability"] for pair in part["pairs"]] for part in parts]
        table["pairs"] = [len(values) for values in ranges]
        table["lowest"], table["highest"] = [min(values) for values in ranges], [max(values) for values in ranges]
    line = go.Scatter(
        x=table["part"],
        y=table["instability"],
        mode="lines+markers",
        line={"color": STATES[theme]["merged"], "width": 2.2},
        hovertemplate="parted at step %{x}: %{y:.2f} points<extra></extra>",
    )
    each = go.Scatter(
        x=[part for part, _ in pairs],
        y=[value for _, value in pairs],
        mode="markers",
        marker={"color": MUTED[theme], "size": 6, "opacity": 0.6},
        hovertemplate="one pair, parted at step %{x}: %{y:.2f} points<extra></extra>",
    )
    level = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": STABLE, "y1": STABLE}
    figure = compose(
        [each, line] if several else [line],
        theme,
        height=340,
        xaxis={"title": f"Step at which two runs part, of {document['steps']:,}"},
        yaxis={"title": "Instability (points of error)", "rangemode": "tozero"},
        shapes=[{**level, "line": {"color": MUTED[theme], "width": 1, "dash": "dash"}}],
    )
    said = ", ".join(f"{number(row.instability, 2)} at step {row.part}" for row in table.itertuples())
    mean = f", means of {len(parts[0]['pairs'])} pairs" if several else ""
    alt = f"Instability in points of error{mean}: {said}; stable is below {STABLE:g}."
    return Drawing(figure, table, alt, "spawning")
