"""Curves of the training of calibrators: loss, bias and accuracy by step, on both splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from ..analysis.accuracy import mean
from ..report import Report
from .drawing import Drawing, compose, number, plain, task_titles
from .palette import Theme, state_colour, state_dash, state_title


@dataclass(frozen=True)
class Quantity:
    """Something that is watched while a calibrator is trained."""

    title: str
    axis: str
    adapt: str  # column on the adaptation split, empty if there is none
    evaluate: str
    digits: int


QUANTITIES = {
    "accuracy": Quantity("Accuracy", "Accuracy (%), mean over tasks", "accuracy_adapt", "accuracy_evaluate", 1),
    "bias": Quantity("Bias", "L1 to the expert (feature units)", "l1_adapt", "l1_evaluate", 3),
    "loss": Quantity("Loss", "Training loss, mean over tasks", "loss", "", 4),
}


def curve_table(report: Report, task: str | None = None) -> pd.DataFrame:
    """Return one row per calibrator and monitored step, with the report's columns; NaN where not measured.

    Means over tasks, or one task's; runs of an earlier version have no curves by task.
    """
    frames = []
    for name, part in report.calibrators.items():
        curve = part.curve if task is None else part.task_curves.get(task, ())
        if curve:
            frame = pd.DataFrame(curve, columns=list(part.curve_columns), dtype=float)
            frame.insert(0, "calibrator", name)
            frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["calibrator", "step", "loss"])


def training_curves(
    report: Report, quantity: str, theme: Theme, calibrators: Sequence[str] | None = None, task: str | None = None
) -> Drawing:
    """Draw a quantity by training step: thick on evaluation images, thin on the adaptation images that are trained on.

    Means over tasks, or one ``task``'s.
    """
    known = QUANTITIES[quantity]
    table = curve_table(report, task)
    names = [name for name in report.calibrators if calibrators is None or name in calibrators]
    lines, ends = [], []
    for name in names:
        rows = table[table["calibrator"] == name]
        line = {"color": state_colour(name, theme), "dash": state_dash(name, names)}
        for column, split, width in ((known.adapt, "adaptation", 1.2), (known.evaluate, "evaluation", 2.6)):
            if column in rows and rows[column].notna().any():
                title = state_title(name, report) + (f", {split}" if known.evaluate else "")
                lines.append(_line(rows["step"], rows[column], plain(title), line | {"width": width}, known.digits))
        last = rows[known.evaluate or known.adapt].dropna() if (known.evaluate or known.adapt) in rows else []
        end = number(float(last.iloc[-1]) if len(last) else None, known.digits)
        ends.append(f"{state_title(name, report)} {end}")
    levels = _levels(report, quantity, task)
    axis = known.axis if task is None else known.axis.replace(", mean over tasks", "")
    figure = compose(
        lines,
        theme,
        height=340,
        legend=True,
        hovermode="x unified",
        xaxis={"title": "Training step (updates of every task)", "rangemode": "tozero"},
        yaxis={"title": axis},
        shapes=[_rule(state, value, theme) for state, value in levels],
        annotations=[_rule_name(state, value, report, theme) for state, value in levels],
    )
    where = "" if task is None else f" on {task_titles(report)[task]}"
    alt = f"{known.title} of {len(names)} calibrators while they are trained{where}. At the end: "
    alt += f"{'; '.join(ends) or 'none'}."
    columns = [c for c in ("calibrator", "step", known.adapt, known.evaluate) if c in table]
    return Drawing(figure, table.loc[table["calibrator"].isin(names), columns], alt, f"training-{quantity}")


def _line(steps: pd.Series, values: pd.Series, title: str, line: dict, digits: int) -> go.Scatter:
    return go.Scatter(
        name=title,
        x=steps.tolist(),
        y=values.tolist(),
        mode="lines+markers" if len(values) == 1 else "lines",
        line=line,
        opacity=0.75 if line["width"] < 2 else 1.0,
        hovertemplate=f"%{{y:.{digits}f}}",
    )


def _levels(report: Report, quantity: str, task: str | None) -> list[tuple[str, float]]:
    """Return the level where the merged model starts and, for accuracy, that of the experts."""
    levels: dict[str, float | None] = {}
    if task is not None:
        if quantity == "accuracy":
            levels = {state: report.accuracy.get(state, {}).get(task) for state in ("merged", "expert")}
        elif quantity == "bias" and "merged" in report.bias:
            levels = {"merged": report.bias["merged"].l1.get(task)}
    elif quantity == "accuracy":
        levels = {state: report.average[state].within for state in ("merged", "expert") if state in report.average}
    elif quantity == "bias" and "merged" in report.bias:
        levels = {"merged": mean(value for task, value in report.bias["merged"].l1.items() if _in(report, task))}
    return [(state, value) for state, value in levels.items() if value is not None]


def _rule(state: str, value: float, theme: Theme) -> dict:
    """Return a dotted line across the plot."""
    line = {"color": state_colour(state, theme), "width": 1.2, "dash": "dot"}
    return {"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": value, "y1": value, "line": line}


def _rule_name(state: str, value: float, report: Report, theme: Theme) -> dict:
    font = {"color": state_colour(state, theme), "size": 12}
    place = {"xref": "paper", "x": 0, "xanchor": "left", "y": value, "yanchor": "bottom", "showarrow": False}
    return {**place, "text": plain(state_title(state, report)), "font": font}


def _in(report: Report, task: str) -> bool:
    return task in report.tasks and report.tasks[task].domain == "in"
