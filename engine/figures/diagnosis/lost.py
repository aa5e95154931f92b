"""The first answer: classes, confusions and images that a task loses by merging."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...errors import DataError
from ...report import Report
from ...rounding import rounded
from ..drawing import Drawing, compose, number, plain
from ..palette import MUTED, Theme, state_colour, state_title
from .answer import NAMED, Answer, Scope, gain, joined, share

MOST = 12  # classes drawn
TEXT_AT = 102  # on the axis, right of every bar


def lost_images(samples: pd.DataFrame, scope: Scope, states: tuple[str, ...]) -> pd.DataFrame:
    """Return one row an evaluation image of the scope: index, label, and by state the prediction.

    Args:
        samples: of a run.
        scope: the images.
        states: as wide columns; those that the run lacks are left out.
    """
    own = samples[(samples["task"] == scope.task) & (samples["split"] == "evaluate")]
    own = own[own["state"].isin(states)]
    if own.empty:
        return pd.DataFrame(columns=["index", "label", *states])
    table = own.pivot(index=["index", "label"], columns="state", values="prediction").reset_index()
    table = table[scope.mask(table["index"].to_numpy(), table["label"].to_numpy())]
    there = [state for state in states if state in table]
    return table[["index", "label", *there]].dropna().astype(int)


def confusions(table: pd.DataFrame, scope: Scope) -> pd.DataFrame:
    """Return a row a class: images, percent right of expert and merged, and the wrong class that takes most of it."""
    rows = []
    for label, part in table.groupby("label"):
        wrong = part.loc[part["merged"] != label, "merged"]
        rival = int(wrong.mode().iloc[0]) if len(wrong) else -1
        rows.append(
            {
                "label": int(label),
                "class": scope.class_name(int(label)),
                "images": len(part),
                "expert": share(part["expert"] == label),
                "merged": share(part["merged"] == label),
                "taken_by": scope.class_name(rival) if rival >= 0 else "",
                "taken": share(part["merged"] == rival) if rival >= 0 else 0.0,
            }
        )
    found = pd.DataFrame(rows)
    found["points"] = found["merged"] - found["expert"]
    return found.sort_values("points", kind="stable", ignore_index=True)


def lost_answer(samples: pd.DataFrame, report: Report, scope: Scope, theme: Theme) -> Answer:
    """Return which images and classes are lost.

    Raises:
        DataError: none of the scope's images was scored by both the expert and the merged model.
    """
    calibrator = next(
        (name for name in reversed(list(report.calibrators)) if report.calibrators[name].on == "merged"), ""
    )
    table = lost_images(samples, scope, ("expert", "merged", calibrator))
    if table.empty or not {"expert", "merged"} <= set(table):
        raise DataError(f"No image of {scope.words} was scored by the expert and by the merged model.")
    expert, merged = ((table[state] == table["label"]).to_numpy() for state in ("expert", "merged"))
    found, change = confusions(table, scope), gain(expert, merged)
    worst = [row for row in found.itertuples() if row.points < 0][:NAMED]
    words = scope.words[:1].upper() + scope.words[1:]
    if len(table) == 1:
        sentence = _one(table.iloc[0], scope)
    else:
        verb = "loses" if change.points < 0 else "gains"
        sentence = (
            f"{words} {verb} {rounded(abs(change.points))} points (± {rounded(change.half)}): of {len(table)} images "
            f"the expert knows {int(expert.sum())}, the merged model {int(merged.sum())}."
        )
        if worst:
            said = [f"{row[2]} → {row.taken_by} {rounded(row.taken, 0)} %" for row in worst if row.taken_by]
            sentence += f" Most goes to: {joined(said)}." if said else ""
    lost, notes = expert & ~merged, []
    if calibrator in table and len(table) > 1:
        fixed = (table[calibrator] == table["label"]).to_numpy()
        notes.append(
            f"{int(lost.sum())} images are lost, {int((merged & ~expert).sum())} are won by merging; "
            f"{state_title(calibrator, report)} repairs {int((lost & fixed).sum())} of the lost and breaks "
            f"{int((merged & ~fixed).sum())} that were right."
        )
    drawing = _figure(found, scope, theme)
    control = (
        "The marks are the expert's own accuracy on the same images: what it does not know was never there to lose."
    )
    unit = "Percent of a class's images that are right"
    return Answer(1, sentence, (drawing,), unit, len(table), len(table), control, tuple(notes))


def _one(row: pd.Series, scope: Scope) -> str:
    truth = scope.class_name(int(row["label"]))
    said = [
        f"the {'expert' if state == 'expert' else 'merged model'} says {scope.class_name(int(row[state]))}"
        for state in ("expert", "merged")
    ]
    return f"A picture of {truth}: {said[0]}, {said[1]}."


def _figure(found: pd.DataFrame, scope: Scope, theme: Theme) -> Drawing:
    shown = found.head(MOST).iloc[::-1]
    names = [plain(name) for name in shown["class"]]
    said = [
        f"→ {plain(taken)} {number(part, 0)} %" if taken else ""
        for taken, part in zip(shown["taken_by"], shown["taken"], strict=True)
    ]
    bars = go.Bar(
        name="Merged",
        x=shown["merged"].tolist(),
        y=names,
        orientation="h",
        marker={"color": state_colour("merged", theme)},
        customdata=shown["images"].tolist(),
        hovertemplate="%{y}: %{x:.1f} % of %{customdata}<extra>Merged</extra>",
    )
    words = go.Scatter(
        x=[TEXT_AT] * len(shown),
        y=names,
        mode="text",
        text=said,
        textposition="middle right",
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )
    marks = go.Scatter(
        name="Expert",
        x=shown["expert"].tolist(),
        y=names,
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 16, "line": {"width": 3}, "color": state_colour("expert", theme)},
        hovertemplate="%{y}: %{x:.1f} %<extra>Expert</extra>",
    )
    figure = compose(
        [bars, marks, words],
        theme,
        height=80 + 30 * len(shown),
        legend=True,
        xaxis={"title": "Accuracy (%)", "range": [0, 160], "tickvals": [0, 25, 50, 75, 100]},
        yaxis={"type": "category", "showgrid": False, "dtick": 1, "tickfont": {"color": MUTED[theme]}},
        bargap=0.35,
    )
    worst = found.iloc[0]
    alt = (
        f"Accuracy of expert and merged model by class of {scope.title}. {worst['class']} changes most: "
        f"{number(worst['expert'])} to {number(worst['merged'])} %."
    )
    return Drawing(figure, found.drop(columns="label"), alt, f"diagnosis-lost-{scope.task}")


def worst_task(report: Report) -> str | None:
    """Return the in-domain task that loses most against its expert; None where nothing is scored."""
    accuracy = report.accuracy
    return min(scored_tasks(report), key=lambda task: accuracy["merged"][task] - accuracy["expert"][task], default=None)


def scored_tasks(report: Report) -> list[str]:
    """Return the in-domain tasks that have an accuracy to lose: answers that are numbers have none."""
    expert, merged = report.accuracy.get("expert", {}), report.accuracy.get("merged", {})
    return [task for task in report.tasks_of("in") if expert.get(task) is not None and merged.get(task) is not None]


def worst_class(samples: pd.DataFrame, scope: Scope) -> int | None:
    """Return the class that loses most; None where none is scored."""
    table = lost_images(samples, scope, ("expert", "merged"))
    if table.empty or not {"expert", "merged"} <= set(table):
        return None
    return int(confusions(table, scope).iloc[0]["label"])


def states_right(table: pd.DataFrame, state: str) -> np.ndarray:
    """Return whether (n,) a state is right for each image of a table."""
    return (table[state] == table["label"]).to_numpy()
