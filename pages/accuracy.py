"""Accuracy: what every state gets right, task by task, what changed, and which classes are confused."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from engine.analysis.accuracy import deltas
from engine.figures import (
    Drawing,
    confusion_figure,
    confusion_table,
    delta_heatmap,
    scored_states,
    state_title,
    training_curves,
)
from engine.figures.curves import QUANTITIES
from engine.figures.diagnosis.answer import signed
from engine.figures.drawing import task_titles
from pages.sections.accuracy_bars import draw_accuracy
from pages.sections.published import draw_published
from pages.sections.task_measures import draw_measures
from pages.shared.causes import CLICK, class_pick, task_pick
from pages.shared.chrome import context_bar, empty_state, figure, plain, theme
from pages.shared.differences import draw_differences, paired_table
from pages.shared.drawn import drawn
from pages.shared.nouns import called, kind_of
from pages.shared.one_of import one_of
from pages.shared.selection import task_choice
from pages.shared.state import RunView, current_run, samples, scored_by_task
from pages.shared.tables import draw_table

MATRICES = 3  # confusion matrices side by side


def main() -> None:
    """Draw averages, bars, differences, confusions, training."""
    run = current_run()
    context_bar(run)
    st.title("Accuracy, task by task", anchor=False)
    if not run.report.accuracy:
        many = kind_of(run.report).many
        empty_state(
            "No accuracy",
            f"This page shows what share of {many} every state gets right. This run merged weights only: its zoo has "
            f"no {many} or no heads. Run a recipe on a zoo that has both.",
        )
        return
    _averages(run)
    draw_accuracy(run, "accuracy.bars", "Accuracy in percent, lines are 95 % Wilson intervals")
    _cost(run)
    draw_published(run)
    draw_measures(run)
    _differences(run)
    _confusions(run)
    _training(run)


def _averages(run: RunView) -> None:
    """Draw a row per state: averages, their differences, and the gap between merged and experts that is closed."""
    report = run.report
    rows = [(state, report.average[state]) for state in scored_states(report) if state in report.average]
    within = pd.Series([average.within for _, average in rows], [state for state, _ in rows], dtype=float)
    against = {"pretrained": "vs pretrained", "merged": "vs merged", "expert": "vs experts"}
    columns = {
        "State": [state_title(state, report) for state, _ in rows],
        "In-domain (%)": within.tolist(),
        **{title: (within - within[state]).tolist() for state, title in against.items() if state in within},
        "Out-of-domain (%)": [average.out for _, average in rows],
        "H (%)": [average.h_score for _, average in rows],
        "Gap closed (%)": [average.recovered for _, average in rows],
    }
    table = pd.DataFrame(columns).dropna(axis=1, how="all")
    numbers = {
        name: st.column_config.NumberColumn(format="%+.1f" if name.startswith("vs") else "%.1f")
        for name in table.columns[1:]
    }
    draw_table(table, hide_index=True, key="accuracy.averages", column_config=numbers, placeholder="–")
    st.caption(
        "Means over tasks, each task counts the same; differences are in-domain percentage points. H is the harmonic "
        "mean of in- and out-of-domain accuracy. Gap closed: how much of the way from merged to experts is regained."
    )


def _cost(run: RunView) -> None:
    """Say which task merging cost most, and which one was repaired best."""
    accuracy, titles = run.report.accuracy, task_titles(run.report)
    lost = {
        task: value
        for task, value in deltas(accuracy.get("merged", {}), accuracy.get("expert", {})).items()
        if value is not None
    }
    if not lost:
        return
    worst = min(lost, key=lost.get)
    text = f"Merging costs {plain(titles[worst])} most: {signed(lost[worst])} points against its expert."
    if lost[worst] >= 0:
        text = f"Merging costs no task anything; {plain(titles[worst])} gains least: {signed(lost[worst])} points."
    for name in list(run.report.calibrators)[-1:]:
        gained = {task: v for task, v in deltas(accuracy.get(name, {}), accuracy["merged"]).items() if v is not None}
        if gained:
            best = max(gained, key=gained.get)
            title = plain(state_title(name, run.report))
            most = f"most back to {plain(titles[best])}" if gained[best] > 0 else "nothing back, at best"
            text += f" {title} gives {most}: {signed(gained[best])} points."
    st.write(text)


@st.fragment
def _differences(run: RunView) -> None:
    """Draw the heatmap of differences to a state that is chosen."""
    states = scored_states(run.report)
    if len(states) < 2:
        return
    st.subheader("What changed", anchor=False)
    reference = one_of(
        "Compared with",
        states,
        format_func=lambda state: state_title(state, run.report),
        default="merged" if "merged" in states else states[0],
        key="accuracy.reference",
        help="Differences are accuracy minus that of this state, in percentage points.",
    )
    look = theme()
    drawing = drawn(run, ("delta", look, reference), lambda: delta_heatmap(run.report, reference, look))
    figure(drawing, key="accuracy.delta", run=run, unit="Percentage points", note=CLICK, pick=task_pick(run))
    _intervals(run, reference, [state for state in states if state != reference])


def _intervals(run: RunView, reference: str, states: Sequence[str]) -> None:
    """Draw the differences of in-domain averages with their intervals, paired by image."""
    found = paired_table({state_title(state, run.report): (run, state) for state in states}, (run, reference))
    draw_differences(
        found,
        "State",
        f"In-domain mean minus that of {state_title(reference, run.report)}",
        "accuracy",
        kind_of(run.report),
    )


@st.fragment
def _confusions(run: RunView) -> None:
    """Draw confusion matrices of one task, states side by side on one scale."""
    st.subheader("Which classes are confused", anchor=False)
    scored = scored_by_task(run)
    tasks = [task for task in task_titles(run.report) if task in scored]
    if not tasks:
        empty_state("No predictions", "Here you see true against predicted classes. The run keeps no predictions.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        task = task_choice(run.report, tasks, key="accuracy.task", help="The task whose confusions are shown.")
        there = [state for state in scored_states(run.report) if state in scored[task]]
        last = [state for state in run.report.calibrators if state in there][-1:]
        wanted = [state for state in ("merged", *last, "expert") if state in there][:MATRICES]
        states = st.pills(
            "States",
            there,
            selection_mode="multi",
            default=wanted,
            key=f"accuracy.states.{run.id}.{task}",
            bind="query-params",
            wrap=True,
            format_func=lambda state: state_title(state, run.report),
            help="The states whose confusion matrices stand side by side.",
        )
    classes = run.report.tasks[task].classes
    with st.grid("auto", min_column_width=340, gap="medium"):
        for state in states:
            with st.container():
                st.markdown(f"**{plain(state_title(state, run.report))}**")
                figure(
                    _confusion(run, task, state, tuple(classes)),
                    key=f"accuracy.confusion.{state}",
                    run=run,
                    unit="Percent of true class",
                    tasks=[task],
                    first_seed=True,
                    pick=class_pick(run, task),
                )
    if run.report.tasks[task].graded:
        st.caption(
            "Its answers are numbers; rows and columns are the grades nearest to them: what lies beside the "
            "diagonal is nearly right. *Other measures* has the correlation."
        )
        return
    st.caption(
        f"{CLICK} Rows are true classes. Wrong answers that pile up in one column mean that merging favours that class."
    )


def _confusion(run: RunView, task: str, state: str, classes: tuple[str, ...]) -> Drawing:
    look = theme()

    def make() -> Drawing:
        return confusion_figure(confusion_table(samples(run), task, state, classes), state, run.report, look)

    return drawn(run, ("confusion", look, task, state), make)


@st.fragment
def _training(run: RunView) -> None:
    """Draw the curves of the calibrators' training."""
    st.subheader("How the calibrators learned", anchor=False)
    if not any(part.curve for part in run.report.calibrators.values()):
        empty_state(
            "No calibrator was trained",
            "Here you see accuracy, bias and loss while a calibrator is trained. Add one to the recipe in the lab.",
        )
        return
    quantity = one_of(
        "Curve",
        list(QUANTITIES),
        format_func=lambda name: QUANTITIES[name].title,
        default="accuracy",
        key="accuracy.quantity",
        persist_state="session",
        help="What is followed while calibrators are trained: accuracy, L1 bias or the loss itself.",
    )
    look = theme()
    drawing = drawn(run, ("curves", look, quantity), lambda: training_curves(run.report, quantity, look))
    figure(drawing, key="accuracy.curves", run=run, unit=QUANTITIES[quantity].axis, first_seed=True)
    said = "The last step is what is reported: the best step would be a choice made on evaluation images."
    st.caption(called(said, kind_of(run.report)))


main()
