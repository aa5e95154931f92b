"""Singular spectra of task matrices, and how many directions they really use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..analysis.spectra import effective_rank, energy_rank, stable_rank
from .drawing import Drawing, beside, compose, listed, plain
from .palette import Theme, state_colour, task_colours
from .weights import layer_heatmap

MERGED = "merged"
RANKS = {
    "effective": ("Effective rank", "exp of the entropy of σ / Σσ", effective_rank),
    "energy": ("Directions for 90 % of the energy", "Singular values that hold 90 % of Σσ²", energy_rank),
    "stable": ("Stable rank", "‖M‖² / σ₁²", stable_rank),
}


def rank_figure(
    spectra: Mapping[str, np.ndarray],
    layers: Sequence[str],
    models: Sequence[str],
    titles: Sequence[str],
    kind: str,
    theme: Theme,
    *,
    relative: bool = True,
) -> Drawing:
    """Draw the number of directions that the task matrices of every model use, by layer.

    Args:
        spectra: ``MODEL/LAYER`` → singular values, descending.
        layers: the matrices.
        models: experts, and ``merged`` where there is one merged vector.
        titles: of the models.
        kind: a row of ``RANKS``.
        theme: ``light`` or ``dark``.
        relative: in percent of the rank that a matrix could have.
    """
    title, unit, measure = RANKS[kind]
    values = np.array([[measure(spectra[f"{model}/{layer}"]) for layer in layers] for model in models], dtype=float)
    full = np.array([len(spectra[f"{models[0]}/{layer}"]) for layer in layers], dtype=float)
    drawn = 100 * values / full if relative else values
    unit = f"{title}, percent of the full rank" if relative else f"{title}: {unit}"
    drawing = layer_heatmap(drawn, layers, titles, theme, unit=unit, digits=1, name=f"rank-{kind}")
    means = listed(list(zip(titles, map(float, drawn.mean(axis=1)), strict=True)), " %" if relative else "")
    return Drawing(drawing.figure, drawing.table, f"{title} of {len(layers)} matrices. Means: {means}", drawing.name)


def spectrum_figure(
    spectra: Mapping[str, np.ndarray],
    layer: str,
    models: Sequence[str],
    titles: Sequence[str],
    theme: Theme,
    *,
    cumulative: bool = False,
) -> Drawing:
    """Draw singular values of one layer, each model's divided by its own largest; or the energy of the leading ones."""
    colours = task_colours([model for model in models if model != MERGED], theme)
    lines, table = [], pd.DataFrame()
    for model, title in zip(models, titles, strict=True):
        values = np.asarray(spectra[f"{model}/{layer}"], dtype=float)
        table[beside(("index",), [title])[0]] = values
        if cumulative:
            squares = np.cumsum(values**2)
            drawn = 100 * squares / squares[-1] if squares.size and squares[-1] > 0 else np.zeros_like(values)
        else:
            drawn = (
                np.where(values > 0, values / values[0], np.nan) if values.size and values[0] > 0 else values * np.nan
            )
        merged = model == MERGED
        lines.append(
            go.Scatter(
                name=plain(title),
                x=list(range(1, len(values) + 1)),
                y=drawn,
                mode="lines",
                line={
                    "color": state_colour(MERGED, theme) if merged else colours[model],
                    "width": 3 if merged else 1.6,
                    "dash": "dash" if merged else "solid",
                },
                hovertemplate="%{y:.1f} %" if cumulative else "%{y:.2g}",
            )
        )
    table.insert(0, "index", np.arange(1, len(table) + 1))
    yaxis = (
        {"title": "Energy of the leading values (%)", "range": [0, 103]}
        if cumulative
        else {"title": "σ / largest σ", "type": "log", "exponentformat": "power", "dtick": 1}
    )
    figure = compose(
        lines,
        theme,
        height=380,
        legend=True,
        hovermode="x unified",
        yaxis=yaxis,
        xaxis={"title": "Singular value number", "rangemode": "tozero"},
    )
    ranks = [(t, effective_rank(spectra[f"{m}/{layer}"])) for m, t in zip(models, titles, strict=True)]
    return Drawing(figure, table, f"Singular values of {layer}. Effective ranks: {listed(ranks, '')}", "spectrum")
