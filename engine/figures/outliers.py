"""Telling out-of-domain images by their distance to class prototypes: histograms, ROC, and AUROC by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..report import Report
from .drawing import Drawing, compose, listed, number, plain, task_titles
from .palette import INK, MUTED, Theme, state_colour, state_dash, state_title

BINS = 30
SIDES = {False: "the task's own images", True: "out-of-domain images"}


def score_histograms(scores: pd.DataFrame, report: Report, state: str, task: str, theme: Theme) -> Drawing:
    """Draw distances of own and out-of-domain images to the nearest prototype, in percent of each side.

    Args:
        scores: columns state, task, outside, score.
        report: gives titles.
        state: one state.
        task: one in-domain task; bins span all its states, so that panels can be compared.
        theme: ``light`` or ``dark``.
    """
    of_task = scores[scores["task"] == task]
    edges = np.histogram_bin_edges(of_task["score"], bins=BINS)
    rows, bars, medians = [], [], []
    colours = {False: state_colour(state, theme), True: MUTED[theme]}
    for outside, side in SIDES.items():
        values = of_task.loc[(of_task["state"] == state) & (of_task["outside"] == outside), "score"]
        share = 100 * np.histogram(values, edges)[0] / max(len(values), 1)
        medians.append((side, float(values.median())))
        rows.append(pd.DataFrame({"from": edges[:-1], "to": edges[1:], "images": side, "percent": share}))
        bars.append(
            go.Bar(
                name=side.capitalize(),
                x=((edges[:-1] + edges[1:]) / 2).tolist(),
                y=share.tolist(),
                opacity=0.6,
                width=float(edges[1] - edges[0]),
                marker={"color": colours[outside]},
                hovertemplate="%{y:.1f} %",
            )
        )
    title = state_title(state, report)
    figure = compose(
        bars,
        theme,
        height=280,
        legend=True,
        barmode="overlay",
        hovermode="x unified",
        xaxis={"title": f"{plain(title)}: distance to the nearest prototype"},
        yaxis={"title": "Images (%)"},
    )
    alt = f"{title}: median distance to the nearest class prototype, {listed(medians, '', 2)}."
    return Drawing(figure, pd.concat(rows, ignore_index=True), alt, f"outliers-{state}-{task}")


def roc_points(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return false and true positive rates in percent at every threshold, from (0, 0) to (100, 100)."""
    thresholds = np.unique(np.concatenate([inside, outside]))
    rates = [
        100 * (1 - np.searchsorted(np.sort(side), thresholds, side="left") / len(side)) for side in (inside, outside)
    ]
    false, true = (np.concatenate([[0.0], rate[::-1]]) for rate in rates)
    return false, true


def roc_figure(
    scores: pd.DataFrame,
    aurocs: Mapping[str, Mapping[str, float]],
    report: Report,
    states: Sequence[str],
    task: str,
    theme: Theme,
) -> Drawing:
    """Draw a curve a state: out-of-domain images found, against the task's own images that are taken for such."""
    rows, lines, ends = [], [], []
    for state in states:
        part = scores[(scores["state"] == state) & (scores["task"] == task)]
        false, true = roc_points(*(part.loc[part["outside"] == side, "score"].to_numpy() for side in (False, True)))
        rows.append(pd.DataFrame({"state": state, "false_positive": false, "true_positive": true}))
        title = state_title(state, report)
        ends.append((title, aurocs[state][task]))
        lines.append(
            go.Scatter(
                name=f"{plain(title)} ({number(aurocs[state][task])} %)",
                x=false.tolist(),
                y=true.tolist(),
                mode="lines",
                line={"color": state_colour(state, theme), "dash": state_dash(state, states), "width": 2.2},
                hovertemplate="%{y:.1f} %",
            )
        )
    diagonal = {
        "type": "line",
        "x0": 0,
        "y0": 0,
        "x1": 100,
        "y1": 100,
        "line": {"color": MUTED[theme], "width": 1, "dash": "dot"},
    }
    figure = compose(
        lines,
        theme,
        height=400,
        legend=True,
        xaxis={"title": "Own images taken for outliers (%)", "range": [0, 100]},
        yaxis={"title": "Out-of-domain images found (%)", "range": [0, 101]},
        shapes=[diagonal],
    )
    title = task_titles(report)[task]
    alt = f"Out-of-domain images told from {title}, AUROC: {listed(ends)}."
    return Drawing(figure, pd.concat(rows, ignore_index=True), alt, f"roc-{task}")


def prototype_map(places: pd.DataFrame, report: Report, state: str, task: str, theme: Theme) -> Drawing:
    """Draw class prototypes among the task's own and out-of-domain images, in a plane of the features.

    Args:
        places: columns state, task, kind (``own``, ``outside``, ``prototype``), class, x, y.
        report: gives titles and classes.
        state: one state.
        task: one in-domain task.
        theme: ``light`` or ``dark``.
    """
    rows = places[(places["state"] == state) & (places["task"] == task)]
    names, title = report.tasks[task].classes, state_title(state, report)
    looks = {
        "outside": (SIDES[True], MUTED[theme], 5, "circle-open"),
        "own": (SIDES[False], state_colour(state, theme), 5, "circle"),
        "prototype": ("prototypes", INK[theme], 11, "x"),
    }
    points = []
    for kind, (name, colour, size, symbol) in looks.items():
        part = rows[rows["kind"] == kind]
        said = [plain(names[number]) for number in part["class"]] if kind == "prototype" else plain(name)
        points.append(
            go.Scatter(
                name=name.capitalize(),
                x=part["x"].tolist(),
                y=part["y"].tolist(),
                mode="markers",
                text=said,
                marker={"color": colour, "size": size, "symbol": symbol},
                opacity=1.0 if kind == "prototype" else 0.55,
                hovertemplate="%{text}<extra></extra>",
            )
        )
    figure = compose(
        points,
        theme,
        height=360,
        legend=True,
        xaxis={"title": f"{plain(title)}: first direction"},
        yaxis={"title": "Second direction", "scaleanchor": "x"},
    )
    count = int((rows["kind"] == "prototype").sum())
    spread = [float(np.hypot(part["x"], part["y"]).median()) for _, part in rows.groupby("kind")]
    alt = f"{title}: {count} class prototypes of {task_titles(report)[task]} among its own and out-of-domain images. "
    kinds = [name for name, _ in rows.groupby("kind")]
    alt += f"Median distance from the middle: {listed(list(zip(kinds, spread, strict=True)), '', 2)}."
    table = rows.drop(columns=["state", "task"])
    return Drawing(figure, table.reset_index(drop=True), alt, f"prototypes-{state}-{task}")


def auroc_table(aurocs: Mapping[str, Mapping[str, float]], report: Report) -> pd.DataFrame:
    """Return a row a state, a column a task, and the mean; percent."""
    titles = task_titles(report)
    table = pd.DataFrame(
        {
            titles[task]: {state_title(state, report): values.get(task) for state, values in aurocs.items()}
            for task in dict.fromkeys(task for values in aurocs.values() for task in values)
        }
    )
    table["Mean"] = table.mean(axis=1)
    return table.rename_axis("State").reset_index()
