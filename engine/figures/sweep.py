"""Sweeps as figures: curves over one place of a recipe, a map over two, with the best marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ..catalog.titles import method_title
from ..recipe import REFERENCE_STATES
from ..rounding import rounded
from ..sweeps import SweepPoint, SweepTable
from ..sweeps.grid import value_text
from .drawing import Drawing, colour_bar, compose, number, plain
from .palette import CIVIDIS, SURFACE, TITLES, Theme, state_colour, state_dash

MEASURES = {
    "in": ("In-domain", "Mean accuracy, in-domain tasks (%)", "within"),
    "out": ("Out-of-domain", "Mean accuracy, out-of-domain tasks (%)", "out"),
    "h_score": ("H-score", "H-score, in- and out-of-domain (%)", "h_score"),
}
REFERENCES = ("pretrained", *REFERENCE_STATES, "expert")
_FRAME = (("#000000", 5), ("#FFFFFF", 2))
CLOSE = 6  # points that two levels are apart at least for both names to be written above them
PRINTED = 12  # cells a side up to which a map shows its numbers


def sweep_state_title(state: str) -> str:
    """Return the title of a state of a sweep."""
    return TITLES.get(state) or method_title(state)


def measured_states(table: SweepTable, measure: str) -> list[str]:
    """Return the states that some point has a value of."""
    return [
        state for state in table.states() if any(_value(point, state, measure) is not None for point in table.points)
    ]


def sweep_curves(table: SweepTable, measure: str, theme: Theme) -> Drawing:
    """Draw one line a state over the values of one place; states that do not depend on the merge are dotted levels.

    A large mark is the best point of a state by the images to choose by, whatever is drawn.
    """
    title, axis, _ = MEASURES[measure]
    states = measured_states(table, measure)
    moving = [state for state in states if state not in REFERENCES]
    levels = [(state, _level(table, state, measure)) for state in states if state in REFERENCES]
    numeric = all(
        isinstance(point.values[0], (int, float)) and not isinstance(point.values[0], bool) for point in table.points
    )
    traces: list[Any] = []
    for state in moving:
        traces += _curve(table, state, measure, numeric, moving, theme)
    figure = compose(
        traces,
        theme,
        height=400,
        legend=True,
        hovermode="x unified" if numeric else "closest",
        xaxis={"title": plain(table.titles[0]), **({} if numeric else {"type": "category"})},
        yaxis={"title": axis},
        shapes=[_rule(state, value, theme) for state, value in levels if value is not None],
        annotations=_rule_names({state: value for state, value in levels if value is not None}, theme),
    )
    return Drawing(figure, sweep_frame(table), _words(table, title, moving, measure), f"sweep-{measure}")


def sweep_map(table: SweepTable, state: str, measure: str, theme: Theme) -> Drawing:
    """Draw a value for every combination of two places; the best point of the state has a frame."""
    title, axis, _ = MEASURES[measure]
    rows, columns = (list(dict.fromkeys(point.values[place] for point in table.points)) for place in (0, 1))
    cells = {point.values: _value(point, state, measure) for point in table.points}
    values = [[cells.get((row, column)) for column in columns] for row in rows]
    first, second = map(plain, table.titles)
    printed = len(rows) <= PRINTED and len(columns) <= PRINTED
    heat = go.Heatmap(
        z=values,
        x=[value_text(value) for value in columns],
        y=[value_text(value) for value in rows],
        colorscale=CIVIDIS,
        texttemplate="%{z:.1f}" if printed else None,
        hoverongaps=False,
        hovertemplate=f"{first} %{{y}}<br>{second} %{{x}}<br>%{{z:.1f}} %<extra></extra>",
        colorbar=colour_bar(axis, theme),
        xgap=1,
        ygap=1,
    )
    best = table.best(state)
    frame = []
    if best is not None:
        x, y = columns.index(best.values[1]), rows.index(best.values[0])
        place = {"type": "rect", "x0": x - 0.5, "x1": x + 0.5, "y0": y - 0.5, "y1": y + 0.5}
        # Two lines, one of which stands out from any cell.
        frame = [{**place, "line": {"color": colour, "width": width}} for colour, width in _FRAME]
    figure = compose(
        [heat],
        theme,
        height=max(260, 110 + 36 * len(rows)),
        margin={"l": 8, "r": 12, "t": 64, "b": 8},
        xaxis={"title": second, "type": "category"},
        yaxis={"title": first, "type": "category"},
        shapes=frame,
    )
    return Drawing(figure, sweep_frame(table), _words(table, title, [state], measure), f"sweep-{state}-{measure}")


def sweep_frame(table: SweepTable) -> pd.DataFrame:
    """Return the numbers of a sweep: one row a point and state."""
    return pd.DataFrame(table.rows()).dropna(axis=1, how="all")


def _curve(
    table: SweepTable, state: str, measure: str, numeric: bool, states: Sequence[str], theme: Theme
) -> list[Any]:
    points = [point for point in table.points if _value(point, state, measure) is not None]
    if numeric:
        points.sort(key=lambda point: point.values[0])
    place = [point.values[0] if numeric else value_text(point.values[0]) for point in points]
    colour, name = state_colour(state, theme), plain(sweep_state_title(state))
    line = go.Scatter(
        name=name,
        x=place,
        y=[_value(point, state, measure) for point in points],
        mode="lines+markers",
        line={"color": colour, "width": 2.4, "dash": state_dash(state, states)},
        marker={"size": 6, "color": colour},
        hovertemplate="%{y:.1f} %",
    )
    best = table.best(state)
    value = _value(best, state, measure) if best else None
    if best is None or value is None:
        return [line]
    mark = go.Scatter(
        name=f"Best {name}",
        x=[best.values[0] if numeric else value_text(best.values[0])],
        y=[value],
        mode="markers",
        marker={"size": 15, "symbol": "star", "color": colour, "line": {"color": SURFACE[theme], "width": 1.5}},
        hovertemplate=f"{rounded(best.choice[state])} % on {table.split} images",
    )
    return [line, mark]


def _value(point: SweepPoint, state: str, measure: str) -> float | None:
    average = point.evaluation.get(state)
    return getattr(average, MEASURES[measure][2]) if average is not None else None


def _level(table: SweepTable, state: str, measure: str) -> float | None:
    """Return a reference's value, where all points agree on it."""
    values = {_value(point, state, measure) for point in table.points} - {None}
    return values.pop() if len(values) == 1 else None


