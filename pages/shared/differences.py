"""Differences of accuracies with their intervals, as a table with what it says."""

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from engine.analysis.paired import MARGIN
from engine.errors import EngineError
from engine.figures.paired import difference_table
from engine.zoo.modalities import Modality
from pages.shared.chrome import plain
from pages.shared.nouns import called, kind_of
from pages.shared.state import RunView, samples_by_seed
from pages.shared.tables import draw_table


def draw_paired(runs: Sequence[tuple[str, RunView]], state: str, name: str, what: str, key: str) -> None:
    """Draw the in-domain differences of runs to the first one, paired by image, where the images are the same.

    Args:
        runs: name and run, what is subtracted first.
        state: that is compared.
        name: of the table's first column.
        what: which difference it is, for the caption.
        key: prefix of the widget's key.
    """
    if len(runs) < 2:
        return
    first = runs[0][1]
    try:
        found = paired_table({title: (run, state) for title, run in runs[1:]}, (first, state))
    except EngineError as error:
        st.caption(plain(f"Differences have no intervals here: {error}"))
        return
    draw_differences(found, name, what, key, kind_of(first.report))


def paired_table(compared: Mapping[str, tuple[RunView, str]], reference: tuple[RunView, str]) -> pd.DataFrame:
    """Return :func:`engine.figures.paired.difference_table` of states of runs, computed once for all who look at it.

    Args:
        compared: name → run and state.
        reference: run and state of what is subtracted, over whose in-domain tasks of right and wrong answers the mean
            is taken.

    Raises:
        EngineError: a run has no table of samples.
    """
    sides = tuple((name, run.stamp, state) for name, (run, state) in compared.items())
    return _paired_table(sides, (reference[0].stamp, reference[1]), compared, reference)


@st.cache_data(max_entries=128, show_spinner=False)
def _paired_table(
    sides: tuple[tuple[str, str, str], ...],
    base: tuple[str, str],
    _compared: Mapping[str, tuple[RunView, str]],
    _reference: tuple[RunView, str],
) -> pd.DataFrame:
    tables = {name: (samples_by_seed(run), state) for name, (run, state) in _compared.items()}
    run, state = _reference
    tasks = [task for task in run.report.tasks_of("in") if not run.report.tasks[task].graded]
    return difference_table(tables, (samples_by_seed(run), state), tasks)


def draw_differences(found: pd.DataFrame, name: str, what: str, key: str, kind: Modality) -> None:
    """Draw the table of :func:`engine.figures.paired.difference_table`; nothing where nothing could be paired.

    Args:
        found: the table.
        name: of its first column.
        what: which difference it is, for the caption.
        key: prefix of the widget's key.
        kind: of data.
    """
    if found.empty:
        return
    points = st.column_config.NumberColumn
    columns = {
        "name": name,
        "difference": points("Difference", format="%+.1f", help="Percentage points, mean over tasks"),
        "low": points("from", format="%+.1f", help="Lower end of the 95 % interval"),
        "high": points("to", format="%+.1f", help="Upper end of the 95 % interval"),
        "says": st.column_config.TextColumn(
            "What it says",
            help=f"Higher or lower: the interval leaves 0 out. No difference: all of it is within ± {MARGIN:g} points. "
            "Undecided: anything else.",
        ),
        "tasks": None,
        "images": None,
        "seeds": None,
    }
    draw_table(found, hide_index=True, key=f"{key}.paired", column_config=columns)
    tasks, images, seeds = (found[column].max() for column in ("tasks", "images", "seeds"))
    chance = f"{seeds} training seeds and " if seeds > 1 else "one training seed and " * int(seeds)
    by = f"95 % intervals of a bootstrap, paired by image, over {chance}{images:,} evaluation images"
    over = f"over {tasks} task{'s' if tasks != 1 else ''} that all sides have"
    st.caption(f"{plain(what)}, {over}, percentage points; {called(by, kind)}.")
