"""Sections of the calibrate page that are computed when somebody asks: depth, outliers, other tasks' calibrators."""

from pathlib import Path

import pandas as pd
import streamlit as st

from engine.catalog import CALIBRATORS
from engine.figures import Drawing, state_title
from engine.figures.block_bias import QUANTITIES, STATISTICS, block_figure
from engine.figures.coefficients import coefficient_figure, coefficients_of
from engine.figures.coverage import coverage_figure, dimension_figure
from engine.figures.drawing import expert_titles
from engine.figures.outliers import auroc_table, prototype_map, roc_figure, score_histograms
from engine.figures.wrong_task import own_and_others, wrong_task_figure
from engine.pipeline.views.coverage import COVERAGE
from engine.pipeline.views.depth import DEPTH
from engine.pipeline.views.outliers import OUTLIERS
from engine.pipeline.views.swaps import SWAPS
from pages.sections.calibrate_choices import choose, choose_tasks, count_of, lacks_blocks, open_view
from pages.shared.chrome import empty_state, figure, percent, plain, theme
from pages.shared.drawn import drawn
from pages.shared.nouns import called, kind_of
from pages.shared.selection import task_choice
from pages.shared.state import RunView
from pages.shared.tables import draw_table

SHOWN = {"l1": "L1", "cka": "CKA"}


def depth(run: RunView) -> None:
    """Draw bias after every block."""
    st.subheader("Where the drift arises", anchor=False)
    st.write(
        "Drift builds up block by block. Here the output of every block is compared with the "
        "expert's: where the lines part, merging does its harm, and a calibrator inside the encoder can act there."
    )
    if lacks_blocks(run, "No blocks to follow"):
        return
    takes = "Takes up to {images} images of every task through every model."
    folder = open_view(run, DEPTH, "Compare every block", ":material/layers:", takes, _depth)
    if folder is not None:
        _depth(run, folder)


def _depth(run: RunView, folder: Path) -> None:
    document = DEPTH.read(folder)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        quantity = choose(
            "Distance",
            SHOWN,
            "l1",
            "depth.quantity",
            "How the output of a block is compared with the expert's; L1 as in Surgery, arXiv:2402.02705.",
        )
        statistic = choose(
            "Of a block's tokens",
            STATISTICS,
            "class",
            "depth.statistic",
            "Compared on the class token, which is read off in the end, or on the mean of all tokens.",
        )
        tasks = choose_tasks(run, document, DEPTH, "The task whose images go through every block.")
    figure(
        block_figure(document, run.report, quantity, statistic, tasks, theme()),
        key="calibrate.depth.figure",
        run=run,
        unit=f"{QUANTITIES[quantity]}, {STATISTICS[statistic].lower()}",
        tasks=tasks,
        count=count_of(document, tasks),
    )
    st.caption(
        "Activations grow with depth, so L1 rises for every model: compare states at one block, not blocks with each "
        "other. CKA does not depend on scale. The mark at the right end is the feature itself. Calibrators of the "
        "output change nothing before it and are left out; IntervMerge has no tokens but the class "
        "token after the last block."
    )


def coverage(run: RunView, state: str, task: str | None) -> None:
    """Draw whether σ is as wide as the residuals: intervals by level, and dimensions."""
    takes = "Compares every predicted σ with the residual that it was predicted for."
    folder = open_view(
        run, COVERAGE, "Check σ image by image and dimension by dimension", ":material/straighten:", takes
    )
    if folder is None:
        return
    document = COVERAGE.read(folder)
    tasks = run.report.tasks_of("in") if task is None else [task]
    with st.grid("auto", min_column_width=340, gap="small"):
        with st.container():
            figure(
                coverage_figure(document, run.report, tasks, theme()),
                key="calibrate.coverage",
                run=run,
                unit="Share of residuals inside σ's intervals, mean over tasks",
                tasks=tasks,
                first_seed=True,
            )
        with st.container():
            figure(
                dimension_figure(document, run.report, state, tasks, theme()),
                key="calibrate.dimensions",
                run=run,
                unit="A point a dimension, feature units",
                tasks=tasks,
                first_seed=True,
            )
    st.caption(
        "On the dotted line σ would be right. A line below it on the left, and points above it on the right, mean that "
        "σ promises more than it keeps: what is trained is a draw's distance to the expert, and that is smallest "
        "without any spread. PDA's energy score is made to keep it."
    )


def learned(run: RunView) -> None:
    """Draw merging coefficients that learned together with a calibrator; nothing where none did."""
    for name, part in run.report.calibrators.items():
        found = coefficients_of(part.merging)
        if found is None:
            continue
        title = plain(state_title(name, run.report))
        st.subheader(f"Merging coefficients that learned with {title}", anchor=False)
        figure(
            coefficient_figure(found, expert_titles(run.report, found.experts), theme()),
            key=f"calibrate.lambda.{name}",
            run=run,
            unit="Learned coefficient λ",
            first_seed=True,
            adapted=True,
        )
        st.caption(f"{title} acts in a merged model of its own, made with these coefficients.")


