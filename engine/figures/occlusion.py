"""Words that move the feature: one text word by word, and the words of a class that moved it most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ..rounding import rounded
from .drawing import Drawing, compose, plain
from .palette import Theme, state_colour

STATES = ("expert", "merged", "pretrained")
ROW = 30  # px of a word
NAMED = 2  # words of a text that are marked
LISTED = 15  # words of several texts
SEEN = 3  # texts that a listed word occurs in, at least


def word_table(text: Mapping[str, Any]) -> pd.DataFrame:
    """Return a row a word: its place, the word, and how far hiding it moves each state's feature (1 − cos)."""
    columns = {"place": range(1, len(text["words"]) + 1), "word": text["words"]}
    return pd.DataFrame({**columns, **{state: text[state] for state in STATES}})


def frequent_table(texts: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a row a word that occurs in several texts: mean distances by state, the most moving of the expert first.

    Args:
        texts: of one task, as the view leaves them.
    """
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for text in texts:
        for number, word in enumerate(text["words"]):
            found[word].append(tuple(text[state][number] for state in STATES))
    rows = [
        {"word": word, "occurrences": len(values), **dict(zip(STATES, pd.DataFrame(values).mean(), strict=True))}
        for word, values in found.items()
        if len(values) >= min(SEEN, len(texts))
    ]
    table = pd.DataFrame(rows, columns=["word", "occurrences", *STATES])
    return table.sort_values(["expert", "word"], ascending=[False, True]).head(LISTED).reset_index(drop=True)


def most_moving(text: Mapping[str, Any], state: str) -> list[int]:
    """Return the places (from 0) of the words that move a state's feature most, the first of them first."""
    order = sorted(range(len(text["words"])), key=lambda place: -text[state][place])
    return [place for place in order[:NAMED] if text[state][place] > 0]


def occlusion_figure(table: pd.DataFrame, title: str, name: str, theme: Theme) -> Drawing:
    """Draw bars a word: how far the feature moves when it is hidden, for expert, merged and pretrained model.

    Args:
        table: of :func:`word_table` or :func:`frequent_table`.
        title: of the axis of words.
        name: of the drawing.
        theme: of the page.
    """
    bars = [
        go.Bar(
            name=state.capitalize(),
            orientation="h",
            x=table[state].tolist(),
            y=list(range(len(table))),
            customdata=[plain(word) for word in table["word"]],
            marker={"color": state_colour(state, theme)},
            hovertemplate="%{customdata}: %{x:.3f}",
        )
        for state in STATES
    ]
    ticks = {
        "tickmode": "array",
        "tickvals": list(range(len(table))),
        "ticktext": [plain(word) for word in table["word"]],
    }
    figure = compose(
        bars,
        theme,
        height=110 + ROW * len(table),
        legend=True,
        barmode="group",
        xaxis={"title": "How far hiding the word moves the feature (1 − cos)", "rangemode": "tozero"},
        yaxis={"title": title, "autorange": "reversed", **ticks},
    )
    first = {state: table.loc[table[state].idxmax(), "word"] for state in STATES if len(table)}
    said = ", ".join(f"{state} “{word}” ({rounded(table[state].max(), 2)})" for state, word in first.items())
    alt = f"The word that moves the feature most: {said}." if said else "No word occurs in several of these texts."
    return Drawing(figure, table, alt, name)
