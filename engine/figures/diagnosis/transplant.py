"""The fifth answer: which weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ...rounding import rounded
from ..drawing import Drawing, compose, number, plain
from ..palette import TASKS, Theme, state_colour
from .answer import Answer, Gain, Scope, Verdicts, gain

KINDS = {
    "embedding": "Embedding",
    "block": "Whole block",
    "attention": "Attention",
    "mlp": "MLP",
    "norm": "Norms",
    "read-out": "Read-out",
}
DIRECTIONS = {"given": "The expert's part in the merged model", "taken": "The merged model's part in the expert"}


def transplant_table(document: Mapping[str, Any], scope: Scope) -> pd.DataFrame:
    """Return a row a part and exchange (given, other, taken): points that the scope's images gain by it."""
    part = document["tasks"][scope.task]
    verdicts = Verdicts.of(part, scope)
    start = {name: verdicts.right(part["right"][name]) for name in ("merged", "expert")}
    before = {"given": start["merged"], "other": start["merged"], "taken": start["expert"]}
    rows = []
    for one in part["parts"]:
        for exchange, values in before.items():
            if exchange in one:
                change = gain(values, verdicts.right(one[exchange]))
                place = KINDS[one["kind"]] if one["kind"] in ("embedding", "read-out") else f"Block {one['block']}"
                rows.append(
                    (place, one["kind"], exchange, change.points, change.half, change.images, one["parameters"])
                )
    columns = ["place", "kind", "exchange", "points", "half", "images", "parameters"]
    return pd.DataFrame(rows, columns=columns)


def transplant_answer(document: Mapping[str, Any], scope: Scope, titles: Mapping[str, str], theme: Theme) -> Answer:
    """Return which parts of the network carry the loss.

    Raises:
        DataError: none of the scope's images was measured.
    """
    part = document["tasks"][scope.task]
    verdicts, table = Verdicts.of(part, scope), transplant_table(document, scope)
    whole = table[table["kind"].isin(["block", "embedding", "read-out"])]
    given = whole[whole["exchange"] == "given"].sort_values("points", ascending=False)
    best = given.iloc[0]
    sentence = f"{_part(best)} of the expert, put back into the merged model, gives {_gain(best).words}"
    control = table[
        (table["exchange"] == "other") & (table["place"] == best["place"]) & (table["kind"] == best["kind"])
    ]
    if len(control):
        sentence += (
            f"; the same part of {titles.get(part['other'], part['other'])}'s expert {_gain(control.iloc[0]).words}"
        )
    sentence += "."
    small = table[(table["exchange"] == "given") & table["kind"].isin(["attention", "mlp", "norm"])]
    if len(small):
        top = small.sort_values("points", ascending=False).iloc[0]
        name = f"{KINDS[top['kind']]} of {top['place'].lower()}"
        sentence += f" Of parts of blocks, {name} alone gives {_gain(top).words}."
    taken = whole[whole["exchange"] == "taken"].sort_values("points")
    notes = []
    if len(taken):
        worst = taken.iloc[0]
        notes.append(
            f"The other way round: the merged model's {_part(worst, False)} in the expert, {_gain(worst).words}."
        )
    total = int(
        table[table["exchange"] == "given"].query("kind in ['block', 'embedding', 'read-out']")["parameters"].sum()
    )
    notes.append(f"{_part(best)} holds {rounded(100 * best['parameters'] / max(total, 1), 0)} % of the parameters.")
    said = (
        f"The open marks put the same part of {titles.get(part['other'], part['other'])}'s expert there instead: "
        "what any undisturbed part would do."
        if part["other"]
        else "There is one expert, so no other's part serves as a control."
    )
    drawings = tuple(_figure(table, exchange, scope, theme) for exchange in DIRECTIONS)
    unit = "Points of accuracy; lines are 95 % intervals, paired by image"
    return Answer(5, sentence, drawings, unit, verdicts.count, verdicts.available(scope), said, tuple(notes))


def _part(row: pd.Series, start: bool = True) -> str:
    words = f"The {row['place'].lower()}" if row["kind"] in ("embedding", "read-out") else row["place"]
    return words if start else words.removeprefix("The ").lower()


def _gain(row: pd.Series) -> Gain:
    return Gain(float(row["points"]), float(row["half"]), int(row["images"]))


def _figure(table: pd.DataFrame, exchange: str, scope: Scope, theme: Theme) -> Drawing:
    shown, traces = table[table["exchange"] == exchange], []
    places = list(dict.fromkeys(table["place"]))
    tones = {
        "block": state_colour("corrected", theme),
        "attention": TASKS[theme][2],
        "mlp": TASKS[theme][4],
        "norm": TASKS[theme][7],
    }
    groups = {
        "Whole part": ("block", "embedding", "read-out"),
        "Attention": ("attention",),
        "MLP": ("mlp",),
        "Norms": ("norm",),
    }
    for title, kinds in groups.items():
        rows = shown[shown["kind"].isin(kinds)]
        traces.append(
            go.Bar(
                name=title,
                x=rows["place"].tolist(),
                y=rows["points"].tolist(),
                marker={"color": tones[kinds[0]]},
                error_y={
                    "type": "data",
                    "array": rows["half"].tolist(),
                    "thickness": 1,
                    "width": 2,
                    "color": state_colour("expert", theme),
                },
                offsetgroup=title,
                hovertemplate=f"%{{x}}, {title.lower()}: %{{y:+.1f}} points<extra></extra>",
            )
        )
    other = table[(table["exchange"] == "other") & table["kind"].isin(groups["Whole part"])]
    if exchange == "given" and len(other):
        traces.append(
            go.Scatter(
                name="Another expert's whole part",
                x=other["place"].tolist(),
                y=other["points"].tolist(),
                mode="markers",
                marker={
                    "symbol": "diamond-open",
                    "size": 11,
                    "line": {"width": 2},
                    "color": state_colour("expert", theme),
                },
                hovertemplate="%{x}: %{y:+.1f} points<extra>another expert's</extra>",
            )
        )
    figure = compose(
        traces,
        theme,
        height=340,
        legend=True,
        xaxis={"type": "category", "showgrid": False, "categoryorder": "array", "categoryarray": places},
        yaxis={"title": f"{plain(DIRECTIONS[exchange])}<br>(points)", "zeroline": True},
        barmode="group",
        bargap=0.25,
    )
    best = shown.loc[shown["points"].abs().idxmax()]
    alt = (
        f"{DIRECTIONS[exchange]}, effect on {scope.title}, part by part. Largest: {KINDS[best['kind']].lower()}, "
        f"{best['place'].lower()}, {number(best['points'])} points."
    )
    return Drawing(
        figure,
        shown if exchange == "taken" else table[table["exchange"] != "taken"],
        alt,
        f"diagnosis-{exchange}-{scope.task}",
    )
