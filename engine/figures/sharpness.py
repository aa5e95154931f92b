"""The loss around experts of one task: along the other experts' task vectors, and along random directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ..catalog import FINE_TUNING
from .drawing import Drawing, compose, number, plain
from .palette import Theme, task_colours

KINDS = {"others": ("other experts' vectors", "solid"), "random": ("random directions", "dot")}


def sharpness_figure(document: Mapping[str, Any], theme: Theme) -> Drawing:
    """Draw the mean loss of each kind of direction over the distance, a colour a recipe of fine-tuning.

    Args:
        document: what the view left.
        theme: ``light`` or ``dark``.
    """
    distances, recipes = document["distances"], document["recipes"]
    colours, lines, rows, said = task_colours(list(recipes), theme), [], [], []
    for name, found in recipes.items():
        title = FINE_TUNING[name].title if name in FINE_TUNING else name.capitalize()
        for kind, (words, dash) in KINDS.items():
            mean = [sum(column) / len(column) for column in zip(*found[kind], strict=True)]
            label = f"{title}, {words}"
            lines.append(
                go.Scatter(
                    name=plain(label),
                    x=distances,
                    y=mean,
                    mode="lines+markers",
                    marker={"size": 5},
                    line={"color": colours[name], "dash": dash, "width": 2},
                    hovertemplate=f"{plain(label)}: %{{y:.3f}}<extra></extra>",
                )
            )
            rows += [
                {"recipe": title, "direction": words, "distance": d, "loss": loss, "curves": len(found[kind])}
                for d, loss in zip(distances, mean, strict=True)
            ]
            if kind == "others":
                said.append(f"{title} {number(max(mean) - mean[0], 3)}")
    figure = compose(
        lines,
        theme,
        height=420,
        legend=True,
        xaxis={"title": "Distance, in the other experts' task vectors"},
        yaxis={"title": "Cross-entropy (nats)", "rangemode": "tozero"},
    )
    alt = f"Highest rise of the loss along the other experts' task vectors: {', '.join(said)} nats."
    return Drawing(figure, pd.DataFrame(rows), alt, "sharpness")
