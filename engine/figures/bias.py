"""Representation bias: how far a state's features are from the experts'. Distances live in feature space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..report import Report
from .drawing import Drawing, beside, compose, listed, number, plain, task_titles, under_groups
from .palette import Theme, fill, state_colour, state_title

CLASSES_SHOWN = 30


@dataclass(frozen=True)
class Measure:
    """A distance (or similarity) between a state's features and the expert's."""

    name: str
    title: str
    unit: str
    explanation: str
    closer: str = "lower is closer"
    digits: int = 3


MEASURES = {
    "l1": Measure("l1", "L1", "feature units", "mean over images and dimensions of |z − z_expert|"),
    "l2": Measure("l2", "L2", "feature units", "mean Euclidean distance to the expert's feature", digits=2),
    "cosine": Measure("cosine", "Cosine", "1 − cos", "mean of 1 − cos between the two features"),
    "cka": Measure("cka", "CKA", "0 to 1", "linear CKA, the similarity of the two geometries", "higher is closer"),
}


def bias_table(report: Report, measure: str) -> pd.DataFrame:
    """Return a row per task and state: task, title, state, value (NaN where undefined), n (evaluation images)."""
    titles = task_titles(report)
    rows = [
        {
            "task": task,
            "title": titles[task],
            "state": state,
            "value": np.nan if value is None else value,
            "n": report.samples[task].evaluate if task in report.samples else 0,
        }
        for state in bias_states(report)
        for task, value in getattr(report.bias[state], measure).items()
        if task in report.tasks
    ]
    return pd.DataFrame(rows, columns=["task", "title", "state", "value", "n"])


def bias_states(report: Report) -> list[str]:
    """Return the states whose distance to the experts was measured, in the order in which states are shown."""
    return [state for state in report.states() if state in report.bias and state != "expert"]


def bias_bars(report: Report, measure: str, theme: Theme, states: Sequence[str] | None = None) -> Drawing:
    """Draw grouped bars of one measure: a group per task, a bar per state."""
    known = MEASURES[measure]
    table = bias_table(report, measure)
    chosen = [state for state in bias_states(report) if states is None or state in states]
    bars = [_bar(report, state, chosen, table[table["state"] == state], known.digits, theme) for state in chosen]
    figure = compose(
        bars,
        theme,
        height=340,
        legend=True,
        barmode="group",
        bargap=0.25,
        bargroupgap=0.04,
        hovermode="x unified",
        xaxis={"type": "category"},
        yaxis={"title": f"{known.title} to the expert ({known.unit})", "rangemode": "tozero"},
    )
    inside = table[table["task"].isin(report.tasks_of("in"))]
    means = [(state_title(state, report), _mean(inside, state)) for state in chosen]
    alt = (
        f"{known.title} between features and the expert's, {known.closer}. "
        f"Means over in-domain tasks: {listed(means, '', known.digits)}."
    )
    return Drawing(figure, table[table["state"].isin(chosen)].reset_index(drop=True), alt, f"bias-{measure}")


def class_bias(report: Report, task: str, theme: Theme, states: Sequence[str] | None = None) -> Drawing:
    """Draw the L1 distance to the expert per class of one task: a row per class, a dot per state, farthest first."""
    classes = report.tasks[task].classes
    chosen = [
        state
        for state in bias_states(report)
        if task in report.bias[state].l1_by_class and (states is None or state in states)
    ]
    columns = dict(zip(chosen, beside(("class",), chosen, "state"), strict=True))
    table = pd.DataFrame(
        {columns[state]: pd.Series(report.bias[state].l1_by_class[task], dtype=float) for state in chosen},
        index=range(len(classes)),
        columns=list(columns.values()),
    )
    table.insert(0, "class", list(classes))
    order = "merged" if "merged" in chosen else columns[chosen[0]] if chosen else "class"
    table = table.sort_values(order, ascending=False, kind="stable", na_position="last").reset_index(drop=True)
    shown = table.head(CLASSES_SHOWN)
    names = [plain(name) for name in shown["class"]]
    dots = [
        go.Scatter(
            name=plain(state_title(state, report)),
            x=shown[columns[state]].tolist(),
            y=names,
            mode="markers",
            marker={"color": state_colour(state, theme), "size": 10, "symbol": _symbol(state, chosen)},
            hovertemplate="%{x:.3f}",
        )
        for state in chosen
    ]
    figure = compose(
        [*_connections(shown[list(columns.values())], names, theme), *dots],
        theme,
        height=110 + 24 * len(names),
        legend=True,
        hovermode="y unified",
        xaxis={"title": "L1 to the expert (feature units)", "rangemode": "tozero"},
        yaxis={"type": "category", "autorange": "reversed", "dtick": 1, "showgrid": False},
    )
    first = shown.iloc[0] if len(shown) and chosen else None
    worst = "" if first is None else f" Farthest: {first['class']} at {number(first[order], 3)}."
    more = f" The {CLASSES_SHOWN} farthest of {len(classes)} classes." if len(classes) > CLASSES_SHOWN else ""
    alt = f"L1 distance to the expert per class of {report.tasks[task].title or task}.{worst}{more}"
    return Drawing(figure, table, alt, f"bias-by-class-{task}")


def _bar(report: Report, state: str, states: Sequence[str], rows: pd.DataFrame, digits: int, theme: Theme) -> go.Bar:
    return go.Bar(
        name=plain(state_title(state, report)),
        x=under_groups(rows["title"]),
        y=rows["value"].tolist(),
        customdata=rows["n"].tolist(),
        marker=fill(state, states, theme),
        hovertemplate=f"%{{y:.{digits}f}} (n = %{{customdata:,}})",
    )


def _connections(values: pd.DataFrame, names: Sequence[str], theme: Theme) -> list[go.Scatter]:
    """Return a thin line from the nearest to the farthest state of every class."""
    if values.shape[1] < 2:
        return []
    low, high = values.min(axis=1), values.max(axis=1)
    xs = [x for pair in zip(low, high, strict=True) for x in (*pair, None)]
    ys = [y for name in names for y in (name, name, None)]
    line = {"color": state_colour("pretrained", theme), "width": 1}
    return [go.Scatter(x=xs, y=ys, mode="lines", line=line, showlegend=False, hoverinfo="skip")]


def _symbol(state: str, states: Sequence[str]) -> str:
    """Return triangle for merged, circle for pretrained; calibrators are squares, then diamonds and crosses."""
    fixed = {"merged": "triangle-up", "pretrained": "circle-open", "multitask": "star", "kd4mtl": "star-diamond"}
    others = [name for name in states if name not in fixed]
    return fixed.get(state) or ("square", "diamond", "cross", "x", "hexagon")[others.index(state) % 5]


def _mean(table: pd.DataFrame, state: str) -> float | None:
    values = table.loc[table["state"] == state, "value"].dropna()
    return float(values.mean()) if len(values) else None
