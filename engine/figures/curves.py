"""How the training of calibrators went: loss, bias and accuracy by step, on both splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from ..report import Report
from .drawing import Drawing, dress, number, plain
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


def curve_table(report: Report) -> pd.DataFrame:
    """One row per calibrator and monitored step, with the columns of the report's curves; NaN where not measured."""
    frames = []
    for name, part in report.calibrators.items():
        if part.curve:
            frame = pd.DataFrame(part.curve, columns=list(part.curve_columns), dtype=float)
            frame.insert(0, "calibrator", name)
            frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["calibrator", "step", "loss"])


def training_curves(report: Report, quantity: str, theme: Theme, calibrators: Sequence[str] | None = None) -> Drawing:
    """A quantity by training step: thick on evaluation images, thin on the adaptation images that are trained on."""
    known = QUANTITIES[quantity]
    table = curve_table(report)
    names = [name for name in report.calibrators if calibrators is None or name in calibrators]
    figure = go.Figure()
    ends = []
    for name in names:
        rows = table[table["calibrator"] == name]
        line = {"color": state_colour(name, theme), "dash": state_dash(name, names)}
        for column, split, width in ((known.adapt, "adaptation", 1.2), (known.evaluate, "evaluation", 2.6)):
            if column in rows and rows[column].notna().any():
                title = state_title(name, report) + (f", {split}" if known.evaluate else "")
                _add(figure, rows["step"], rows[column], plain(title), line | {"width": width}, known.digits)
        last = rows[known.evaluate or known.adapt].dropna() if (known.evaluate or known.adapt) in rows else []
        end = number(float(last.iloc[-1]) if len(last) else None, known.digits)
        ends.append(f"{state_title(name, report)} {end}")
    _levels(figure, report, quantity, theme)
    dress(figure, theme, height=340, legend=True, hovermode="x unified")
    figure.update_xaxes(title_text="Training step (updates of every task)", rangemode="tozero")
    figure.update_yaxes(title_text=known.axis)
    alt = f"{known.title} of {len(names)} calibrators while they are trained. At the end: {'; '.join(ends) or 'none'}."
    columns = [c for c in ("calibrator", "step", known.adapt, known.evaluate) if c in table]
    return Drawing(figure, table.loc[table["calibrator"].isin(names), columns], alt, f"training-{quantity}")


def _add(figure: go.Figure, steps: pd.Series, values: pd.Series, title: str, line: dict, digits: int) -> None:
    figure.add_scatter(
        name=title,
        x=steps.tolist(),
        y=values.tolist(),
        mode="lines+markers" if len(values) == 1 else "lines",
        line=line,
        opacity=0.75 if line["width"] < 2 else 1.0,
        hovertemplate=f"%{{y:.{digits}f}}",
    )


def _levels(figure: go.Figure, report: Report, quantity: str, theme: Theme) -> None:
    """Where the merged model starts and, for accuracy, where the experts are."""
    levels: list[tuple[str, float | None]] = []
    if quantity == "accuracy":
        means = {state: report.average[state].within for state in ("merged", "expert") if state in report.average}
        levels = list(means.items())
    elif quantity == "bias" and "merged" in report.bias:
        values = [value for task, value in report.bias["merged"].l1.items() if _in(report, task) and value is not None]
        levels = [("merged", sum(values) / len(values) if values else None)]
    for state, value in levels:
        if value is not None:
            figure.add_hline(
                y=value,
                line={"color": state_colour(state, theme), "width": 1.2, "dash": "dot"},
                annotation={
                    "text": state_title(state, report),
                    "font": {"color": state_colour(state, theme), "size": 12},
                },
                annotation_position="top left",
            )


def _in(report: Report, task: str) -> bool:
    return task in report.tasks and report.tasks[task].domain == "in"
