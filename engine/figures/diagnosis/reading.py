"""The sixth answer where samples are read: on which words models look, and which words drifted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...errors import DataError
from ...rounding import rounded
from ..drawing import Drawing, compose, number, plain
from ..palette import INK, SURFACE, Theme, state_colour
from .answer import Answer, Caption, Scope

MAPS = {"expert": "Expert looks", "merged": "Merged looks", "drift": "Drift of words"}
LOOKS = ("expert", "merged")
ACROSS = 6  # words in a line
MOST = 90  # words of a text that are drawn; all of them are in the table
MARKER: dict[Theme, str] = {
    "light": "#F0A868",
    "dark": "#8F4E12",
}  # of the word most looked at; ink stays readable on it
LONGEST = 11  # letters of a word in its cell
LINE, TITLE = 26, 30  # px
ROW, LISTED, SEEN = 30, 12, 3  # px of a frequent word, how many are drawn, and texts that it occurs in, at least


def reading_answer(document: Mapping[str, Any], scope: Scope, theme: Theme, one: int | None, truth: str = "") -> Answer:
    """Return on which words merged model and expert look, and which drifted: one text, and frequent words.

    Args:
        document: what the view left.
        scope: the texts.
        theme: of the page.
        one: row in the test split of the single text; None for the first of the scope.
        truth: name of that text's class.

    Raises:
        DataError: none of the scope's texts was measured.
    """
    part = document["tasks"][scope.task]
    index, labels = (np.array([text[name] for text in part["texts"]], dtype=int) for name in ("index", "label"))
    chosen = [part["texts"][row] for row in np.flatnonzero(scope.mask(index, labels))]
    chosen = [text for text in chosen if text["words"]]
    if not chosen:
        raise DataError(f"None of {scope.words} is among the {part['images']} texts that this was measured on.")
    alike = part["alike"]
    sentence = (
        f"Merged model and expert look at the same words with r = {_said(alike['same'])} (mean over the task's "
        f"{part['images']} texts)"
    )
    if alike["another"] is not None:
        sentence += f"; another text of the task would give {_said(alike['another'])}"
    drift = np.concatenate([text["drift"] for text in chosen])
    sentence += f". The words' tokens drift by {rounded(100 * float(drift.mean()), 0)} % of their length"
    table = frequent_words(chosen)
    if len(table) > 1:
        far, near = (table.loc[getattr(table["drift"], which)()] for which in ("idxmax", "idxmin"))
        sentence += (
            f"; of frequent words “{far['word']}” most ({rounded(100 * far['drift'], 0)} %), “{near['word']}” least "
            f"({rounded(100 * near['drift'], 0)} %)"
        )
    single = next((text for text in chosen if text["index"] == one), chosen[0])
    title = f"Text {single['index']}" + (f", {truth}" if truth and single["index"] == one else "")
    unit = (
        "Attention rollout of the class token, shared out among words, and ‖merged − expert‖ / ‖expert‖ of tokens that "
        "enter the last block"
    )
    available = len(scope.images) or (int(part["available"]) if scope.label is None else len(chosen))
    drawings = [text_figure(single, title, f"diagnosis-where-text-{scope.task}", theme)]
    captions = [Caption(unit, 1, available)]
    if len(chosen) > 1 and len(table):
        drawings.append(frequent_figure(table, f"diagnosis-where-words-{scope.task}", theme))
        captions.append(Caption(unit, len(chosen), available))
    control = (
        "The control of looking is another text of the same task, word by word in its order: r above it is more than "
        "the usual places."
    )
    counts = len(chosen), available
    return Answer(
        *(6, f"{sentence}.", tuple(drawings), unit, *counts, control),
        asked="Where in the text?",
        captions=tuple(captions),
    )


def _said(value: float | None) -> str:
    return "–" if value is None else rounded(value, 2)


def frequent_words(texts: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a row a word that occurs in several texts, those that the expert looks at most first.

    ``expert`` and ``merged`` are multiples of what each word of a text would get if all got as much; ``drift`` is a
    share of the token's length.
    """
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for text in texts:
        even = len(text["words"])
        for place, word in enumerate(text["words"]):
            found[word].append((*(even * text[name][place] for name in LOOKS), text["drift"][place]))
    rows = [
        {"word": word, "occurrences": len(values), **dict(zip(MAPS, np.mean(values, axis=0).tolist(), strict=True))}
        for word, values in found.items()
        if len(values) >= min(SEEN, len(texts))
    ]
    table = pd.DataFrame(rows, columns=["word", "occurrences", *MAPS])
    return table.sort_values(["expert", "word"], ascending=[False, True]).reset_index(drop=True)


