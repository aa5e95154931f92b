"""Calibrate: how calibrators learned, how sure they are and what each cost; on demand, blocks, outliers and swaps."""

import pandas as pd
import streamlit as st

from engine.catalog import CALIBRATORS
from engine.figures import Drawing, state_title, training_curves
from engine.figures.curves import QUANTITIES, curve_table
from engine.figures.uncertainty import agreement, graded_tasks, uncertain_states, uncertainty_figure
from pages.sections.calibrate_image import one_image
from pages.sections.calibrate_stitched import shifted, stitched
from pages.sections.calibrate_views import coverage, depth, learned, outliers, wrong_task
from pages.shared.chrome import context_bar, empty_state, figure, percent, plain, theme
from pages.shared.drawn import drawn, shared
from pages.shared.nouns import called, kind_of
from pages.shared.one_of import one_of
from pages.shared.selection import ALL, task_choice
from pages.shared.state import RunView, current_run, samples
from pages.shared.tables import draw_table

BOTH = (
    "Thick: images that are scored; thin: images that the calibrator was fitted to. Where the thin line leaves the "
    "thick one behind, the calibrator remembers images instead of repairing the model. "
)
LAST = "The last step counts: the best one would be a choice made on evaluation images."


def main() -> None:
    """Draw curves, cost, uncertainty, then what is computed on demand."""
    run = current_run()
    context_bar(run)
    st.title("How the calibrators learned, and how sure they are", anchor=False)
    if not run.report.calibrators:
        empty_state(
            "No calibrator was trained",
            "Here you see curves while calibrators are trained, what each costs, and whether a calibrator that "
            "predicts its own uncertainty knows when it is wrong. Add one to the recipe in the lab.",
        )
    else:
        _training(run)
        _cost(run)
        learned(run)
        _uncertainty(run)
        st.fragment(one_image)(run)
        st.fragment(wrong_task)(run)
    if run.report.bias:
        st.fragment(depth)(run)
        st.fragment(stitched)(run)
        st.fragment(shifted)(run)
        st.fragment(outliers)(run)


@st.fragment
def _training(run: RunView) -> None:
    """Draw all calibrators on one axis, on both splits."""
    report = run.report
    with st.container(horizontal=True, vertical_alignment="bottom"):
        quantity = one_of(
            "Curve",
            list(QUANTITIES),
            format_func=lambda name: QUANTITIES[name].title,
            default="accuracy",
            key="calibrate.quantity",
            persist_state="session",
            help="What is followed while calibrators are trained: accuracy, L1 bias or the loss itself.",
        )
        names = list(report.calibrators)
        shown = st.pills(
            "Calibrators",
            names,
            selection_mode="multi",
            default=names,
            key=f"calibrate.shown.{run.id}",
            bind="query-params",
            wrap=True,
            format_func=lambda name: state_title(name, report),
            help="The calibrators whose curves are drawn.",
        )
        task = _task_of_curves(run)
    if not shown:
        empty_state("No calibrator chosen", "Choose one above to see its curve.")
        return
    look = theme()
    figure(
        drawn(
            run, ("curves", look, quantity, *shown, task), lambda: training_curves(report, quantity, look, shown, task)
        ),
        key="calibrate.curves",
        run=run,
        unit=QUANTITIES[quantity].axis,
        tasks=None if task is None else [task],
        first_seed=True,
    )
    curves, fitted = curve_table(report, task), QUANTITIES[quantity].adapt
    both = fitted in curves and curves[fitted].notna().any() and QUANTITIES[quantity].evaluate
    st.caption(called((BOTH if both else "") + LAST, kind_of(report)))


def _task_of_curves(run: RunView) -> str | None:
    """Return the task whose curves are shown; None for the mean, the only choice for runs of an earlier version."""
    there = {task for part in run.report.calibrators.values() for task in part.task_curves}
    if not there:
        return None
    task = task_choice(
        run.report,
        [task for task in run.report.tasks_of("in") if task in there],
        key="calibrate.curve.task",
        whole="Mean over tasks",
        width=220,
        help="The task whose curves are drawn, or their mean over tasks.",
    )
    return None if task == ALL else task