def _rule(state: str, value: float, theme: Theme) -> dict[str, Any]:
    line = {"color": state_colour(state, theme), "width": 1.2, "dash": "dot"}
    return {"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": value, "y1": value, "line": line}


def _rule_names(levels: Mapping[str, float], theme: Theme) -> list[dict[str, Any]]:
    """Write each level's name above it, or below it where another level lies close above."""
    names = []
    for state, value in levels.items():
        close = any(0 < other - value < CLOSE for other in levels.values())
        place = {"xref": "paper", "x": 1, "xanchor": "right", "y": value, "yanchor": "top" if close else "bottom"}
        font = {"color": state_colour(state, theme), "size": 12}
        names.append({**place, "showarrow": False, "text": TITLES[state], "font": font})
    return names


def _words(table: SweepTable, title: str, states: Sequence[str], measure: str) -> str:
    parts = []
    for state in states:
        values = [value for point in table.points if (value := _value(point, state, measure)) is not None]
        best = table.best(state)
        span = f"{number(min(values))} to {number(max(values))} %" if values else "no value"
        chosen = f", best {best.title} with {number(_value(best, state, measure))} %" if best else ""
        parts.append(f"{sweep_state_title(state)} {span}{chosen}")
    return f"{title} accuracy over {' and '.join(table.titles)}, {len(table.points)} runs. {'; '.join(parts)}."
