"""Accuracy of a run's states on images of a shifted domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go

from ..analysis.accuracy import mean
from ..report import Report
from .block_bias import SYMBOLS
from .drawing import Drawing, compose, listed, plain, wrapped
from .palette import GRID, Theme, state_colour, state_title

QUANTITIES = {"accuracy": "Accuracy (%)", "l1": "L1 to the expert on the same images (feature units)"}
KINDS = {"none": "As they are", "noise": "Noise", "blur": "Blur", "contrast": "Low contrast", "negative": "Negatives"}
KINDS |= {"motion_blur": "Motion blur", "impulse_noise": "Impulse noise", "gaussian_noise": "Gaussian noise"}
KINDS |= {"pixelate": "Pixelate", "spatter": "Spatter", "low_contrast": "Very low contrast", "jpeg": "JPEG"}
KINDS |= {"typos": "Misspelt words", "dropped": "Missing words", "swapped": "Swapped words"}
LETTERS = 30  # of an axis title in a line on a phone
ROW = 46  # px of a kind


def shift_kinds_table(document: Mapping[str, Any], tasks: Sequence[str]) -> pd.DataFrame:
    """Return one row a kind of shift and state: means over the tasks that have this kind.

    Args:
        document: what shifting left.
        tasks: which are averaged.
    """
    parts = [document["tasks"][task] for task in tasks]
    kinds = dict.fromkeys(kind for part in parts for kind in part["shifts"])
    rows = []
    for kind in kinds:
        there = [part["shifts"][kind] for part in parts if kind in part["shifts"]]
        for state in there[0]:
            values = {name: mean(part[state][name] for part in there) for name in QUANTITIES}
            rows.append({"kind": kind, "state": state, "tasks": len(there), **values})
    return pd.DataFrame(rows)


def others_of(document: Mapping[str, Any], report: Report, tasks: Sequence[str]) -> str:
    """Return in brackets how many images there are of shifted tasks that have other numbers of them; mostly nothing."""
    found = {name: count for task in tasks for name, count in document["tasks"][task].get("images_of", {}).items()}
    said = ", ".join(f"{report.tasks[name].title or name} {count:,}" for name, count in found.items())
    return f" ({said})" if said else ""


def shift_kinds_figure(
    document: Mapping[str, Any], report: Report, quantity: Literal["accuracy", "l1"], tasks: Sequence[str], theme: Theme
) -> Drawing:
    """Draw a row a kind of shift, a mark a state; the expert's L1 is zero and left out."""
    table = shift_kinds_table(document, tasks)
    shown = table if quantity == "accuracy" else table[table["state"] != "expert"]
    titles = {kind: KINDS.get(kind) or report.tasks[kind].title or kind for kind in shown["kind"].unique()}
    marks = [
        go.Scatter(
            name=plain(state_title(state, report)),
            x=rows[quantity].tolist(),
            y=[plain(titles[kind]) for kind in rows["kind"]],
            mode="markers",
            marker={
                "size": 12,
                "symbol": SYMBOLS[number % len(SYMBOLS)],
                "color": state_colour(state, theme),
                "opacity": 0.9,
            },
            hovertemplate="%{x:.1f} %" if quantity == "accuracy" else "%{x:.3f}",
        )
        for number, (state, rows) in enumerate(shown.groupby("state", sort=False))
    ]
    figure = compose(
        marks,
        theme,
        height=110 + ROW * len(titles),
        legend=True,
        hovermode="y unified",
        xaxis={"title": wrapped(QUANTITIES[quantity], LETTERS)},
        yaxis={"autorange": "reversed", "gridcolor": GRID[theme]},
    )
    moved = shown[shown["kind"] != "none"].groupby("state", sort=False)[quantity].mean()
    unit, digits = (" %", 1) if quantity == "accuracy" else ("", 3)
    said = listed([(state_title(state, report), value) for state, value in moved.items()], unit, digits)
    return Drawing(figure, table, f"{QUANTITIES[quantity]}, mean over shifts: {said}.", f"shifted-{quantity}")