def _cost(run: RunView) -> None:
    """Draw a row a calibrator: accuracy, gap closed, memory of the fitted images, parameters, seconds."""
    report = run.report
    rows = []
    for name, part in report.calibrators.items():
        last = dict(zip(part.curve_columns, part.curve[-1], strict=True)) if part.curve else {}
        fitted, scored = last.get("accuracy_adapt"), last.get("accuracy_evaluate")
        average = report.average.get(name)
        rows.append(
            {
                "Calibrator": state_title(name, report),
                "On": part.on,
                "In-domain (%)": average.within if average else None,
                "Gap closed (%)": average.recovered if average else None,
                "Fitted − scored": fitted - scored if fitted is not None and scored is not None else None,
                "Parameters": part.parameters,
                "Needs the task": "yes" if part.needs_task_id else "no",
                "Seconds": report.timing_s.get(name),
            }
        )
    st.subheader("What each one costs and brings", anchor=False)
    table = pd.DataFrame(rows).dropna(axis=1, how="all")
    columns = {
        "In-domain (%)": st.column_config.NumberColumn(format="%.1f"),
        "Gap closed (%)": st.column_config.NumberColumn(format="%.0f"),
        "Fitted − scored": st.column_config.NumberColumn(
            format="%+.1f",
            help=called(
                "Accuracy on the images it was fitted to minus accuracy on the scored ones, in points.", kind_of(report)
            ),
        ),
        "Parameters": st.column_config.NumberColumn(format="localized"),
        "Seconds": st.column_config.NumberColumn(format="%.1f"),
    }
    draw_table(table, hide_index=True, key="calibrate.cost", column_config=columns, placeholder="–")
    notes = [
        f"**{row.title}.** {plain(row.departure)}"
        for part in report.calibrators.values()
        if (row := CALIBRATORS.get(part.method)) and row.departure
    ]
    with st.expander("Where paper and code differ", key="calibrate.departures"):
        st.markdown("\n\n".join(dict.fromkeys(notes)) or "Nothing is known to differ.")


@st.fragment
def _uncertainty(run: RunView) -> None:
    """Draw predicted σ against what is left of the drift."""
    st.subheader("Does it know when it is wrong?", anchor=False)
    table, inside = samples(run), run.report.tasks_of("in")
    table = table[table["task"].isin(inside)]
    states = uncertain_states(table, run.report)
    if not states:
        empty_state(
            "No calibrator with uncertainty",
            called(
                "ProbSurgery predicts a spread σ for every image. Add it to the recipe to see whether images with a "
                "large σ are those that stay far from the expert.",
                kind_of(run.report),
            ),
        )
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        state = st.selectbox(
            "Calibrator",
            states,
            format_func=lambda name: state_title(name, run.report),
            width=280,
            key="calibrate.state",
            bind="query-params",
            help="One that predicts its own uncertainty σ, as ProbSurgery does.",
        )
        task = task_choice(
            run.report,
            inside,
            key="calibrate.task",
            whole="All tasks",
            help=f"The task whose {kind_of(run.report).many} are ranked by predicted σ, or all of them.",
        )
    chosen, look = None if task == ALL else task, theme()
    found = shared(run, ("agreement", state, chosen), lambda: agreement(table, state, chosen, graded_tasks(run.report)))
    with st.grid("auto", min_column_width=150, gap="small"):
        st.metric(
            "Rank correlation",
            f"{found.rank_correlation:+.2f}",
            help="Spearman's ρ of σ with the distance to the expert after correction, mean over tasks: 1 would "
            "be a perfect ranking, 0 none.",
        )
        st.metric("Wrong, surest tenth", percent(found.wrong_low))
        st.metric("Wrong, least sure tenth", percent(found.wrong_high))

    def make() -> Drawing:
        return uncertainty_figure(table, state, run.report, look, chosen)

    figure(
        drawn(run, ("uncertainty", look, state, chosen), make),
        key="calibrate.uncertainty",
        run=run,
        unit=f"σ averaged over dimensions, images ranked within their task, {found.images:,} images",
        tasks=inside if chosen is None else [chosen],
        first_seed=True,
    )
    st.caption(
        "Where σ says something, line and bars rise from left to right. It plays no part when the calibrator is used: "
        "the mean is subtracted whatever σ says."
    )
    coverage(run, state, chosen)


main()
