"""Learned merging coefficients: λ by expert and layer, and how two runs' coefficients compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..catalog import MERGE_METHODS, params_of
from ..report import Report
from .drawing import Drawing, compose, listed, plain
from .palette import Theme, state_colour
from .weights import layer_heatmap


@dataclass(frozen=True, eq=False)
class Learned:
    """Coefficients that a run learned: ``values`` (K, L), or (K, 1) where there is one for each task.

    ``used`` are those of the merged model: behind LwPTV, layer-wise ones are multiplied by η unless it leaves them as
    they were learned, and the layers that were pruned have none.
    """

    experts: tuple[str, ...]
    layers: tuple[str, ...]  # empty for task-wise coefficients
    values: np.ndarray
    used: np.ndarray
    pruned_by: float | None  # η of LwPTV, None without it


def learned_coefficients(report: Report) -> Learned | None:
    """Return the coefficients that a run's merge method learned; None if it learned none."""
    merged = coefficients_of(report.merged.details)
    if merged is None:
        return None
    layers, values = merged.layers, merged.values
    lwptv = next((call for call in report.recipe.transforms if call.method == "lwptv"), None)
    eta = float(lwptv.params.get("eta", 0.7)) if lwptv else None
    used = values
    if lwptv is not None and layers:
        merge = report.recipe.merge
        row = MERGE_METHODS[merge.method]
        scaled = lwptv.params.get("rescale", True) and row.learned(params_of(row, merge.params)) == "layer_coefficients"
        used = values * eta if scaled else values
        salience = report.salience
        if salience is not None and salience.applied and set(salience.layers) == set(layers):
            mask = dict(zip(salience.layers, salience.shared_mask, strict=True))
            used = np.where([mask[name] for name in layers], used, np.nan)
    return Learned(merged.experts, layers, values, used, eta)


def coefficients_of(details: Mapping[str, Any]) -> Learned | None:
    """Return coefficients by expert (``coefficients``, a number or one a layer of ``layers``); None without any.

    None also of those that are searched for groups of layers, which are no λ of a layer.
    """
    found = details.get("coefficients")
    if not isinstance(found, dict) or not found or any(isinstance(column, dict) for column in found.values()):
        return None
    layers = tuple(details.get("layers") or ())
    values = np.array([np.atleast_1d(np.asarray(column, dtype=float)) for column in found.values()])
    return None if layers and values.shape[1] != len(layers) else Learned(tuple(found), layers, values, values, None)


def coefficient_figure(
    learned: Learned,
    titles: Sequence[str],
    theme: Theme,
    *,
    used: bool = False,
    limits: tuple[float, float] | None = None,
    components: Sequence[str] | None = None,
) -> Drawing:
    """Draw λ of every expert and layer as a heatmap; task-wise ones as bars.

    Args:
        learned: the coefficients.
        titles: of the experts, in their order.
        theme: ``light`` or ``dark``.
        used: those of the merged model in place of those that were learned.
        limits: of the colours, so that two figures compare.
        components: which kinds of layers are shown; default all.
    """
    values = learned.used if used else learned.values
    if learned.layers:
        drawing = layer_heatmap(
            values,
            learned.layers,
            titles,
            theme,
            unit="Coefficient λ",
            limits=limits,
            components=components,
            name="coefficients",
        )
        means = np.nanmean(np.where(np.isfinite(values), values, np.nan), axis=1)
        alt = f"Learned coefficients of {len(learned.layers)} layers. Means: " + listed(
            list(zip(titles, map(float, means), strict=True)), "", 2
        )
        return Drawing(drawing.figure, drawing.table, alt, drawing.name)
    column = values[:, 0]
    bars = go.Bar(
        x=column,
        y=[plain(title) for title in titles],
        orientation="h",
        marker={"color": state_colour("merged", theme)},
        hovertemplate="%{y}<br>λ %{x:.3f}<extra></extra>",
    )
    figure = compose(
        [bars],
        theme,
        height=70 + 30 * len(titles),
        xaxis={"title": "Coefficient λ", "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
    )
    table = pd.DataFrame({"expert": list(titles), "coefficient": column})
    alt = "Learned coefficients: " + listed(list(zip(titles, map(float, column), strict=True)), "", 2)
    return Drawing(figure, table, alt, "coefficients")


def amplification_table(learned: Learned, other: Learned, titles: Sequence[str]) -> pd.DataFrame:
    """Return the mean coefficients by expert of two runs over the layers that both trained, and their ratio.

    Layers that one of the runs prunes get no gradient there and stay where they started, so they are left out.
    """
    both = np.isfinite(learned.used).all(axis=0) & np.isfinite(other.used).all(axis=0)
    place = [other.experts.index(name) for name in learned.experts]
    first, second = learned.values[:, both].mean(axis=1), other.values[place][:, both].mean(axis=1)
    ratio = np.divide(first, second, out=np.full(len(first), np.nan), where=second > 0)
    return pd.DataFrame({"expert": list(titles), "with": first, "without": second, "ratio": ratio})
