"""Accuracy per task and state: bars, differences, confusions. All accuracies are percentages of evaluation images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..analysis.accuracy import confusion, deltas, wilson_interval
from ..report import Report
from ..rounding import rounded
from .drawing import Drawing, beside, cells, colour_bar, compose, listed, number, plain, task_titles, under_groups
from .palette import CIVIDIS, GAP, INK, MUTED, Theme, diverging, fill, state_title

NUMBERS_UP_TO = 12  # rows or columns of a heatmap up to which cells carry numbers
MARKED_UP_TO = 40  # and up to which missing cells are marked one by one
CATEGORIES = {"type": "category", "showgrid": False, "dtick": 1}
AVERAGES = (("within", "in", "<b>Mean in</b>"), ("out", "out", "<b>Mean out</b>"))  # one line: upright on a phone


def scored_states(report: Report) -> list[str]:
    """Return the states that have accuracies, in the order in which they are shown."""
    return [state for state in report.states() if state in report.accuracy]


def accuracy_table(report: Report) -> pd.DataFrame:
    """Return one row per task and state.

    Returns:
        Columns task, title, domain, state, accuracy, sd (over training seeds, NaN with one), low and high (95 %
        Wilson interval of one evaluation), n (evaluation images); accuracies NaN where a state has none.
    """
    rows, titles = [], task_titles(report)
    for task, summary in report.tasks.items():
        counts = report.samples.get(task)
        n = counts.evaluate if counts else 0
        for state in scored_states(report):
            value = report.accuracy[state].get(task)
            low, high = wilson_interval(value, n) if value is not None and n else (np.nan, np.nan)
            rows.append(
                {
                    "task": task,
                    "title": titles[task],
                    "domain": summary.domain,
                    "state": state,
                    "accuracy": np.nan if value is None else value,
                    "sd": _sd(report, state, task),
                    "low": low,
                    "high": high,
                    "n": n,
                }
            )
    return pd.DataFrame(rows, columns=["task", "title", "domain", "state", "accuracy", "sd", "low", "high", "n"])


def accuracy_bars(
    report: Report, theme: Theme, states: Sequence[str] | None = None, baseline: tuple[str, Report] | None = None
) -> Drawing:
    """Draw grouped bars: a group per task and one per average, a bar per state, with 95 % Wilson intervals.

    Args:
        report: of the run.
        theme: of the page.
        states: only these.
        baseline: title and report of another run, whose accuracies are outlines around the bars of the same states.
    """
    chosen = [state for state in scored_states(report) if states is None or state in states]
    table = accuracy_table(report)
    bars = [_bar(report, state, chosen, table[table["state"] == state], theme) for state in chosen]
    if baseline is not None:
        table = table.merge(_of_baseline(baseline[1]), on=["task", "state"], how="left")
        table["difference"] = table["accuracy"] - table["baseline"]
        bars += _outlines(report, *baseline, chosen, table, theme)
    figure = compose(
        bars,
        theme,
        height=400,
        legend=True,
        barmode="group",
        bargap=0.22,
        bargroupgap=0.04,
        hovermode="x unified",
        xaxis={"type": "category"},
        yaxis={"title": "Accuracy (%)", "range": [0, 102], "tickvals": [0, 25, 50, 75, 100]},
    )
    averages = [
        (state_title(state, report), report.average[state].within) for state in chosen if state in report.average
    ]
    alt = f"Accuracy of {len(report.tasks)} tasks in {len(chosen)} states. In-domain means: {listed(averages)}."
    if baseline is not None:
        alt += f" Outlines: {baseline[0]}."
    return Drawing(figure, table[table["state"].isin(chosen)].reset_index(drop=True), alt, "accuracy")


def delta_heatmap(report: Report, reference: str, theme: Theme) -> Drawing:
    """Draw accuracy minus a reference state's, in percentage points: a row per state, a column per task.

    The scale is symmetric around zero; cells without a value stay empty and are marked with a dash.
    """
    states = [state for state in scored_states(report) if state != reference]
    base = report.accuracy.get(reference, {})
    table = pd.DataFrame(
        {state: pd.Series(deltas(report.accuracy[state], base), dtype=float) for state in states}
    ).T.reindex(index=states, columns=list(report.tasks))
    values = table.to_numpy(dtype=float)
    limit = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    titles = under_groups(list(task_titles(report).values()))
    small = max(values.shape) <= NUMBERS_UP_TO
    heatmap = go.Heatmap(
        z=values,
        x=titles,
        y=[plain(state_title(state, report)) for state in states],
        colorscale=diverging(theme),
        zmin=-max(limit, 1e-9),
        zmax=max(limit, 1e-9),
        text=[[_signed(value) for value in row] for row in values],
        texttemplate="%{text}" if small else None,
        textfont={"color": INK["dark"]} if theme == "dark" else {},
        hoverinfo="skip",
        xgap=2,
        ygap=2,
        colorbar=colour_bar("percentage points", theme),
    )
    said = [[_signed(value) or "–" for value in row] for row in values]
    marks = cells(
        [plain(state_title(s, report)) for s in states], titles, said, "%{y}, %{x}: %{customdata} points<extra></extra>"
    )
    figure = compose(
        [heatmap, marks],
        theme,
        height=260 + 34 * len(states),
        plot_bgcolor=GAP[theme],
        xaxis=CATEGORIES,
        yaxis={**CATEGORIES, "autorange": "reversed"},
        annotations=_dashes(values, theme),
    )
    alt = (
        f"Accuracy of {len(states)} states on {len(titles)} tasks, minus that of {state_title(reference, report)}, in "
        f"percentage points, from {number(np.nanmin(values) if np.isfinite(values).any() else None)} to "
        f"{number(np.nanmax(values) if np.isfinite(values).any() else None)}."
    )
    table.columns = beside(("state",), table.columns, "task")
    return Drawing(figure, table.reset_index(names="state"), alt, f"accuracy-minus-{reference}")


def confusion_table(samples: pd.DataFrame, task: str, state: str, classes: Sequence[str]) -> pd.DataFrame:
    """Return counts of evaluation images by true class (rows) and predicted class (columns); empty without any."""
    rows = samples[(samples["task"] == task) & (samples["state"] == state)]
    if rows.empty:
        return pd.DataFrame(columns=list(classes))
    counts = confusion(rows["prediction"].to_numpy(), rows["label"].to_numpy(), len(classes))
    return pd.DataFrame(counts, index=pd.Index(classes, name="true class"), columns=list(classes))


def confusion_figure(counts: pd.DataFrame, state: str, report: Report, theme: Theme) -> Drawing:
    """Draw a confusion matrix in percent of the true class, from 0 to 100 so that states can be compared."""
    totals = counts.to_numpy(dtype=float).sum(axis=1, keepdims=True)
    share = np.divide(100 * counts.to_numpy(dtype=float), totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    names = [plain(name) for name in counts.columns]
    size = len(names)
    heatmap = go.Heatmap(
        z=share,
        x=names,
        y=names,
        colorscale=CIVIDIS,
        zmin=0,
        zmax=100,
        texttemplate="%{z:.0f}" if size <= NUMBERS_UP_TO else None,
        hoverinfo="skip",
        xgap=1,
        ygap=1,
        colorbar=colour_bar("% of the true class", theme),
    )
    said = [
        [f"{number(part)} % ({count} images)" for part, count in zip(*rows, strict=True)]
        for rows in zip(share.tolist(), counts.to_numpy().tolist(), strict=True)
    ]
    marks = cells(names, names, said, "true %{y}, predicted %{x}: %{customdata}<extra></extra>")
    figure = compose(
        [heatmap, marks],
        theme,
        height=180 + max(240, 26 * size),
        plot_bgcolor=GAP[theme],
        xaxis={**CATEGORIES, "title": "Predicted class", "tickangle": -90},
        yaxis={**CATEGORIES, "title": "True class", "autorange": "reversed"},
        annotations=_dashes(share, theme),
    )
    total = int(totals.sum())
    right = 100 * float(np.trace(counts.to_numpy())) / total if total else None
    title = state_title(state, report)
    alt = f"Confusion matrix of {title}: {size} classes, {total} images, {number(right)} % on the diagonal."
    table = counts.set_axis(beside((counts.index.name,), counts.columns, "class"), axis=1)
    return Drawing(figure, table.reset_index(), alt, f"confusion-{state}")


def _bar(report: Report, state: str, states: Sequence[str], rows: pd.DataFrame, theme: Theme) -> go.Bar:
    """Return one state's bars: tasks, then averages."""
    means = _means(report, state)
    blank = [np.nan] * len(means)
    return go.Bar(
        name=plain(state_title(state, report)),
        x=[*under_groups(rows["title"]), *(name for name, _ in means)],
        y=[*rows["accuracy"], *(value for _, value in means)],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [*(rows["high"] - rows["accuracy"]), *blank],
            "arrayminus": [*(rows["accuracy"] - rows["low"]), *blank],
            "thickness": 1,
            "width": 2,
            "color": MUTED[theme],
        },
        marker=fill(state, states, theme),
        offsetgroup=state,
        customdata=[*map(_interval, rows["low"], rows["high"], rows["n"]), *("mean over tasks" for _ in means)],
        hovertemplate="%{y:.1f} %  (%{customdata})",
    )


