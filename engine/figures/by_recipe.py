"""Accuracy over the scaling coefficient, a colour a recipe of fine-tuning and a dash a way of evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ..catalog import FINE_TUNING
from .drawing import Drawing, compose, number, plain
from .palette import Theme, task_colours

DASH = {"standard": "solid", "linearised": "dash"}
ROWS = {"accuracy": ("y", "Accuracy (%)"), "normalised": ("y2", "Of the expert's (%)")}


def by_recipe_figure(document: Mapping[str, Any], theme: Theme) -> Drawing:
    """Draw absolute accuracy above normalised accuracy, both against λ.

    Args:
        document: what the view ``by_recipe`` left.
        theme: ``light`` or ``dark``.
    """
    scalings, recipes = document["scalings"], document["recipes"]
    colours, lines, rows = task_colours(list(recipes), theme), [], []
    for name, found in recipes.items():
        for forward, dash in DASH.items():
            title = _title(name) + (", linearised" if forward == "linearised" else "")
            for quantity, (axis, _) in ROWS.items():
                lines.append(
                    go.Scatter(
                        name=plain(title),
                        legendgroup=title,
                        showlegend=quantity == "accuracy",
                        x=scalings,
                        y=found[forward][quantity],
                        yaxis=axis,
                        mode="lines+markers",
                        marker={"size": 5},
                        line={"color": colours[name], "dash": dash, "width": 2},
                        hovertemplate=f"{plain(title)}: %{{y:.1f}} %<extra></extra>",
                    )
                )
            for place, scaling in enumerate(scalings):
                values = {quantity: found[forward][quantity][place] for quantity in ROWS}
                rows.append({"recipe": _title(name), "evaluated": forward, "scaling": scaling, **values})
    figure = compose(
        lines,
        theme,
        height=560,
        legend=True,
        xaxis={"title": "Scaling coefficient λ", "anchor": "y2"},
        yaxis={"title": ROWS["accuracy"][1], "domain": [0.54, 1]},
        yaxis2={"title": {"text": ROWS["normalised"][1]}, "domain": [0, 0.46], "automargin": True},
    )
    figure.layout.yaxis2.update(
        gridcolor=figure.layout.yaxis.gridcolor,
        zerolinecolor=figure.layout.yaxis.zerolinecolor,
        linecolor=figure.layout.yaxis.linecolor,
        tickfont=figure.layout.yaxis.tickfont,
    )
    figure.layout.yaxis2.title.font = figure.layout.yaxis.title.font
    table = pd.DataFrame(rows)
    return Drawing(figure, table, f"Highest accuracy over λ: {_best(document)}.", "by-recipe")


def best_table(document: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row a recipe and way of evaluation: its best λ by normalised accuracy, what it gives there, at λ = 1.

    The images that choose λ are those that are scored, as the table's reader has to be told. Where an expert is never
    right, so that nothing is a part of its accuracy, the best λ is that of the highest accuracy.
    """
    rows = []
    scalings = document["scalings"]
    for name, found in document["recipes"].items():
        for forward in DASH:
            curve = found[forward]
            chosen_by = "normalised" if curve["normalised"][0] is not None else "accuracy"
            place = max(range(len(scalings)), key=curve[chosen_by].__getitem__)
            at_one = curve["accuracy"][scalings.index(1.0)] if 1.0 in scalings else None
            rows.append(
                {
                    "recipe": _title(name),
                    "evaluated": forward,
                    "expert": curve["expert"],
                    "scaling": scalings[place],
                    "accuracy": curve["accuracy"][place],
                    "normalised": curve["normalised"][place],
                    "at_one": at_one,
                }
            )
    return pd.DataFrame(rows)


def left_out_table(document: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row a recipe and expert: what leaving the expert out at λ = 1 changes, evaluated linearised."""
    rows = [
        {"recipe": _title(name), "expert": expert, "own": changes["own"], "others": changes["others"]}
        for name, found in document["recipes"].items()
        for expert, changes in found.get("left_out", {}).items()
    ]
    return pd.DataFrame(rows, columns=["recipe", "expert", "own", "others"])


def _best(document: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{row.recipe} {row.evaluated} {number(row.accuracy)} % at λ = {row.scaling:g}"
        for row in best_table(document).itertuples()
    )


def _title(name: str) -> str:
    return FINE_TUNING[name].title if name in FINE_TUNING else name.capitalize()
