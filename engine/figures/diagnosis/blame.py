"""The fourth answer: which experts do it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..drawing import Drawing, compose, number, plain
from ..palette import TASKS, Theme, state_colour
from .answer import Answer, Caption, Gain, Scope, Verdicts, gain

WHAT = {
    "without": "Left out of the merge",
    "replaced": "A random vector of its length instead",
    "joined": "Joined to the task's own expert",
    "stranger": "A random vector of its length joined",
}
GAINS = {1: "gains most", 0: "does not gain, nor without any other", -1: "loses least"}  # by the sign of the best gain


def blame_table(document: Mapping[str, Any], scope: Scope, titles: Mapping[str, str]) -> pd.DataFrame:
    """Return a row an expert and change: the points that the scope's images gain by it, with half of the interval.

    Args:
        document: what the view left.
        scope: the images.
        titles: of the experts.
    """
    part = document["tasks"][scope.task]
    verdicts, right = Verdicts.of(part, scope), part["right"]
    start = {"without": "merged", "replaced": "merged", "joined": "alone", "stranger": "alone"}
    rows = []
    for name in part["experts"]:
        for what, before in start.items():
            if f"{what}/{name}" in right and before in right:
                change = gain(verdicts.right(right[before]), verdicts.right(right[f"{what}/{name}"]))
                rows.append((titles.get(name, name), name, what, change.points, change.half, change.images))
    return pd.DataFrame(rows, columns=["expert", "name", "change", "points", "half", "images"])


def blame_answer(document: Mapping[str, Any], scope: Scope, titles: Mapping[str, str], theme: Theme) -> Answer:
    """Return what each expert does to the scope's images.

    Raises:
        DataError: none of the scope's images was measured.
    """
    part = document["tasks"][scope.task]
    verdicts, table = Verdicts.of(part, scope), blame_table(document, scope, titles)
    others = table[table["name"] != part["own"]]
    drop = others[others["change"] == "without"].sort_values("points", ascending=False)
    said = []
    if len(drop):
        best = drop.iloc[0]
        control = others[(others["change"] == "replaced") & (others["name"] == best["name"])]
        verb = GAINS[int(np.sign(best["points"]))]
        said.append(f"Without {best['expert']}, {scope.words} {verb}: {_gain(best).words}")
        if len(control):
            said[-1] += f"; with a random vector of the same length in its place {_gain(control.iloc[0]).words}"
            if best["points"] > best["half"] and verdicts.count > 1:
                harmless = control.iloc[0]["points"] > best["points"] / 2
                said[-1] += ", so " + (
                    "what it adds does the harm, not its length" if harmless else "length alone does it"
                )
        total = drop["points"].clip(lower=0)
        if total.sum() > 0 and len(drop) > 1 and verdicts.count > 1:
            said.append(f"{int((drop['points'] > drop['half']).sum())} of {len(drop)} other experts cost clearly")
    said += _joined(others)
    own = table[(table["name"] == part["own"]) & (table["change"] == "without")]
    notes = []
    if len(own):
        notes.append(f"Without the task's own expert: {_gain(own.iloc[0]).words}.")
    if part["refused"]:
        first = next(iter(part["refused"].values()))
        notes.append(f"{len(part['refused'])} of these merges cannot be made. {first}")
    sentence = ". ".join(said) + "." if said else "The method merges no subset of these experts."
    control = "The open marks are random vectors, tensor by tensor as long as the expert's: what length alone does."
    counts = verdicts.count, verdicts.available(scope)
    drawings, captions = _drawn(others, len(part["experts"]), counts, scope, theme)
    unit = "Points of accuracy; lines are 95 % intervals, paired by image"
    return Answer(4, sentence, drawings, unit, *counts, control, tuple(notes), captions=captions)


def _joined(others: pd.DataFrame) -> list[str]:
    """Say which expert costs most beside the task's own, or where none does, changes most."""
    join, start = others[others["change"] == "joined"], "Joined to the task's own expert alone, "
    if join.empty:
        return []
    costs = join["points"].min() < 0
    worst = join.loc[join["points"].idxmin() if costs else join["points"].idxmax()]
    if worst["points"] == 0:
        return [f"{start}no other expert changes anything"]
    control = others[(others["change"] == "stranger") & (others["name"] == worst["name"])]
    said = f"{start}{worst['expert']} {'costs' if costs else 'changes'} most: {_gain(worst).words}"
    return [said + (f", a random vector {_gain(control.iloc[0]).words}" if len(control) else "")]