def _of_baseline(report: Report) -> pd.DataFrame:
    """Return a baseline's accuracies by task and state."""
    return accuracy_table(report)[["task", "state", "accuracy"]].rename(columns={"accuracy": "baseline"})


def _outlines(
    report: Report, title: str, baseline: Report, states: Sequence[str], table: pd.DataFrame, theme: Theme
) -> list[go.Bar]:
    """Return an outline for each state that a baseline has too, at the place of the run's own bar."""
    found = []
    for state in states:
        rows = table[table["state"] == state]
        if state not in baseline.accuracy or rows["baseline"].isna().all():
            continue
        means = {title: _mean_of_baseline(rows, domain) for _, domain, title in AVERAGES}
        groups = [name for name, _ in _means(report, state)]
        found.append(
            go.Bar(
                name=plain(f"Baseline: {title}"),
                x=[*under_groups(rows["title"]), *groups],
                y=[*rows["baseline"], *(means[name] for name in groups)],
                offsetgroup=state,
                legendgroup="baseline",
                showlegend=not found,
                marker={"color": "rgba(0,0,0,0)", "line": {"color": INK[theme], "width": 1.5}},
                customdata=[plain(state_title(state, report))] * (len(rows) + len(groups)),
                hovertemplate="%{customdata}, baseline: %{y:.1f} %<extra></extra>",
            )
        )
    return found


