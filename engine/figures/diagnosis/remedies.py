"""The seventh answer: what helps, on this task and on the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ...catalog.titles import calibrator_title
from ...recipe import Recipe
from ...report import Report
from ...rounding import rounded
from ..drawing import Drawing, begun, compose, number, plain
from ..palette import TASKS, Theme, state_colour
from .answer import NAMED, Answer, Gain, Scope, Verdicts, gain, joined, signed

DIGITS = 6  # after the point of a λ, as remedies are tried: fewer would give different ones one title
KINDS = {
    "calibrator": "Calibrator",
    "scaling": "λ",
    "without": "Expert left out",
    "pruning": "LwPTV",
    "random_layers": "Random layers dropped (control)",
}


@dataclass(frozen=True)
class Effect:
    """The effect of a change of the recipe."""

    number: int  # in the view's list
    kind: str
    title: str
    here: Gain
    others: float | None  # mean over the other tasks, in points
    change: Mapping[str, Any] | None  # keys of the recipe with their new values; None where the recipe has it


def effects(document: Mapping[str, Any], report: Report, scope: Scope, titles: Mapping[str, str]) -> list[Effect]:
    """Return the effects of all remedies on the scope's images and on the other tasks, best first.

    Args:
        document: what the view left.
        report: of the run.
        scope: the images.
        titles: of the experts.

    Raises:
        DataError: none of the scope's images was measured.
    """
    part = document["tasks"][scope.task]
    verdicts = Verdicts.of(part, scope)
    before, start = verdicts.right(part["right"]["merged"]), part["others"]["merged"]
    owner, found = {report.tasks[task].expert: task for task in report.tasks_of("in")}, []
    for place, remedy in enumerate(part["remedies"]):
        change = gain(before, verdicts.right(remedy["right"]))
        gone = owner.get(remedy["value"]) if remedy["kind"] == "without" else None
        both = [task for task in remedy["others"] if task in start and task != gone]
        points = [
            100 * (remedy["others"][task][0] / remedy["others"][task][1] - start[task][0] / start[task][1])
            for task in both
        ]
        mean = sum(points) / len(points) if points else None
        title, wanted = _title(remedy, report.recipe, titles), _change(remedy, report.recipe)
        found.append(Effect(place, remedy["kind"], title, change, mean, wanted))
    return sorted(found, key=lambda effect: -effect.here.points)


def changed(recipe: Recipe, effect: Effect) -> Recipe:
    """Return a recipe with a remedy put into it."""
    return Recipe.model_validate({**recipe.model_dump(mode="json"), **(effect.change or {})})


def remedies_answer(
    document: Mapping[str, Any], report: Report, scope: Scope, titles: Mapping[str, str], theme: Theme
) -> Answer:
    """Return what helps the scope's images most, and what it does to the other tasks.

    Raises:
        DataError: none of the scope's images was measured.
    """
    part = document["tasks"][scope.task]
    verdicts, found = Verdicts.of(part, scope), effects(document, report, scope, titles)
    trained = [effect for effect in found if effect.kind == "calibrator"]
    plain_ones = [effect for effect in found if effect.kind not in ("calibrator", "random_layers")]
    said = []
    if trained:
        best = _said(trained[0])
        helps = trained[0].here.points > 0
        said.append(f"of calibrators {best} helps most" if helps else f"no calibrator helps, the best is {best}")
    helping = [effect for effect in plain_ones if effect.here.points > 0][:NAMED]
    if helping:
        said.append(f"without training {joined([_said(effect) for effect in helping])}")
    else:
        said.append("without training nothing that was tried helps")
    sentence = "; ".join(said) + "."
    sentence = begun(sentence)
    control = next((effect for effect in found if effect.kind == "random_layers"), None)
    words = (
        f"The control of dropping layers: as much of the vector dropped at random, {control.here.words} here."
        if control
        else "The merged model as it is, on the same images, is what all effects are measured against."
    )
    if part["refused"]:
        words += f" {len(part['refused'])} could not be tried: {part['refused'][0]['reason']}"
    counts = sorted({count for _, count in part["others"]["merged"].values()})
    unit = "Points of accuracy against the merged model; bars: this task; lines are 95 % intervals, paired by image"
    if counts:
        each = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        unit += f"; other tasks: mean over {len(part['others']['merged'])}, {each} images each"
        if any(effect.kind == "without" for effect in found):
            unit += " (where an expert is left out, without its own task, whose loss is not shown)"
    drawing = _figure(found, scope, theme)
    return Answer(7, sentence, (drawing,), unit, verdicts.count, verdicts.available(scope), words)


def _said(effect: Effect) -> str:
    others = "" if effect.others is None else f", the others {signed(effect.others)}"
    return f"{effect.title} ({effect.here.words}{others})"


def _title(remedy: Mapping[str, Any], recipe: Recipe, titles: Mapping[str, str]) -> str:
    kind, value = remedy["kind"], remedy["value"]
    if kind == "calibrator":
        methods = {call.name: call.method for call in recipe.calibrators}
        return calibrator_title(value, methods.get(value, "surgery"))
    if kind == "without":
        return f"leaving {titles.get(value, value)} out"
    return f"{KINDS[kind]} {'η ' if kind != 'scaling' else ''}{rounded(value, DIGITS).rstrip('0').rstrip('.')}"


def _change(remedy: Mapping[str, Any], recipe: Recipe) -> Mapping[str, Any] | None:
    """Return what a remedy changes of a recipe, None where the recipe has it."""
    if remedy["kind"] != "calibrator":
        return remedy["change"]
    calls = [call.model_dump(mode="json") for call in recipe.calibrators]
    if any(call["name"] == remedy["value"] for call in calls):
        return None
    return {"calibrators": [*calls, {"method": "surgery", "name": remedy["value"]}]}


def _figure(found: list[Effect], scope: Scope, theme: Theme) -> Drawing:
    shown = found[::-1]
    names = [plain(begun(effect.title)) for effect in shown]
    tones = {
        "calibrator": state_colour("corrected", theme),
        "scaling": TASKS[theme][4],
        "without": TASKS[theme][0],
        "pruning": TASKS[theme][2],
        "random_layers": state_colour("pretrained", theme),
    }
    by_kind = {kind: [effect for effect in shown if effect.kind == kind] for kind in KINDS}
    bars = [
        go.Bar(
            name=KINDS[kind],
            x=[effect.here.points for effect in part],
            y=[plain(begun(effect.title)) for effect in part],
            orientation="h",
            marker={"color": tones[kind]},
            error_x={
                "type": "data",
                "array": [effect.here.half for effect in part],
                "thickness": 1.2,
                "width": 3,
                "color": state_colour("expert", theme),
            },
            hovertemplate="%{y}: %{x:+.1f} points here<extra></extra>",
        )
        for kind, part in by_kind.items()
        if part
    ]
    marks = go.Scatter(
        name="Other tasks, mean",
        x=[effect.others for effect in shown],
        y=names,
        mode="markers",
        marker={"symbol": "diamond-open", "size": 11, "line": {"width": 2}, "color": state_colour("expert", theme)},
        hovertemplate="%{y}: %{x:+.1f} points on the others<extra></extra>",
    )
    figure = compose(
        [*bars, marks],
        theme,
        height=100 + 26 * len(shown),
        legend=True,
        xaxis={"title": "Change (points)", "zeroline": True},
        yaxis={"type": "category", "showgrid": False, "dtick": 1, "categoryorder": "array", "categoryarray": names},
        barmode="overlay",
        bargap=0.35,
    )
    table = pd.DataFrame(
        [
            {
                "remedy": effect.title,
                "kind": KINDS[effect.kind],
                "points_here": effect.here.points,
                "half": effect.here.half,
                "points_others": effect.others,
                "images": effect.here.images,
            }
            for effect in found
        ]
    )
    best = found[0]
    alt = (
        f"What was tried for {scope.title}: best is {best.title}, {number(best.here.points)} points here, "
        f"{number(best.others)} on the other tasks."
    )
    return Drawing(figure, table, alt, f"diagnosis-remedies-{scope.task}")
