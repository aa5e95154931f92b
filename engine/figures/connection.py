"""The loss between two models before and after their units are matched, and how alike their units are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from .drawing import Drawing, compose, number, plain
from .palette import STATES, Theme

KINDS = {"plain": ("As they are", "expert", "dot"), "aligned": ("Matched", "corrected", "solid")}
KINDS |= {"repaired": ("Matched and repaired", "merged", "dash")}
ZIPS = {"same": "In the same place", "across": "Across, other places", "within": "Within one", "single": "Alone"}


def connection_figure(document: Mapping[str, Any], ends: tuple[str, str], theme: Theme) -> Drawing:
    """Draw the mean loss over tasks against the position on the path, a line for each kind of path.

    Args:
        document: what the view left.
        ends: titles of both models.
        theme: ``light`` or ``dark``.
    """
    alphas, tasks = document["alphas"], document["tasks"]
    lines, rows = [], []
    for kind, (title, colour, dash) in KINDS.items():
        mean = {
            quantity: [
                sum(column) / len(tasks)
                for column in zip(*(found[kind][quantity] for found in tasks.values()), strict=True)
            ]
            for quantity in ("loss", "accuracy")
        }
        lines.append(
            go.Scatter(
                name=title,
                x=alphas,
                y=mean["loss"],
                mode="lines+markers",
                line={"color": STATES[theme][colour], "dash": dash, "width": 2.2},
                customdata=mean["accuracy"],
                hovertemplate=f"{title}: %{{y:.3f}} nats, %{{customdata:.1f}} %<extra></extra>",
            )
        )
        rows += [
            {"path": title, "task": task, "alpha": alpha, **{q: found[kind][q][place] for q in ("loss", "accuracy")}}
            for task, found in tasks.items()
            for place, alpha in enumerate(alphas)
        ]
    figure = compose(
        lines,
        theme,
        height=400,
        legend=True,
        hovermode="x unified",
        xaxis={"title": f"Position α: 0 is {plain(ends[0])}, 1 is {plain(ends[1])}", "range": [0, 1]},
        yaxis={"title": "Cross-entropy (nats)", "rangemode": "tozero"},
    )
    said = ", ".join(f"{KINDS[kind][0].lower()} {number(value, 3)}" for kind, value in barriers(document).items())
    return Drawing(figure, pd.DataFrame(rows), f"Mean loss barrier: {said} nats.", "connection")


def group_title(name: str) -> str:
    """Return a group of units for people: its kind, and of which block, from 1."""
    kind, _, number = name.rpartition("_")
    return f"{kind} of block {int(number) + 1}" if kind and number.isdecimal() else name


def barriers(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean loss barrier over tasks, by kind of path."""
    tasks = document["tasks"].values()
    return {kind: sum(found[kind]["barrier"] for found in tasks) / len(tasks) for kind in KINDS}


def units_table(document: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row a group of units: how many were moved, found again, and how alike they are in the same place."""
    units = document["units"]
    return pd.DataFrame(
        [
            {
                "group": group_title(group),
                "moved": 100 * units["moved"].get(group, 0.0),
                "found": 100 * units["found"][group],
                "before": units["before"][group],
                "after": units["after"][group],
            }
            for group in units["found"]
        ]
    )


def zip_figure(document: Mapping[str, Any], theme: Theme) -> Drawing:
    """Draw for each block what ZipIt makes of both models' hidden units, in percent of its groups."""
    zips = document["units"]["zips"]
    colours = [STATES[theme][name] for name in ("corrected", "merged", "pretrained", "multitask")]
    blocks = [f"Block {int(group.rpartition('_')[2]) + 1}" for group in zips]
    bars = [
        go.Bar(
            name=title,
            x=blocks,
            y=[100 * found[kind] for found in zips.values()],
            marker={"color": colour},
            hovertemplate=f"%{{x}}, {title.lower()}: %{{y:.0f}} %<extra></extra>",
        )
        for (kind, title), colour in zip(ZIPS.items(), colours, strict=True)
    ]
    figure = compose(
        bars,
        theme,
        height=320,
        legend=True,
        barmode="stack",
        yaxis={"title": "Groups of hidden units (%)", "range": [0, 100]},
    )
    table = pd.DataFrame([{"block": block, **found} for block, found in zip(blocks, zips.values(), strict=True)])
    same = sum(found["same"] for found in zips.values()) / len(zips)
    return Drawing(
        figure, table, f"ZipIt merges {number(100 * same, 0)} % of units with the one in their place.", "zip"
    )
