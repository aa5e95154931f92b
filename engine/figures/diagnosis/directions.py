"""The second answer: toward which wrong class features go, and how much of their way the head can see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ...errors import DataError
from ...rounding import rounded
from ..drawing import Drawing, compose, number, plain
from ..palette import Theme, state_colour
from .answer import NAMED, Answer, Scope, joined, signed

MOST = 8  # pairs of classes drawn
FEWEST = 3  # images of a pair that is named in a sentence about many


def pairs_of(table: pd.DataFrame, scope: Scope) -> pd.DataFrame:
    """Return a row a pair of true class and the wrong class the merged model chose: images, push and its control.

    Args:
        table: what the view left, of the scope's images.
        scope: names the classes.
    """
    wrong = table[table["margin"] < 0]
    rows = [
        {
            "from": scope.class_name(int(label)),
            "to": scope.class_name(int(rival)),
            "images": len(part),
            "push": part["push"].mean(),
            "chance": part["chance"].mean(),
            "along": 100 * part["along"].mean(),
        }
        for (label, rival), part in wrong.groupby(["label", "rival"])
    ]
    columns = ["from", "to", "images", "push", "chance", "along"]
    found = pd.DataFrame(rows, columns=columns)
    return found.sort_values("images", ascending=False, kind="stable", ignore_index=True)


def direction_answer(table: pd.DataFrame, document: Mapping[str, Any], scope: Scope, theme: Theme) -> Answer:
    """Return where the features of the scope's images went.

    Raises:
        DataError: the view has none of them.
    """
    own = table[table["task"] == scope.task]
    own = own[scope.mask(own["index"].to_numpy(), own["label"].to_numpy())]
    if own.empty:
        raise DataError(f"No image of {scope.words} has features of both the expert and the merged model.")
    facts = document["tasks"][scope.task]
    inside = 100 * float((own["inside"] * own["length"] ** 2).sum() / max((own["length"] ** 2).sum(), 1e-12))
    random = 100 * facts["rank"] / facts["dim"]
    pairs = pairs_of(own, scope)
    sentence = (
        f"The merged feature is {rounded(own['length'].mean(), 2)} from the expert's (unit features). "
        f"{rounded(inside, 0)} % of the squared shift lies in the {facts['rank']} directions that the head can see, "
        f"where a random shift has {rounded(random, 0)} %; the other {rounded(100 - inside, 0)} % changes no verdict."
    )
    if len(pairs):
        told = pairs[pairs["images"] >= min(FEWEST, pairs["images"].max())].head(NAMED)
        said = [
            f"{row[1]} toward {row.to} ({signed(row.push)} logits, {row.images} images)" for row in told.itertuples()
        ]
        sentence += f" Wrong answers come from pushes of {joined(said)}."
    control = (
        f"The marks are what another image's shift would add to the same two classes: {signed(own['chance'].mean())} "
        f"logits on average over the scope, against {signed(own['push'].mean())} of each image's own."
        if own["chance"].notna().any()
        else "One image of the task was evaluated, so no other's shift serves as a control."
    )
    drawing = _figure(own, pairs, scope, theme)
    unit = "Logits that the shift adds to the wrong class, less what it adds to the true one"
    return Answer(2, sentence, (drawing,), unit, len(own), len(own), control)


def _figure(own: pd.DataFrame, pairs: pd.DataFrame, scope: Scope, theme: Theme) -> Drawing:
    shown = pairs.head(MOST)
    if shown.empty:  # nothing is wrong: the likeliest wrong class of the images that are right
        everything = own.assign(margin=-1.0)
        shown = pairs_of(everything, scope).head(MOST)
    shown = shown.iloc[::-1]
    names = [f"{plain(row[1])} → {plain(row.to)}" for row in shown.itertuples()]
    bars = go.Bar(
        name="Its own shift",
        x=shown["push"].tolist(),
        y=names,
        orientation="h",
        marker={"color": state_colour("merged", theme)},
        customdata=shown["images"].tolist(),
        text=[f"n {count}" for count in shown["images"]],
        textposition="auto",
        hovertemplate="%{y}: %{x:+.2f} logits, %{customdata} images<extra></extra>",
    )
    marks = go.Scatter(
        name="Another image's shift",
        x=shown["chance"].tolist(),
        y=names,
        mode="markers",
        marker={"symbol": "diamond-open", "size": 11, "line": {"width": 2}, "color": state_colour("expert", theme)},
        hovertemplate="%{y}: %{x:+.2f} logits<extra>another image's shift</extra>",
    )
    figure = compose(
        [bars, marks],
        theme,
        height=90 + 30 * len(shown),
        legend=True,
        xaxis={"title": "Added to the wrong class (logits)", "zeroline": True},
        yaxis={"type": "category", "showgrid": False, "dtick": 1},
        bargap=0.35,
    )
    first = shown.iloc[-1]
    alt = (
        f"Pushes toward wrong classes in {scope.title}. {first['from']} toward {first['to']}: {number(first['push'])} "
        f"logits in {first['images']} images, another image's shift {number(first['chance'])}."
    )
    return Drawing(figure, pairs if len(pairs) else shown, alt, f"diagnosis-direction-{scope.task}")
