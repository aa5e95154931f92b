"""The measures that tasks of texts are published with, beside accuracy."""

import json

import pandas as pd
import streamlit as st

from engine.figures import scored_states, state_title
from engine.figures.drawing import task_titles
from engine.pipeline.views.exact_match import EXACT_MATCH
from engine.pipeline.views.measures import TASK_MEASURES
from pages.shared.chrome import plain
from pages.shared.nouns import kind_of
from pages.shared.on_demand import view_on_demand
from pages.shared.one_of import one_of
from pages.shared.state import RunView
from pages.shared.tables import draw_table
from pages.shared.zoos import zoo_manifest

NAMES = {"accuracy": "Accuracy", "matthews": "Matthews", "f1": "F1", "pearson": "Pearson", "spearman": "Spearman"}


def draw_measures(run: RunView) -> None:
    """Draw the measures of a run; nothing for kinds of data that are published with accuracies alone."""
    if kind_of(run.report).graded:
        st.fragment(_section)(run)


def _section(run: RunView) -> None:
    _own(run)
    if kind_of(run.report).answers(zoo_manifest(run.report.recipe.zoo)):
        _written(run)


def _written(run: RunView) -> None:
    """Draw how often models write the very answer."""
    st.subheader("Exact match", anchor=False)
    folder = view_on_demand(
        run,
        EXACT_MATCH,
        EXACT_MATCH.ask(run.report.recipe),
        key="accuracy.exact",
        label="Let the models write",
        icon=":material/edit_note:",
        takes="Lets pretrained model, merged model and experts write answers to up to 200 texts a task.",
        title=EXACT_MATCH.title,
    )
    if folder is None:
        return
    titles, rows = task_titles(run.report), []
    for task, part in EXACT_MATCH.read(folder)["tasks"].items():
        values = {state_title(state, run.report): value for state, value in part["percent"].items()}
        rows.append({"Task": titles.get(task, task), "n": part["images"], **values})
    columns = {name: st.column_config.NumberColumn(format="%.1f") for name in rows[0] if name not in ("Task", "n")}
    draw_table(pd.DataFrame(rows), hide_index=True, key="accuracy.exact.table", column_config=columns, placeholder="–")
    st.caption(
        "Percent of texts whose greedily written answer, at most 10 tokens, is the class's name letter by letter."
    )


def _own(run: RunView) -> None:
    """Draw every task's own measure, or one measure for all."""
    st.subheader("Other measures", anchor=False)
    folder = view_on_demand(
        run,
        TASK_MEASURES,
        TASK_MEASURES.ask(run.report.recipe),
        key="accuracy.measures",
        label="Measure every task",
        icon=":material/straighten:",
        takes="Reads the answers that the run left: Matthews' correlation, F1, Pearson's and Spearman's correlation.",
        title=TASK_MEASURES.title,
    )
    if folder is None:
        return
    found, titles = json.loads((folder / "measures.json").read_text("utf-8")), task_titles(run.report)
    states = scored_states(run.report)
    shown = one_of(
        "Measure",
        ["own", *NAMES],
        format_func=lambda name: NAMES.get(name, "Each task's own"),
        default="own",
        key="accuracy.measures.shown",
        label_visibility="collapsed",
        help="The measure that the zoo names for a task, accuracy where it names none; or one for all tasks.",
    )
    rows = []
    for task, part in found["tasks"].items():
        name = part["measure"] if shown == "own" else shown
        values = {state_title(state, run.report): part["states"].get(state, {}).get(name) for state in states}
        rows.append({"Task": titles.get(task, task), "Measure": NAMES[name], "n": part["samples"], **values})
    columns = {state_title(state, run.report): st.column_config.NumberColumn(format="%.1f") for state in states}
    draw_table(
        pd.DataFrame(rows), hide_index=True, key="accuracy.measures.table", column_config=columns, placeholder="–"
    )
    said = "Times 100; the first training seed's answers. F1 is that of class 1 where a task has two classes."
    if shown == "own" and found["mean"]:
        means = ", ".join(f"{state_title(state, run.report)} {value:.1f}" for state, value in found["mean"].items())
        said += f" In-domain {found['of']}: {means}."
    for task, part in found["tasks"].items():
        if part.get("why"):
            said += f" {titles.get(task, task)}: {part['why']}."
    st.caption(plain(said))