def frequent_figure(table: pd.DataFrame, name: str, theme: Theme) -> Drawing:
    """Draw two bars a frequent word: how much more than evenly expert and merged model look at it.

    Args:
        table: of :func:`frequent_words`; the first rows are drawn.
        name: of the drawing.
        theme: of the page.
    """
    drawn = table.head(LISTED)
    bars = [
        go.Bar(
            name=state.capitalize(),
            orientation="h",
            x=drawn[state].tolist(),
            y=list(range(len(drawn))),
            customdata=[[plain(word), 100 * far] for word, far in zip(drawn["word"], drawn["drift"], strict=True)],
            marker={"color": state_colour(state, theme)},
            hovertemplate="%{customdata[0]}: %{x:.2f} times as much as evenly; drifts by %{customdata[1]:.0f} %",
        )
        for state in LOOKS
    ]
    ticks = {"tickmode": "array", "tickvals": list(range(len(drawn))), "ticktext": [plain(w) for w in drawn["word"]]}
    figure = compose(
        bars,
        theme,
        height=110 + ROW * len(drawn),
        legend=True,
        barmode="group",
        xaxis={"title": "Attention to the word, in multiples of an even share", "rangemode": "tozero"},
        yaxis={"autorange": "reversed", **ticks},
    )
    first = {state: drawn.loc[drawn[state].idxmax()] for state in LOOKS}
    said = ", ".join(f"{state} at “{row['word']}” ({number(row[state], 2)})" for state, row in first.items())
    return Drawing(figure, table, f"Of frequent words, in multiples of an even share, look most: {said}.", name)


def text_figure(text: Mapping[str, Any], title: str, name: str, theme: Theme) -> Drawing:
    """Draw a text three times, its words coloured by how much each model looks at them and by how far they drifted.

    Args:
        text: as the view left it.
        title: of the text.
        name: of the drawing.
        theme: of the page.
    """
    words = text["words"][:MOST]
    lines = -(-len(words) // ACROSS)
    tall = TITLE + LINE * lines
    looks = max(max(text[state]) for state in LOOKS)
    traces: list[Any] = []
    layout: dict[str, Any] = {}
    notes = []
    for place, (kind, said) in enumerate(MAPS.items()):
        suffix = "" if place == 0 else str(place + 1)
        top = 1 - place / len(MAPS)
        bottom = top - LINE * lines / (len(MAPS) * tall) - TITLE / (len(MAPS) * tall) + 0.004
        axis = {"showgrid": False, "zeroline": False, "showticklabels": False, "visible": False}
        layout[f"xaxis{suffix}"] = {**axis, "range": [-0.5, ACROSS - 0.5], "fixedrange": True}
        layout[f"yaxis{suffix}"] = {
            **axis,
            "range": [lines - 0.5, -0.5],
            "domain": [max(bottom, 0), top - TITLE / (len(MAPS) * tall)],
            "fixedrange": True,
        }
        values = [100 * value for value in text[kind][:MOST]]
        traces.append(
            go.Heatmap(
                z=_rows(values, None),
                text=_rows([plain(_short(word)) for word in words], ""),
                customdata=_rows([plain(word) for word in words], ""),
                texttemplate="%{text}",
                textfont={"color": INK[theme]},
                colorscale=[[0, SURFACE[theme]], [1, MARKER[theme]]],
                zmin=0,
                zmax=100 * looks if kind in LOOKS else None,
                showscale=False,
                hoverongaps=False,
                xgap=2,
                ygap=2,
                xaxis=f"x{suffix}",
                yaxis=f"y{suffix}",
                hovertemplate="%{customdata}: %{z:.1f} %<extra></extra>",
            )
        )
        notes.append(
            {
                "text": plain(f"{title} · {said}" if place == 0 else said),
                "x": 0,
                "y": top,
                "xref": "paper",
                "yref": "paper",
                "xanchor": "left",
                "yanchor": "top",
                "showarrow": False,
                "font": {"size": 12.5, "color": INK[theme]},
            }
        )
    figure = compose(traces, theme, height=24 + len(MAPS) * tall, annotations=notes, **layout)
    table = pd.DataFrame(
        {"place": range(1, len(text["words"]) + 1), "word": text["words"]} | {n: text[n] for n in MAPS}
    )
    most = {kind: table["word"][table[kind].idxmax()] for kind in MAPS}
    alt = (
        f"{title}: the expert looks most at “{most['expert']}”, the merged model at “{most['merged']}”; "
        f"“{most['drift']}” drifts most, by {number(100 * max(text['drift']), 0)} %."
    )
    return Drawing(figure, table, alt, name)


def _rows(values: Sequence[Any], rest: Any) -> list[list[Any]]:
    """Return values in lines of equal length, what is left of the last one filled up."""
    lines = [list(values[start : start + ACROSS]) for start in range(0, len(values), ACROSS)]
    return [line + [rest] * (ACROSS - len(line)) for line in lines]


def _short(word: str) -> str:
    return word if len(word) <= LONGEST else word[: LONGEST - 1] + "…"
