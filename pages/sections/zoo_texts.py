"""The texts of a zoo, by split and class, with a search."""

import numpy as np
import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine.errors import EngineError
from engine.manifest import Task, locate_zoo
from pages.features.texts import Split, few_texts, matches, task_splits
from pages.shared.chrome import error_state, plain
from pages.shared.nouns import kind_of_zoo
from pages.shared.one_of import one_of
from pages.shared.tables import draw_table

SHOWN = 6  # texts of a class
CARD_LINES = 3
SPLIT_TITLES = {"test": "Test", "adapt": "Adapt", "val": "Validation", "train": "Train"}
DOMAINS = {"in": "in domain", "out": "out of domain"}


def text_gallery(zoo: str, task: Task, beside: DeltaGenerator) -> None:
    """Draw a task's texts by class.

    Args:
        zoo: name or path.
        task: its manifest entry.
        beside: place of the choice of a split.
    """
    try:
        found = task_splits(locate_zoo(zoo), kind_of_zoo(zoo), task)
    except EngineError as error:
        error_state(error, "Correct the zoo's files, then open this page again.")
        return
    with beside:
        name = one_of(
            "Split",
            list(found),
            default=next(iter(found)),
            key=f"zoo.split.{task.name}",
            format_func=lambda split: f"{SPLIT_TITLES[split]} · {len(found[split].texts):,}",
            help="Methods adapt on one split and are scored on another; the counts are texts.",
        )
    split = found[name]
    asked = st.text_input(
        "Find texts",
        key=f"zoo.search.{task.name}",
        bind="query-params",
        max_chars=80,
        icon=":material/search:",
        placeholder="words, such as: not good",
        help="Only texts that hold these words one after another.",
    )
    rows = matches(split.texts, asked) if asked.strip() else np.arange(len(split.texts))
    st.caption(
        plain(
            f"{task.label}, {DOMAINS[task.domain]}: {len(task.classes)} classes; {len(rows):,} of "
            f"{len(split.texts):,} texts."
        )
    )
    if split.labels is None:
        _list(split, rows[: 2 * SHOWN])
        st.caption("These texts have no labels: methods adapt on them.")
        return
    _classes(task, split, rows)
    _table(task, split, rows)


def sample_lines(zoo: str, task: Task) -> None:
    """Draw a few texts of a task; nothing where they cannot be read."""
    try:
        lines = few_texts(locate_zoo(zoo), kind_of_zoo(zoo), task, CARD_LINES)
    except EngineError:
        return
    st.markdown("\n".join(f"- {plain(line)}" for line in lines))


def _classes(task: Task, split: Split, rows: np.ndarray) -> None:
    with st.grid("auto", min_column_width=340, gap="small"):
        for number, name in enumerate(task.classes):
            own = rows[split.labels[rows] == number]
            with st.container(border=True, gap="xsmall"):
                st.markdown(f"**{plain(name)}** :small[{len(own):,} texts]")
                _list(split, own[:SHOWN])
    st.caption(f"At most {SHOWN} texts a class, the first of each.")


def _list(split: Split, rows: np.ndarray) -> None:
    if len(rows):
        st.markdown("\n".join(f"- {plain(split.texts[row])}" for row in rows))
    else:
        st.caption("None.")


def _table(task: Task, split: Split, rows: np.ndarray) -> None:
    part = st.expander("All of them", icon=":material/table_rows:", key="zoo.texts", on_change="rerun")
    if not part.open:
        return
    table = pd.DataFrame(
        {"text": [split.texts[row] for row in rows], "class": [task.classes[split.labels[row]] for row in rows]}
    )
    with part:
        draw_table(table, hide_index=True, width="stretch", key="zoo.texts.table")