def outliers(run: RunView) -> None:
    """Draw out-of-domain images told by their distance to class prototypes."""
    kind = kind_of(run.report)
    st.subheader(called("Can it tell images that belong to no task?", kind), anchor=False)
    if not run.report.tasks_of("out"):
        empty_state(
            "No out-of-domain task",
            f"Here you see whether distances to class prototypes tell {kind.many} of other "
            "domains apart. This zoo has no out-of-domain task.",
        )
        return
    takes = "Prototypes are means of adaptation features by predicted class; no label is read."
    folder = open_view(run, OUTLIERS, "Tell outliers apart", ":material/troubleshoot:", takes)
    if folder is None:
        return
    aurocs, look, made = OUTLIERS.read(folder)["auroc"], theme(), str(folder)
    task = task_choice(
        run.report,
        [task for task in run.report.tasks if any(task in v for v in aurocs.values())],
        key="calibrate.out.task",
        help=f"Whose {kind.many} are told apart from those of tasks that no expert was tuned on.",
    )
    states = [state for state in aurocs if task in aurocs[state]]

    def scores() -> pd.DataFrame:
        return pd.read_parquet(folder / "scores.parquet")

    def of_scores(state: str) -> Drawing:
        shown = ("scores", made, look, task, state)
        return drawn(run, shown, lambda: score_histograms(scores(), run.report, state, task, look))

    def roc() -> Drawing:
        return roc_figure(scores(), aurocs, run.report, states, task, look)

    figure(
        drawn(run, ("roc", made, look, task), roc),
        key="calibrate.roc",
        run=run,
        unit="AUROC in brackets: 50 % is chance",
        tasks=[task],
        first_seed=True,
    )
    with st.grid("auto", min_column_width=340, gap="small"):
        for state in states:
            with st.container():
                figure(
                    of_scores(state),
                    key=f"calibrate.scores.{state}",
                    run=run,
                    unit="Euclidean distance, feature units",
                    tasks=[task],
                    first_seed=True,
                )
    shown = st.selectbox(
        "Prototypes of",
        states,
        format_func=lambda name: state_title(name, run.report),
        width=260,
        key="calibrate.out.state",
        bind="query-params",
        help="The state whose features and class means are drawn.",
    )

    def prototypes() -> Drawing:
        return prototype_map(pd.read_parquet(folder / "map.parquet"), run.report, shown, task, look)

    share = percent(OUTLIERS.read(folder)["plane"][shown][task])
    figure(
        drawn(run, ("prototypes", made, look, task, shown), prototypes),
        key="calibrate.prototypes",
        run=run,
        tasks=[task],
        unit=f"Plane in which the task's own features spread most, {share} of their variance",
        first_seed=True,
    )
    columns = {"State": st.column_config.TextColumn()}
    table = auroc_table(aurocs, run.report)
    columns |= {name: st.column_config.NumberColumn(format="%.1f") for name in table.columns[1:]}
    draw_table(table, hide_index=True, key="calibrate.auroc", column_config=columns, placeholder="–")
    st.caption(
        f"AUROC in percent. Out-of-domain {kind.many} are corrected by the task's own calibrator, as they would be if "
        f"they came with its {kind.many}."
    )


def wrong_task(run: RunView) -> None:
    """Draw every task with every task's calibrator."""
    st.subheader("What if the wrong task's calibrator is used?", anchor=False)
    if not any(part.needs_task_id and not CALIBRATORS[part.method].deep for part in run.report.calibrators.values()):
        empty_state(
            "No module for each task",
            "Here you see each task with the module of every other. It takes a "
            "calibrator of the output with a module for each task, such as Surgery.",
        )
        return
    takes = "Corrects every task's features with the module of every other task."
    folder = open_view(run, SWAPS, "Swap the calibrators", ":material/swap_horiz:", takes)
    if folder is None:
        return
    document = SWAPS.read(folder)
    state = st.selectbox(
        "Calibrator",
        list(document["states"]),
        width=280,
        key="calibrate.wrong",
        bind="query-params",
        format_func=lambda name: state_title(name, run.report),
        help="The calibrator whose modules are swapped between tasks.",
    )
    own, others = own_and_others(document, state)
    figure(
        wrong_task_figure(document, run.report, state, theme()),
        key="calibrate.wrong.figure",
        run=run,
        unit="Accuracy (%), colour: points against no correction",
        first_seed=True,
    )
    if others is not None:
        st.write(
            f"{plain(state_title(state, run.report))}: {percent(own)} with the task's own module, {percent(others)} "
            "with another task's."
        )
