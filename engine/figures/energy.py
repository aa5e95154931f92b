"""Energy of own and other tasks' inputs in the subspaces that experts' updates read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from .drawing import Drawing, compose, number, plain, under_groups
from .palette import STATES, Theme

SERIES = {"own": ("Own task", "merged"), "others": ("Other tasks", "corrected"), "random": ("Random", "pretrained")}


def energy_figure(document: Mapping[str, Any], titles: Mapping[str, str], theme: Theme) -> Drawing:
    """Draw three bars an expert: the share of energy of its own inputs, of others', and of a random subspace.

    Args:
        document: what the view left.
        titles: of the experts.
        theme: ``light`` or ``dark``.
    """
    experts = document["experts"]
    names = [titles.get(name, name) for name in experts]
    means = {kind: [_mean(found[kind]) for found in experts.values()] for kind in SERIES}
    bars = [
        go.Bar(
            name=title,
            x=under_groups(names),
            y=[100 * value for value in means[kind]],
            marker={"color": STATES[theme][colour]},
            hovertemplate=f"%{{x}}, {plain(title)}: %{{y:.1f}} %<extra></extra>",
        )
        for kind, (title, colour) in SERIES.items()
    ]
    figure = compose(
        bars,
        theme,
        height=380,
        legend=True,
        barmode="group",
        yaxis={"title": "Share of the inputs' energy (%)", "rangemode": "tozero"},
    )
    rows = [
        {
            "expert": titles.get(name, name),
            "directions": found["from"],
            "rank": found["rank"],
            "matrix": matrix,
            **{title: 100 * found[kind][place] for kind, (title, _) in SERIES.items()},
        }
        for name, found in experts.items()
        for place, matrix in enumerate(document["matrices"])
    ]
    own, others = (sum(means[kind]) / len(means[kind]) for kind in ("own", "others"))
    alt = (
        f"Experts' subspaces hold {number(100 * own)} % of the energy of their own task's inputs and "
        f"{number(100 * others)} % of the other tasks'."
    )
    return Drawing(figure, pd.DataFrame(rows), alt, "energy")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def images_used(document: Mapping[str, Any]) -> str:
    """Return how many images of a task were looked at, for people: a range where tasks have other numbers of them."""
    counts = document["images"]
    return str(counts) if isinstance(counts, int) else f"{counts[0]} to {counts[-1]}"
