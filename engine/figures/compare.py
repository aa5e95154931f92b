"""Several runs side by side: which states can be compared, and their accuracy, bias and cost as tables.

Accuracies are percentages of evaluation images, differences percentage points; the first run is the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.accuracy import deltas, mean
from ..recipe import REFERENCE_STATES
from ..report import Report
from .drawing import task_titles
from .palette import state_title

MOST = 6  # runs in a comparison
LETTERS = "ABCDEF"
REPAIRED = "corrected"  # stands for the last calibrator of every run; a reserved name, so no calibrator has it


@dataclass(frozen=True, eq=False)
class Compared:
    """A run in a comparison and the letter by which it goes there."""

    letter: str
    id: str
    title: str
    report: Report


def lettered(runs: Iterable[tuple[str, str, Report]]) -> list[Compared]:
    """Give letters to runs of (id, title, report), in their order; at most six take part."""
    return [Compared(letter, *run) for letter, run in zip(LETTERS, runs, strict=False)]


def comparable_states(runs: Sequence[Compared]) -> list[str]:
    """Return states that at least one run has: merged first, then the last calibrators, each by name, and others."""
    there = dict.fromkeys(state for run in runs for state in run.report.states() if state in run.report.accuracy)
    calibrators = [state for state in there if any(state in run.report.calibrators for run in runs)]
    repaired = [REPAIRED] if any(state_of(run, REPAIRED) for run in runs) else []
    others = [state for state in ("pretrained", *REFERENCE_STATES, "expert") if state in there]
    return [state for state in ("merged",) if state in there] + repaired + calibrators + others


def state_of(run: Compared, state: str) -> str | None:
    """Return the state of a run that a compared state stands for; None where the run has none."""
    if state == REPAIRED:
        parts = run.report.calibrators.items()
        last = [name for name, part in parts if part.on == "merged" and name in run.report.accuracy]
        return last[-1] if last else None
    return state if state in run.report.accuracy else None


def state_label(state: str, runs: Sequence[Compared]) -> str:
    """Return the label of a compared state: its bare name where it is another method in another run."""
    if state == REPAIRED:
        return "Repaired (last calibrator)"
    titles = {state_title(state, run.report) for run in runs if state_of(run, state)}
    return titles.pop() if len(titles) == 1 else state


def task_table(runs: Sequence[Compared], state: str) -> pd.DataFrame:
    """Return one row per task that any run has a value of.

    Returns:
        Columns task, title, domain, n (evaluation images; several where runs differ), then for every run its letter
        (accuracy) and, but for the first, "B − A" (difference to the first); NaN where there is no value.
    """
    tables = [run.report.accuracy.get(state_of(run, state) or "", {}) for run in runs]
    rows = []
    for task in (task for task in tasks_of(runs) if any(table.get(task) is not None for table in tables)):
        having = [run.report for run in runs if task in run.report.tasks]
        counts = dict.fromkeys(f"{report.samples[task].evaluate:,}" for report in having if task in report.samples)
        row: dict[str, Any] = {
            "task": task,
            "title": task_titles(having[0])[task],
            "domain": "/".join(dict.fromkeys(report.tasks[task].domain for report in having)),
            "n": " / ".join(counts) or "0",
        }
        for run, table in zip(runs, tables, strict=True):
            row[run.letter] = _number(table.get(task))
            if run is not runs[0]:
                row[against(run, runs)] = _number(deltas({task: table.get(task)}, tables[0])[task])
        rows.append(row)
    columns = [name for run in runs for name in (run.letter, against(run, runs)) if name]
    return pd.DataFrame(rows, columns=["task", "title", "domain", "n", *columns])


def average_table(runs: Sequence[Compared], state: str) -> pd.DataFrame:
    """Return one row per run: means over tasks, L1 bias and cost of one state.

    Returns:
        Columns run, title, state (its title there), in, in_delta, out, out_delta, h_score, recovered, l1 (mean over
        in-domain tasks, feature units), parameters and seconds (see :func:`cost`). Differences are to the first run
        and NaN where the two averages are not over the same tasks.
    """
    rows = []
    for run in runs:
        name = state_of(run, state)
        average = run.report.average.get(name) if name else None
        row = {"run": run.letter, "title": run.title, "state": state_title(name, run.report) if name else "none"}
        for column, field, domain in (("in", "within", "in"), ("out", "out", "out")):
            row[column] = _number(getattr(average, field, None))
            same = run is not runs[0] and _scored(run, state, domain) == _scored(runs[0], state, domain)
            row[f"{column}_delta"] = row[column] - rows[0][column] if same else np.nan
        row |= {field: _number(getattr(average, field, None)) for field in ("h_score", "recovered")}
        l1 = run.report.bias[name].l1 if name in run.report.bias else {}
        row["l1"] = _number(mean(value for task, value in l1.items() if task in run.report.tasks_of("in")))
        parameters, seconds = cost(run.report, name) if name else (np.nan, np.nan)
        rows.append({**row, "parameters": parameters, "seconds": seconds})
    return pd.DataFrame(rows)


def cost(report: Report, state: str) -> tuple[float, float]:
    """Return the cost of a state beyond one pretrained model.

    Returns:
        Parameters (32 bits of a mask count as one) and seconds of merging and calibrating, image encoding not counted;
        NaN where the report does not tell.
    """
    if state == "pretrained":
        return 0.0, 0.0
    merged = report.merged.extra_parameters + report.merged.extra_bits / 32, report.timing_s.get("merge", np.nan)
    part = report.calibrators.get(state)
    if part is None:
        return merged if state == "merged" else (np.nan, np.nan)
    parameters, seconds = part.parameters, report.timing_s.get(state, np.nan)
    return (parameters + merged[0], seconds + merged[1]) if part.on == "merged" else (parameters, seconds)


def against(run: Compared, runs: Sequence[Compared]) -> str:
    """Return the name of the column with a run's differences; empty for the first run."""
    return "" if run is runs[0] else f"{run.letter} − {runs[0].letter}"


def tasks_of(runs: Sequence[Compared]) -> list[str]:
    """Return every task of any run, in-domain ones first."""
    found = {task: summary.domain for run in reversed(runs) for task, summary in run.report.tasks.items()}
    order = dict.fromkeys(task for run in runs for task in run.report.tasks)
    return sorted(order, key=lambda task: found[task] != "in")


def _scored(run: Compared, state: str, domain: str) -> set[str]:
    table = run.report.accuracy.get(state_of(run, state) or "", {})
    return {task for task in run.report.tasks_of(domain) if table.get(task) is not None}


def _number(value: float | None) -> float:
    return np.nan if value is None else value