def _mean_of_baseline(rows: pd.DataFrame, domain: str) -> float:
    """Return a baseline's mean over the tasks that the run's own mean is over; NaN where it lacks one of them."""
    own = rows[(rows["domain"] == domain) & rows["accuracy"].notna()]
    return float(own["baseline"].mean(skipna=False))


def _means(report: Report, state: str) -> list[tuple[str, float]]:
    """Return the averages that exist for any state, so that every state has the same groups."""
    found = []
    for field, _, title in AVERAGES:
        if any(getattr(average, field) is not None for average in report.average.values()):
            average = report.average.get(state)
            value = getattr(average, field) if average else None
            found.append((title, np.nan if value is None else value))
    return found


def _sd(report: Report, state: str, task: str) -> float:
    value = report.accuracy_sd.get(state, {}).get(task)
    return np.nan if value is None else value


def _interval(low: float, high: float, n: int) -> str:
    return f"95 % interval {rounded(low)} to {rounded(high)}, n = {n:,}" if np.isfinite(low) else "no value"


def _signed(value: float) -> str:
    return "" if not np.isfinite(value) else rounded(value, signed=True).replace("-", "−")


def _dashes(values: np.ndarray, theme: Theme) -> list[dict]:
    """Return a dash for every cell without a value."""
    if max(values.shape, default=0) > MARKED_UP_TO:
        return []
    font = {"color": MUTED[theme]}
    cells = np.argwhere(~np.isfinite(values)).tolist()
    return [{"x": column, "y": row, "text": "–", "showarrow": False, "font": font} for row, column in cells]
