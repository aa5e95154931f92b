"""Compare: several finished runs side by side; what differs in them, what came out, what it cost."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from engine.errors import StoreError
from engine.figures import average_table, html_document, lettered, pareto_figure, recipe_differences, task_table
from engine.figures.compare import Compared, comparable_states, state_label, state_of
from engine.figures.differences import measurement_warnings
from engine.figures.exchange import EXPORTS, measured
from engine.figures.pareto import AXES, point_table
from pages.shared.choice import choose_runs
from pages.shared.chrome import empty_state, numbers_of, plain, plot, theme
from pages.shared.differences import draw_differences, paired_table
from pages.shared.nouns import called, kind_of
from pages.shared.one_of import one_of
from pages.shared.state import RunView
from pages.shared.tables import draw_table

MEANS = {
    "run": st.column_config.TextColumn("", width="small"),
    "state": "State",
    "in": st.column_config.NumberColumn("In-domain (%)", format="%.1f"),
    "in_delta": st.column_config.NumberColumn("Difference", format="%+.1f", help="Percentage points against A"),
    "out": st.column_config.NumberColumn("Out-of-domain (%)", format="%.1f"),
    "out_delta": st.column_config.NumberColumn("Difference (out)", format="%+.1f", help="Percentage points against A"),
    "h_score": st.column_config.NumberColumn("H (%)", format="%.1f"),
    "recovered": st.column_config.NumberColumn("Gap closed (%)", format="%.1f"),
    "l1": st.column_config.NumberColumn("L1 bias", format="%.3f"),
    "parameters": st.column_config.NumberColumn("Extra parameters", format="localized"),
    "seconds": st.column_config.NumberColumn("Seconds", format="%.1f", help="To merge and calibrate"),
}


def main() -> None:
    """Draw choice, warnings, runs, recipes, accuracy, cost, files."""
    st.title("Runs side by side", anchor=False)
    views = choose_runs()
    runs = lettered((view.id, view.title, view.report) for view in views)
    if len(runs) < 2:
        empty_state(
            "Choose two to six finished runs",
            "Here you see what differs in their recipes, what each gets right task by task, and what that costs.",
        )
        if views:
            _files(runs, views, "")
        return
    _measured(runs)
    _recipes(runs)
    state = _results(runs, views)
    _pareto(runs)
    _files(runs, views, state)


def _measured(runs: Sequence[Compared]) -> None:
    """Say which run each letter stands for, and warn of runs that were not measured alike."""
    st.markdown("\n".join(f"- **{run.letter}** {plain(run.title)} :gray[· {plain(measured(run))}]" for run in runs))
    found = measurement_warnings(runs)
    if found:
        text = "\n".join(f"- {plain(sentence)}" for sentence in found)
        st.warning(f"**These runs were not measured alike.** Read differences with care.\n\n{text}")


def _recipes(runs: Sequence[Compared]) -> None:
    st.subheader("What differs in the recipes", anchor=False)
    table = recipe_differences(runs)
    if table.empty:
        st.write("Nothing: the recipes ask for the same.")
        return
    draw_table(table, hide_index=True, key="compare.recipes", column_config={"setting": "Setting"})
    st.caption("Settings with their defaults written out; the rest is the same in all of these runs.")


def _results(runs: Sequence[Compared], views: Sequence[RunView]) -> str:
    """Draw averages and tasks of one state; returns the state."""
    states = comparable_states(runs)
    if not states:
        empty_state("No accuracies", "These runs merged weights only: their zoos have no data or no heads.")
        return ""
    st.subheader("What came out", anchor=False)
    state = st.selectbox(
        "State compared",
        states,
        format_func=lambda name: state_label(name, runs),
        width=320,
        key="compare.state",
        bind="query-params",
        persist_state="session",
        help="The merged model, a calibrator, or another state that these runs have.",
    )
    lacking = [run.letter for run in runs if state_of(run, state) is None]
    if lacking:
        st.caption(f"{', '.join(lacking)}: no such state.")
    means = average_table(runs, state).drop(columns="title").dropna(axis=1, how="all")
    draw_table(means, hide_index=True, key="compare.means", column_config=MEANS, placeholder="–")
    st.caption(
        "Means over tasks; differences are percentage points against A, where both are over the same tasks. L1 bias: "
        "mean distance of features to the expert's, feature units. Extra parameters: beyond one model, 32 bits of a "
        "mask count as one. Seconds: merging and calibrating, as computed first, encoding not counted."
    )
    _intervals(runs, views, state)
    _tasks(task_table(runs, state), runs)
    return state


def _intervals(runs: Sequence[Compared], views: Sequence[RunView], state: str) -> None:
    """Draw the differences of in-domain averages to the first run, paired by image, where the images are the same."""
    first, *others = [(run, view, state_of(run, state)) for run, view in zip(runs, views, strict=True)]
    known = [(run, view, name) for run, view, name in others if name and run.report.zoo == first[0].report.zoo]
    if first[2] is None or not known:
        return
    try:
        compared = {f"{run.letter} − {first[0].letter}": (view, name) for run, view, name in known}
        found = paired_table(compared, (first[1], first[2]))
    except StoreError as error:
        st.caption(plain(f"Differences have no intervals here: {error}"))
        return
    draw_differences(found, "Runs", f"{state_label(state, runs)}, in-domain mean", "compare", kind_of(first[1].report))


def _tasks(table: pd.DataFrame, runs: Sequence[Compared]) -> None:
    """Draw accuracies task by task."""
    columns = {"title": "Task", "domain": "Domain", "n": st.column_config.TextColumn("n", help="Samples scored")}
    numbers = {
        name: st.column_config.NumberColumn(
            f"{name} (%)" if len(name) == 1 else name, format="%.1f" if len(name) == 1 else "%+.1f"
        )
        for name in table.columns[4:]
    }
    draw_table(
        table.drop(columns="task"),
        hide_index=True,
        key="compare.tasks",
        column_config=columns | numbers,
        placeholder="–",
        height="content" if len(table) <= 12 else 460,
    )
    many = kind_of(runs[0].report).many
    st.caption(f"Accuracy in percent of n test {many}; differences in percentage points against {runs[0].letter}.")


def _pareto(runs: Sequence[Compared]) -> None:
    """Draw in-domain accuracy against a cost; the front."""
    there = {axis: known for axis, known in AXES.items() if len(point_table(runs, axis)) > 1}
    if not there:
        return
    st.subheader("What is gained, and at what price", anchor=False)
    axis = one_of(
        "Against",
        list(there),
        format_func=lambda name: there[name].title,
        default=next(iter(there)),
        key="compare.axis",
        persist_state="session",
        help="The second goal: a point is on the front when no other is better in both.",
    )
    drawing = pareto_figure(runs, axis, theme())
    plot(drawing, key="compare.pareto")
    st.caption(_reading(runs, axis))
    numbers_of(drawing, "compare.pareto", "comparison")


def _reading(runs: Sequence[Compared], axis: str) -> str:
    text = (
        "Large marks with a rim are on the front: no merged or calibrated state is better in one and as good in both. "
    )
    if axis == "out":
        text += "Calibrators know only their own tasks, so they have no out-of-domain value. "
    machines = {run.report.environment.get("machine", "") for run in runs}
    if axis == "seconds" and len(machines) > 1:
        text += "Seconds were taken on different machines. "
    apart = point_table(runs, axis)["group"].nunique() > 1
    different = called("Runs that were measured on different images have fronts of their own.", kind_of(runs[0].report))
    return text + (different if apart else "")


def _files(runs: Sequence[Compared], views: Sequence[RunView], state: str) -> None:
    """Draw the comparison and every run as files, made on click."""
    st.subheader("Take it with you", anchor=False)
    with st.container(horizontal=True):
        for title, (ending, kind, render) in EXPORTS.items() if state else ():
            st.download_button(
                f"Comparison, {title}",
                lambda render=render: render(runs, state),
                key=f"compare.{ending}",
                file_name=f"comparison-{state}.{ending}",
                mime=kind,
                on_click="ignore",
                icon=":material/download:",
            )
    with st.container(horizontal=True):
        for run, view in zip(runs, views, strict=True):
            st.download_button(
                f"Report of {run.letter}, HTML",
                lambda view=view: html_document(view.folder, view.title),
                key=f"compare.html.{run.id}",
                file_name=f"{run.id}.html",
                mime="text/html",
                on_click="ignore",
                icon=":material/description:",
                help=f"{plain(run.title)}: figures, recipe, provenance in one file",
            )
    st.caption("A report is one file that loads nothing from the network.")


main()
