"""Salience of layers: the heatmap, the masks at a pruning ratio η, and what is kept as η moves.

Everything is computed from the scores that the run has stored, so a page can move η freely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..analysis.layers import Layer, layers_of
from ..masks import lwptv_masks
from ..report import SaliencePart
from ..rounding import rounded
from .depth import NAMES_UP_TO, by_layer
from .drawing import Drawing, beside, colour_bar, compose, plain, vertical
from .palette import CIVIDIS, GAP, STATES, Theme, state_colour

MEGABYTE = 2**20
STEPS = 100
SHARED = "Shared mask"


@dataclass(frozen=True, eq=False)
class Kept:
    """Layers that a pruning ratio keeps.

    ``masks`` (experts, layers) and ``shared`` (layers) in the report's order of experts and layers; a layer is kept
    in the merged task vector where any expert keeps it.
    """

    eta: float
    masks: np.ndarray
    shared: np.ndarray
    layers: int
    parameters: int
    of_parameters: int

    @property
    def layers_percent(self) -> float:
        """Return the share of layers that are kept."""
        return 100.0 * self.layers / max(1, len(self.shared))

    @property
    def parameters_percent(self) -> float:
        """Return the share of parameters that are kept."""
        return 100.0 * self.parameters / max(1, self.of_parameters)

    @property
    def megabytes(self) -> float:
        """Return the size of the kept parameters in float32, in units of 2²⁰ bytes."""
        return self.parameters * 4 / MEGABYTE


def masks_at(part: SaliencePart, eta: float) -> Kept:
    """Threshold the stored scores at a pruning ratio (LwPTV, Eq. 6 to 8)."""
    masks, shared = lwptv_masks(np.array(list(part.score.values()), dtype=float), eta)
    sizes = np.array(part.parameters, dtype=np.int64)
    return Kept(eta, masks, shared, int(shared.sum()), int(sizes[shared].sum()), int(sizes.sum()))


def kept_curve(part: SaliencePart, titles: Sequence[str] | None = None) -> pd.DataFrame:
    """Return the kept layers and parameters in percent, and megabytes, for η from 0 to 1 in steps of 0.01."""
    rows = [masks_at(part, step / STEPS) for step in range(STEPS + 1)]
    names = titles or list(part.score)
    table = pd.DataFrame(
        {
            "eta": [row.eta for row in rows],
            "layers_percent": [row.layers_percent for row in rows],
            "parameters_percent": [row.parameters_percent for row in rows],
            "megabytes": [row.megabytes for row in rows],
        }
    )
    shares = np.array([row.masks.mean(axis=1) for row in rows]) * 100
    return pd.concat([table, pd.DataFrame(shares, columns=[f"{name}_layers_percent" for name in names])], axis=1)


def salience_heatmap(
    part: SaliencePart,
    theme: Theme,
    *,
    titles: Sequence[str] | None = None,
    components: Sequence[str] | None = None,
    logarithmic: bool = True,
    by_value: bool = False,
) -> Drawing:
    """Draw the salience of every layer for every expert: experts are rows, layers columns, by depth or by value.

    Args:
        part: the report's salience.
        theme: ``light`` or ``dark``.
        titles: of the experts; default their names.
        components: which kinds of layers are shown; default all.
        by_value: the layers of highest salience first, by the mean over experts; else in order of depth.
        logarithmic: colour by log₁₀; layers of salience 0 (never trained) are marked as missing then.
    """
    layers = _shown(part, components, by_value)
    scores = np.array(list(part.score.values()), dtype=float)[:, [layer.column for layer in layers]]
    names = list(titles or part.score)
    drawn = np.log10(scores, out=np.full(scores.shape, np.nan), where=scores > 0) if logarithmic else scores
    heatmap = go.Heatmap(
        z=drawn,
        x=np.arange(len(layers)),
        y=[plain(name) for name in names],
        colorscale=CIVIDIS,
        customdata=_hover(layers, part, scores),
        hovertemplate="%{y}<br>%{customdata[0]}<br>salience %{customdata[2]}<br>%{customdata[1]}<extra></extra>",
        xgap=1 if len(layers) <= NAMES_UP_TO else 0,
        ygap=2,
        colorbar=_colour_bar(drawn, logarithmic, theme),
    )
    figure = by_layer(heatmap, layers, names, theme, top=64, deep=not by_value, plot_bgcolor=GAP[theme])
    table = pd.DataFrame(scores.T, columns=beside(("layer", "component", "parameters"), names))
    table.insert(0, "parameters", [part.parameters[layer.column] for layer in layers])
    table.insert(0, "component", [layer.component for layer in layers])
    table.insert(0, "layer", [layer.name for layer in layers])
    top = max(zip(scores.mean(axis=0), layers, strict=True), key=lambda pair: pair[0], default=(0.0, None))[1]
    alt = f"Salience of {len(layers)} layers for {len(names)} experts." + (
        f" Highest on average: {top.name}." if top else ""
    )
    return Drawing(figure, table, alt, "salience")


def mask_figure(
    part: SaliencePart,
    kept: Kept,
    theme: Theme,
    *,
    titles: Sequence[str] | None = None,
    components: Sequence[str] | None = None,
    by_value: bool = False,
) -> Drawing:
    """Draw the layers that are kept: a row per expert, and the shared mask that the merge would use."""
    layers = _shown(part, components, by_value)
    columns = [layer.column for layer in layers]
    names = [*beside((SHARED,), titles or part.score), SHARED]
    rows = np.vstack([kept.masks[:, columns], 2 * kept.shared[None, columns]]).astype(float)
    off, on, shared = GAP[theme], STATES[theme]["expert"], state_colour("merged", theme)
    words = np.empty((*rows.shape, 2), dtype=object)  # an array, since Plotly looks at every entry of nested lists
    words[..., 0] = [layer.name for layer in layers]
    words[..., 1] = np.where(rows > 0, "kept", "pruned")
    heatmap = go.Heatmap(
        z=rows,
        x=np.arange(len(layers)),
        y=[plain(name) for name in names],
        zmin=0,
        zmax=2,
        colorscale=[[0, off], [1 / 3, off], [1 / 3, on], [2 / 3, on], [2 / 3, shared], [1, shared]],
        showscale=False,
        customdata=words,
        hovertemplate="%{y}<br>%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        xgap=1,
        ygap=3,
    )
    figure = by_layer(heatmap, layers, names, theme, top=8, deep=not by_value)
    table = pd.DataFrame(rows.T.astype(bool), columns=beside(("layer",), names))
    table.insert(0, "layer", [layer.name for layer in layers])
    alt = (
        f"Layers kept at a pruning ratio of {kept.eta:.2f}: {kept.layers} of {len(kept.shared)} in the shared mask, "
        f"{rounded(kept.parameters_percent)} % of the parameters."
    )
    return Drawing(figure, table, alt, f"masks-eta-{kept.eta:.2f}")


def kept_figure(curve: pd.DataFrame, kept: Kept, theme: Theme) -> Drawing:
    """Draw kept layers and parameters in percent against η, with the chosen η marked."""
    lines = [
        go.Scatter(
            name=title,
            x=curve["eta"].to_numpy(),
            y=curve[column].to_numpy(),
            mode="lines",
            line={"color": state_colour(state, theme), "width": 2.4, "dash": dash, "shape": "hv"},
            hovertemplate="%{y:.1f} %",
        )
        for column, title, state, dash in (
            ("parameters_percent", "Parameters", "merged", "solid"),
            ("layers_percent", "Layers", "expert", "dash"),
        )
    ]
    figure = compose(
        lines,
        theme,
        height=280,
        legend=True,
        hovermode="x unified",
        xaxis={"title": "Pruning ratio η", "range": [0, 1], "tickformat": ".1f"},
        yaxis={"title": "Kept in the shared mask (%)", "range": [0, 103]},
        shapes=[vertical(kept.eta, theme, "dot")],
    )
    alt = (
        f"Kept layers and parameters fall as the pruning ratio grows; at {kept.eta:.2f} {kept.layers_percent:.0f} % of "
        f"the layers and {kept.parameters_percent:.0f} % of the parameters are kept."
    )
    return Drawing(figure, curve, alt, "kept-by-eta")


def _shown(part: SaliencePart, components: Sequence[str] | None, by_value: bool) -> list[Layer]:
    chosen = [layer for layer in layers_of(part.layers) if components is None or layer.component in components]
    if by_value:
        means = np.mean(list(part.score.values()), axis=0)
        chosen.sort(key=lambda layer: -means[layer.column])
    return chosen


def _hover(layers: Sequence[Layer], part: SaliencePart, scores: np.ndarray) -> np.ndarray:
    about = [(layer.name, f"{part.parameters[layer.column]:,} parameters, {layer.component}") for layer in layers]
    found = np.empty((*scores.shape, 3), dtype=object)
    found[..., :2] = about
    found[..., 2] = [[f"{value:.3g}" for value in row] for row in scores]
    return found


def _colour_bar(drawn: np.ndarray, logarithmic: bool, theme: Theme) -> dict:
    """Return the colour bar; on a logarithmic scale it is labelled with the salience itself."""
    bar = colour_bar("Salience (mean |τ − mean τ|)", theme) | {"exponentformat": "power"}
    finite = drawn[np.isfinite(drawn)]
    if logarithmic and finite.size:
        low, high = float(finite.min()), float(finite.max())
        marks = np.linspace(low, high, 4) if high > low else np.array([low])
        bar |= {"tickvals": marks.tolist(), "ticktext": [f"{10**mark:.1g}" for mark in marks]}
    return bar
