"""The sixth answer: where in the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...analysis.written import read_array
from ...errors import DataError
from ...rounding import rounded
from ..drawing import Drawing, compose, number, wrapped
from ..palette import CIVIDIS, INK, Theme
from .answer import Answer, Caption, Scope

MAPS = {"expert": "Expert looks", "merged": "Merged looks", "drift": "Drift of patches"}
HEIGHT, GAP, OPACITY = 170, 0.02, 0.62
LETTERS, LINE = 11, 17  # of a title in a line over a picture on a phone; px of its height
AVERAGED = 100  # pictures behind the maps of a mean, at most
SIDE = 64  # pixels that pictures are brought to, so that they can be averaged


def attention_answer(
    document: Mapping[str, Any],
    scope: Scope,
    theme: Theme,
    pictures: np.ndarray | None,
    one: int | None,
    truth: str = "",
) -> Answer:
    """Return where merged model and expert look, and where the patches drifted: a mean, and one image.

    Args:
        document: what the view left.
        scope: the images.
        theme: of the page.
        pictures: uint8 (n, side, side, 3) of the images that :func:`shown_images` names, in its order; None where the
            zoo's images are not at hand.
        one: row in the test split of the single image; None for the first of the scope.
        truth: name of that image's class.

    Raises:
        DataError: none of the scope's images was measured.
    """
    part = document["tasks"][scope.task]
    index, rows = _rows(part, scope)
    maps = {name: _map(part, name) for name in MAPS}
    chosen = int(np.flatnonzero(index == one)[0]) if one is not None and (index == one).any() else rows[0]
    means = {name: values[rows].mean(0) for name, values in maps.items()}
    alike = part["alike"]
    same = _correlations(maps["merged"][rows], maps["expert"][rows])
    sentence = (
        f"Merged model and expert look at the same places with r = {rounded(same, 2)} (mean over {len(rows)} "
        f"image{'s' if len(rows) != 1 else ''})"
    )
    if alike["another"] is not None:
        sentence += f"; another image of the task would give {rounded(alike['another'], 2)}"
    hot = means["drift"]
    side = round(len(hot) ** 0.5)
    far = int(hot.argmax())
    sentence += (
        f". The patches' tokens drift by {rounded(100 * float(hot.mean()), 0)} % of their length, most "
        f"({rounded(100 * float(hot.max()), 0)} %) {_place(far, side)}, least ({rounded(100 * float(hot.min()), 0)} %) "
        f"{_place(int(hot.argmin()), side)}."
    )
    shown = None if pictures is None else dict(zip(shown_images(document, scope, one), pictures, strict=True))
    unit = "Attention rollout of the class token, and ‖merged − expert‖ / ‖expert‖ of tokens that enter the last block"
    available = len(scope.images) or (int(part["available"]) if scope.label is None else len(rows))
    drawings, captions = [], []
    if len(rows) > 1:
        some = _averaged(index[rows])
        mean = None if shown is None else np.mean([shown[int(row)] for row in some], 0)
        title = f"Mean of {len(rows)} images"
        drawings.append(_figure(means, mean, title, f"diagnosis-where-mean-{scope.task}", theme))
        behind = f"; behind the maps the mean of {len(some)} of these images" if len(some) < len(rows) and shown else ""
        captions.append(Caption(unit + behind, len(rows), available))
    single = {name: values[chosen] for name, values in maps.items()}
    picture = None if shown is None else shown.get(int(index[chosen]))
    title = f"Image {int(index[chosen])}" + (f", {truth}" if truth and index[chosen] == one else "")
    drawings.append(_figure(single, picture, title, f"diagnosis-where-image-{scope.task}", theme))
    captions.append(Caption(unit, 1, available))
    control = (
        "The control of looking is another image of the same task: r above it is more than the task's usual place."
    )
    return Answer(6, sentence, tuple(drawings), unit, len(rows), available, control, captions=tuple(captions))


def shown_images(document: Mapping[str, Any], scope: Scope, one: int | None) -> list[int]:
    """Return rows in the test split of the pictures that the answer needs: some to average, and the single one."""
    index, rows = _rows(document["tasks"][scope.task], scope)
    first = one if one is not None and (index == one).any() else int(index[rows[0]])
    return list(dict.fromkeys([*map(int, _averaged(index[rows])), first]))


def _averaged(index: np.ndarray) -> np.ndarray:
    """Return the rows whose pictures are averaged: at most so many, spread over all."""
    return index[np.unique(np.linspace(0, len(index) - 1, min(AVERAGED, len(index))).astype(int))]


def _rows(part: Mapping[str, Any], scope: Scope) -> tuple[np.ndarray, np.ndarray]:
    index = read_array(part["index"])
    rows = np.flatnonzero(scope.mask(index, read_array(part["labels"])))
    if not len(rows):
        raise DataError(f"None of {scope.words} is among the {part['images']} images that this was measured on.")
    return index, rows


def _map(part: Mapping[str, Any], name: str) -> np.ndarray:
    return read_array(part[name]).astype(float) * part["unit"][name]


def _correlations(left: np.ndarray, right: np.ndarray) -> float:
    left, right = (values - values.mean(1, keepdims=True) for values in (left, right))
    scale = np.sqrt((left**2).sum(1) * (right**2).sum(1))
    known = scale > 0
    return float(((left * right).sum(1)[known] / scale[known]).mean()) if known.any() else 0.0


def _place(patch: int, side: int) -> str:
    """Return where a patch lies, in words."""
    row, column = divmod(patch, side)
    words = []
    for at, names in ((row, ("top", "middle", "bottom")), (column, ("left", "centre", "right"))):
        words.append(names[min(int(3 * (at + 0.5) / side), 2)])
    return f"at the {words[0]} {words[1]}"


def _figure(maps: Mapping[str, np.ndarray], picture: np.ndarray | None, title: str, name: str, theme: Theme) -> Drawing:
    """Draw a picture and, over it, three maps of its patches."""
    side = round(len(next(iter(maps.values()))) ** 0.5)
    wide = (1 - 3 * GAP) / 4
    traces: list[Any] = []
    layout: dict[str, Any] = {}
    labels = [wrapped(label, LETTERS) for label in (title, *MAPS.values())]
    above = LINE * (1 + max(label.count("<br>") for label in labels))
    looks = max(float(maps["expert"].max()), float(maps["merged"].max()))
    for place in range(len(labels)):
        suffix = "" if place == 0 else str(place + 1)
        start = place * (wide + GAP)
        axis = {"showgrid": False, "zeroline": False, "showticklabels": False, "visible": False}
        layout[f"xaxis{suffix}"] = {**axis, "domain": [start, start + wide], "range": [-0.5, side - 0.5]}
        layout[f"yaxis{suffix}"] = {
            **axis,
            "range": [side - 0.5, -0.5],
            "scaleanchor": f"x{suffix}",
            "constrain": "domain",
            "constraintoward": "top",
        }
        if picture is not None:
            step = side / picture.shape[0]
            origin = {"x0": -0.5 + step / 2, "y0": -0.5 + step / 2, "dx": step, "dy": step}
            image = go.Image(z=np.rint(picture).astype(np.uint8), hoverinfo="skip", **origin)
            traces.append(image.update(xaxis=f"x{suffix}", yaxis=f"y{suffix}"))
        if place:
            kind = list(MAPS)[place - 1]
            values = 100 * maps[kind].reshape(side, side)
            traces.append(
                go.Heatmap(
                    z=values.tolist(),
                    colorscale=CIVIDIS,
                    zmin=0,
                    zmax=100 * looks if kind != "drift" else None,
                    opacity=OPACITY if picture is not None else 1,
                    showscale=False,
                    xgap=1,
                    ygap=1,
                    xaxis=f"x{suffix}",
                    yaxis=f"y{suffix}",
                    hovertemplate="row %{y}, column %{x}: %{z:.1f} %<extra></extra>",
                )
            )
    notes = [
        {
            "text": label,
            "x": place * (wide + GAP) + wide / 2,
            "y": 1,
            "xref": "paper",
            "yref": "paper",
            "xanchor": "center",
            "yanchor": "bottom",
            "showarrow": False,
            "font": {"size": 12.5, "color": INK[theme]},
        }
        for place, label in enumerate(labels)
    ]
    margin = {"l": 8, "r": 12, "t": 12 + above, "b": 8}
    figure = compose(traces, theme, height=HEIGHT + above, margin=margin, annotations=notes, **layout)
    rows = [
        {"patch": patch, "row": patch // side, "column": patch % side, **{n: float(v[patch]) for n, v in maps.items()}}
        for patch in range(side * side)
    ]
    most = {kind: _place(int(values.argmax()), side) for kind, values in maps.items()}
    alt = (
        f"{title}: the expert looks most {most['expert']}, the merged model {most['merged']}; patches drift most "
        f"{most['drift']}, by {number_of(maps['drift'])} % on average."
    )
    return Drawing(figure, pd.DataFrame(rows), alt, name)


def number_of(drift: Sequence[float] | np.ndarray) -> str:
    """Return a mean drift in percent for people."""
    return number(100 * float(np.mean(drift)), 0)
