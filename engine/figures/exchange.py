"""A comparison of runs for other programs and papers: CSV, Markdown, LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from ..outgoing import csv_table, latex_tabular
from ..rounding import rounded
from ..zoo.nouns import called, kind_of_zoo
from .compare import Compared, against, average_table, state_label, state_of, task_table
from .differences import measurement_warnings

MEANS = (("in", "Mean, in-domain"), ("out", "Mean, out-of-domain"), ("h_score", "H"))


def long_table(runs: Sequence[Compared], state: str) -> pd.DataFrame:
    """Return one row per run and task, with what the run was measured on; the last rows of a run are its means.

    Returns:
        Columns run, id, title, zoo, zoo_digest, protocol, split_seed, state, task, domain, n, accuracy, difference
        (to the first run, percentage points).
    """
    rows = []
    tasks, means = task_table(runs, state), average_table(runs, state).set_index("run")
    for run in runs:
        report = run.report
        of = [
            run.letter,
            run.id,
            run.title,
            report.zoo.name,
            report.zoo.digest,
            report.protocol,
            report.split_seed,
            state_of(run, state),
        ]
        for line in tasks.to_dict("records"):
            if line["task"] in report.tasks:
                n = report.samples[line["task"]].evaluate if line["task"] in report.samples else 0
                domain = report.tasks[line["task"]].domain
                difference = line.get(against(run, runs), np.nan)
                rows.append([*of, line["task"], domain, n, line[run.letter], difference])
        for domain in ("in", "out"):
            mean = means.loc[run.letter]
            rows.append([*of, "(mean)", domain, None, mean[domain], mean[f"{domain}_delta"]])
    columns = [
        "run",
        "id",
        "title",
        "zoo",
        "zoo_digest",
        "protocol",
        "split_seed",
        "state",
        "task",
        "domain",
        "n",
        "accuracy",
        "difference",
    ]
    return pd.DataFrame(rows, columns=columns).astype({"n": "Int64"})


def to_csv(runs: Sequence[Compared], state: str) -> str:
    """Render :func:`long_table` as CSV."""
    return csv_table(long_table(runs, state))


def to_markdown(runs: Sequence[Compared], state: str) -> str:
    """Render the comparison as Markdown: the runs, the table, and what keeps them from being comparable."""
    lines = [f"- **{run.letter}** {_markdown(run.title)} ({_markdown(measured(run))})" for run in runs]
    head = ["", *(run.letter for run in runs)]
    table = [head, ["---", *["---:"] * len(runs)], *([_markdown(name), *cells] for name, cells in _rows(runs, state))]
    found = _unlike(runs)
    notes = ["", "Not measured alike:", "", *(f"- {_markdown(text)}" for text in found)] if found else []
    return "\n".join(
        [
            *lines,
            "",
            *(f"| {' | '.join(row)} |" for row in table),
            "",
            _markdown(_caption(runs, state)),
            *notes,
            "",
        ]
    )


def to_latex(runs: Sequence[Compared], state: str) -> str:
    """Render the comparison as a LaTeX table whose caption says what was measured; needs no package."""
    runs_said = " ".join(f"{run.letter}: {run.title} ({measured(run)})." for run in runs)
    found = _unlike(runs)
    notes = ["Not measured alike.", *found] if found else []
    caption = " ".join([_caption(runs, state), runs_said, *notes])
    rows = [(name, *cells) for name, cells in _rows(runs, state)]
    return latex_tabular(["", *(run.letter for run in runs)], rows, f"l{'r' * len(runs)}", caption)


def measured(run: Compared) -> str:
    """Return the data and protocol of a run in one line."""
    report = run.report
    counts = sorted({samples.evaluate for samples in report.samples.values()})
    n = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,}–{counts[-1]:,}" if counts else "no"
    many = kind_of_zoo(report.recipe.zoo).many
    return (
        f"{report.zoo.title or report.zoo.name}, {n} {many} a task, {report.protocol.replace('_', '-')}, "
        f"split seed {report.split_seed}, training seed{'s' if len(report.seeds) > 1 else ''} "
        f"{', '.join(map(str, report.seeds))}"
    )


def _rows(runs: Sequence[Compared], state: str) -> list[tuple[str, list[str]]]:
    """Return name and cells of every row: tasks, then means, then bias."""
    tasks, means = task_table(runs, state), average_table(runs, state)
    rows = [
        (line["title"], [_cell(line[run.letter], line.get(against(run, runs), np.nan)) for run in runs])
        for line in tasks.to_dict("records")
    ]
    for field, title in MEANS:
        if means[field].notna().any():
            changes = means.get(f"{field}_delta", pd.Series(np.nan, means.index))
            rows.append((title, [_cell(*pair) for pair in zip(means[field], changes, strict=True)]))
    if means["l1"].notna().any():
        rows.append(("L1 bias", [_cell(value, np.nan, 3) for value in means["l1"]]))
    return rows


def _unlike(runs: Sequence[Compared]) -> list[str]:
    """Return what keeps runs from being comparable, said of the first one's kind of samples."""
    kind = kind_of_zoo(runs[0].report.recipe.zoo)
    return [called(text, kind) for text in measurement_warnings(runs)]


def _caption(runs: Sequence[Compared], state: str) -> str:
    label = state_label(state, runs)
    many = kind_of_zoo(runs[0].report.recipe.zoo).many
    return f"{label}: accuracy in percent of evaluation {many}; in brackets, points against {runs[0].letter}."


def _cell(value: float, change: float, digits: int = 1) -> str:
    if np.isnan(value):
        return "–"
    points = "" if np.isnan(change) else f" ({rounded(change, signed=True)})".replace("-", "−")
    return rounded(value, digits) + points


def _markdown(text: str) -> str:
    """Escape text for Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#~$])", r"\\\1", " ".join(text.split()))


EXPORTS: dict[str, tuple[str, str, Callable[[Sequence[Compared], str], str]]] = {
    "Markdown": ("md", "text/markdown", to_markdown),
    "LaTeX": ("tex", "application/x-tex", to_latex),
    "CSV": ("csv", "text/csv", to_csv),
}  # title → ending, type, renderer