def _drawn(
    table: pd.DataFrame, experts: int, counts: tuple[int, int], scope: Scope, theme: Theme
) -> tuple[tuple[Drawing, ...], tuple[Caption, ...]]:
    """Return the drawings of what could be measured, each with what it is measured against."""
    drawings, captions = [], []
    against = {
        ("without", "replaced"): f"the merge of all {experts}",
        ("joined", "stranger"): "the merge of the task's own expert alone",
    }
    for pair, start in against.items():
        drawing = _figure(table, pair, scope, theme)
        if len(drawing.table):
            drawings.append(drawing)
            said = f"Points of accuracy against {start}; lines are 95 % intervals, paired by image"
            captions.append(Caption(said, *counts))
    return tuple(drawings), tuple(captions)


def _gain(row: pd.Series) -> Gain:
    return Gain(float(row["points"]), float(row["half"]), int(row["images"]))


def _figure(table: pd.DataFrame, pair: tuple[str, str], scope: Scope, theme: Theme) -> Drawing:
    own, control = (table[table["change"] == name].set_index("name") for name in pair)
    order = own.sort_values("points", ascending=pair[0] == "without").index
    own, control = own.loc[order], control.reindex(order)
    names = [plain(name) for name in own["expert"]]
    tone = TASKS[theme][0] if pair[0] == "without" else state_colour("merged", theme)
    bars = go.Bar(
        name=WHAT[pair[0]],
        x=own["points"].tolist(),
        y=names,
        orientation="h",
        marker={"color": tone},
        error_x={
            "type": "data",
            "array": own["half"].tolist(),
            "thickness": 1.2,
            "width": 3,
            "color": state_colour("expert", theme),
        },
        hovertemplate="%{y}: %{x:+.1f} points<extra></extra>",
    )
    marks = go.Scatter(
        name=WHAT[pair[1]],
        x=control["points"].tolist(),
        y=names,
        mode="markers",
        marker={"symbol": "diamond-open", "size": 11, "line": {"width": 2}, "color": state_colour("expert", theme)},
        hovertemplate="%{y}: %{x:+.1f} points<extra>random vector</extra>",
    )
    figure = compose(
        [bars, marks],
        theme,
        height=100 + 28 * len(own),
        legend=True,
        xaxis={"title": "Change (points)", "zeroline": True},
        yaxis={"type": "category", "showgrid": False, "dtick": 1},
        bargap=0.4,
    )
    if own.empty:
        return Drawing(figure, own.reset_index(), "", f"diagnosis-{pair[0]}-{scope.task}")
    ends = [f"{own.iloc[row]['expert']} {number(own.iloc[row]['points'])}" for row in (-1, 0)]
    alt = f"{WHAT[pair[0]]}, effect on {scope.title}: from {ends[0]} to {ends[1]} points."
    both = pd.concat([own.reset_index(), control.reset_index()]).dropna(subset="points")
    return Drawing(figure, both.drop(columns="name"), alt, f"diagnosis-{pair[0]}-{scope.task}")


def most_harmful(document: Mapping[str, Any], scope: Scope) -> str | None:
    """Return the expert, not the task's own, whose absence helps most; None where nothing was measured."""
    table = blame_table(document, scope, {})
    rows = table[(table["change"] == "without") & (table["name"] != document["tasks"][scope.task]["own"])]
    return None if rows.empty else str(rows.iloc[int(np.argmax(rows["points"]))]["name"])
