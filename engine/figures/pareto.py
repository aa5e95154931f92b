"""Gain against cost: every state of every run as a point, and the Pareto front among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..recipe import REFERENCE_STATES
from .compare import Compared, cost
from .drawing import Drawing, compose, listed, plain
from .palette import INK, MUTED, Theme, state_colour, state_title

REFERENCES = ("pretrained", *REFERENCE_STATES)  # shown, but no result of merging, so never on the front
SHAPES = {"merged": "triangle-up", "pretrained": "circle-open", "multitask": "star-open", "kd4mtl": "star-diamond-open"}
RIGHT = 0.85  # of the axis: marks beyond have their letters on the left, where there is room on a narrow screen
SQUARES = ("square", "diamond", "cross", "x", "hexagon", "pentagon")  # calibrators


@dataclass(frozen=True)
class Axis:
    """A quantity against which in-domain accuracy is drawn."""

    title: str
    text: str
    higher: bool  # whether more of it is better
    hover: str


AXES = {
    "out": Axis(
        "Out-of-domain accuracy", "Out-of-domain accuracy (%), mean over tasks", True, "%{x:.1f} % out-of-domain"
    ),
    "parameters": Axis("Extra parameters", "Parameters beyond one model", False, "%{x:,.0f} extra parameters"),
    "seconds": Axis("Time", "Seconds to merge and calibrate", False, "%{x:.1f} s to merge and calibrate"),
}


def point_table(runs: Sequence[Compared], axis: str) -> pd.DataFrame:
    """Return one row per run and state that has both values.

    Returns:
        Columns run, title, state, state_title, the axis' name, in (accuracy, percent), group (number of the runs that
        were measured on the same images) and front (whether no other merged or calibrated state of the group is at
        least as good in both and better in one).
    """
    rows, groups = [], {}
    for run in runs:
        group = groups.setdefault(_images(run), len(groups))
        for state in run.report.states():
            average = run.report.average.get(state)
            if state == "expert" or average is None or average.within is None:
                continue
            parameters, seconds = cost(run.report, state)
            value = {"out": average.out, "parameters": parameters, "seconds": seconds}[axis]
            rows.append([run.letter, run.title, state, state_title(state, run.report), value, average.within, group])
    table = pd.DataFrame(rows, columns=["run", "title", "state", "state_title", axis, "in", "group"])
    table = table.astype({axis: float}).dropna(subset=axis).reset_index(drop=True)
    table["front"] = False
    for _, part in table[~table["state"].isin(REFERENCES)].groupby("group"):
        front = pareto_front(part[axis].to_numpy(), part["in"].to_numpy(), AXES[axis].higher)
        table.loc[part.index, "front"] = front
    return table


def pareto_front(x: np.ndarray, y: np.ndarray, higher: bool) -> np.ndarray:
    """Return the points that no other one dominates: at least as good in both, better in one.

    Args:
        x: values of shape (n,).
        y: values of shape (n,), more is better.
        higher: whether more of x is better too.

    Returns:
        Truth values of shape (n,); of equal points all are on the front or none is.
    """
    gain = x if higher else -x
    as_good = (gain[None] >= gain[:, None]) & (y[None] >= y[:, None])
    better = (gain[None] > gain[:, None]) | (y[None] > y[:, None])
    return ~(as_good & better).any(axis=1)


def pareto_figure(runs: Sequence[Compared], axis: str, theme: Theme) -> Drawing:
    """Draw in-domain accuracy against another quantity: a symbol per state, runs by letter, the front dotted."""
    known, table = AXES[axis], point_table(runs, axis)
    states = list(dict.fromkeys(table["state"]))
    calibrators = [state for state in states if state not in SHAPES]
    symbols = SHAPES | {name: SQUARES[place % len(SQUARES)] for place, name in enumerate(calibrators)}
    edge = table[axis].min() + RIGHT * (table[axis].max() - table[axis].min())
    points = [_points(table[table["state"] == state], axis, edge, symbols[state], theme) for state in states]
    figure = compose(
        [*_fronts(table, axis, theme), *points],
        theme,
        height=420,
        legend=True,
        xaxis={"title": known.text, **({} if known.higher else {"rangemode": "tozero"})},
        yaxis={"title": "In-domain accuracy (%), mean over tasks"},
    )
    best = table[table["front"]].sort_values("in", ascending=False)
    names = best["run"] + " " + best["state_title"]
    values = listed(list(zip(names, best["in"], strict=True))) or "none"
    alt = f"{len(table)} states by in-domain accuracy and {known.title.lower()}. On the Pareto front: {values}."
    return Drawing(figure, table, alt, f"pareto-{axis}")


def _points(rows: pd.DataFrame, axis: str, edge: float, symbol: str, theme: Theme) -> go.Scatter:
    """Return one state's points; runs that share a point share a mark, their letters beside it."""
    groups = rows.groupby([axis, "in"], sort=False)
    places = [place for place, _ in groups]
    members = [group for _, group in groups]
    state = rows["state"].iloc[0]
    front = [bool(group["front"].any()) for group in members]
    names = ["<br>".join(f"{row.run}: {plain(row.title)}" for row in group.itertuples()) for group in members]
    title = plain(rows["state_title"].iloc[0])
    return go.Scatter(
        name=title,
        x=[x for x, _ in places],
        y=[y for _, y in places],
        mode="markers+text",
        text=[
            f"<b>{', '.join(group['run'])}</b>" if up else ", ".join(group["run"])
            for group, up in zip(members, front, strict=True)
        ],
        textposition=["middle left" if x > edge else "middle right" for x, _ in places],
        textfont={"color": INK[theme], "size": 13},
        cliponaxis=False,
        marker={
            "color": state_colour(state, theme),
            "size": [15 if up else 11 for up in front],
            "symbol": symbol,
            "opacity": [1.0 if up or state in REFERENCES else 0.6 for up in front],
            "line": {"width": [1.5 if up or state in REFERENCES else 0 for up in front], "color": INK[theme]},
        },
        customdata=names,
        hovertemplate=f"<b>{title}</b><br>%{{customdata}}<br>%{{y:.1f}} % in-domain<br>{AXES[axis].hover}"
        "<extra></extra>",
    )


def _fronts(table: pd.DataFrame, axis: str, theme: Theme) -> list[go.Scatter]:
    """Return every group's front as a dotted staircase, the edge of what is reached."""
    line = {"color": MUTED[theme], "width": 1.4, "dash": "dot", "shape": "vh" if AXES[axis].higher else "hv"}
    rows = table[table["front"]].drop_duplicates([axis, "in", "group"]).sort_values(axis)
    return [
        go.Scatter(
            name="Pareto front",
            x=part[axis].tolist(),
            y=part["in"].tolist(),
            mode="lines",
            line=line,
            hoverinfo="skip",
            showlegend=place == 0,
        )
        for place, (_, part) in enumerate(rows.groupby("group"))
    ]


def _images(run: Compared) -> tuple[Any, ...]:
    """Return a value that is equal for runs measured on the same images, calibrators adapting likewise."""
    report = run.report
    counts = tuple(sorted((task, samples.evaluate, samples.adapt) for task, samples in report.samples.items()))
    roles = tuple(sorted((task, summary.domain) for task, summary in report.tasks.items()))
    return report.zoo.digest, report.protocol, report.split_seed, counts, roles
