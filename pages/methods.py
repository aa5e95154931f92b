"""Methods: every way to merge, what it needs, and what it measured on the current zoo."""

import streamlit as st

from engine.catalog import fits
from engine.catalog.survey import SOURCE
from engine.catalog.titles import recipe_title
from engine.catalog.words import at_inference, cost_of
from engine.errors import EngineError
from engine.figures.methods import Method, Result, Row, best_results, method_table, methods, shipped_said
from engine.figures.premerging import premerging_rows, premerging_table
from engine.figures.survey import survey_table
from engine.manifest import bundled_zoos
from engine.outgoing import csv_table
from engine.store import ACTIVE
from pages.forms.experts import first_of_each_task
from pages.forms.params import method_notes
from pages.sections.methods_data import missing, recipe_for, results_on
from pages.shared.chrome import duration, empty_state, error_state, plain
from pages.shared.differences import draw_paired
from pages.shared.nouns import kind_of_zoo
from pages.shared.one_of import one_of
from pages.shared.progress import cancel, progress_bar
from pages.shared.service import ask, keep_service, told_when_refused
from pages.shared.state import RUN, find_current, open_run, show_run, store
from pages.shared.tables import draw_table
from pages.shared.zoos import zoo_manifest

VIEWS = {"ours": "Every method here", "before": "Before merging", "survey": "The survey's overview"}
ASKED_BY = "methods"  # in the run table: tells runs of this page from those of the lab
TICK = 1.0
NUMBER = st.column_config.NumberColumn
KINDS = st.column_config.TextColumn("Data", width=110, help="Kinds of data whose encoders it knows")
COLUMNS = {
    "category": st.column_config.TextColumn("Family", width=150),
    "title": st.column_config.TextColumn("Method", width="medium", pinned=True),
    "in": NUMBER("In-domain (%)", format="%.1f"),
    "out": NUMBER("Out-of-domain (%)", format="%.1f"),
    "h_score": NUMBER("H (%)", format="%.1f", help="Harmonic mean of both"),
    "seconds": NUMBER("Merge (s)", format="%.2f", help="As computed first; encoding not counted"),
    "parameters": st.column_config.TextColumn("Parameters", width="small"),
    "needs": st.column_config.TextColumn("Needs", width=190),
    "kinds": KINDS,
    "learns": "Learns",
    "yields": "Makes",
    "source": st.column_config.LinkColumn("Source", display_text="paper", width="small"),
}
SURVEY = {
    "category": st.column_config.TextColumn("Category", width=150),
    "method": st.column_config.TextColumn("Method", width="medium", pinned=True),
    "in": COLUMNS["in"],
    "out": COLUMNS["out"],
    "h_score": COLUMNS["h_score"],
    "seconds": COLUMNS["seconds"],
    "measured": st.column_config.TextColumn("Measured", width="medium"),
    "run": st.column_config.TextColumn("Run", width=130),
    "ours": st.column_config.TextColumn("Stands for it here", width=180),
    "size": st.column_config.TextColumn("Size", width="small"),
    "tuning": st.column_config.TextColumn("Trains", width="small"),
    "data": "Data",
    "dynamic": st.column_config.TextColumn("Dynamic", width="small"),
    "level": "Level",
    "remark": st.column_config.TextColumn("Remark", width="large"),
}


BEFORE = {
    "family": st.column_config.TextColumn("Family", width="small"),
    "title": st.column_config.TextColumn("Method", width="medium", pinned=True),
    "summary": st.column_config.TextColumn("In a sentence", width="large"),
    "cost": NUMBER("Cost of a step", format="%.2f", help="CPU time, standard training's being 1"),
    "makes": st.column_config.TextColumn("Makes", width="medium"),
    "needs": st.column_config.TextColumn("Needs", width=190),
    "kinds": KINDS,
    "source": COLUMNS["source"],
}


def main() -> None:
    """Draw the zoo, the table, what is chosen in it, and what is missing."""
    st.title("Every method, side by side", anchor=False)
    st.write(
        "Merging methods by family, with what each needs beside the experts' weights and what it makes. Numbers come "
        "from finished runs on this zoo that merge all of its experts: those with default parameters first."
    )
    zoo = _zoo()
    try:
        manifest = zoo_manifest(zoo)
    except EngineError as error:
        error_state(error)
        return
    experts = tuple(first_of_each_task(manifest))
    _at_work()
    every = results_on(zoo, experts)
    results = best_results(every)
    view = one_of(
        "Table",
        list(VIEWS),
        format_func=VIEWS.__getitem__,
        default="ours",
        key="methods.view",
        persist_state="session",
        label_visibility="collapsed",
        help="What is built in here, what acts before merging, or the rows of the survey of merge methods.",
    )
    if view != "ours":
        _survey(results, every) if view == "survey" else _before()
        return
    table = method_table(results)
    picked = draw_table(
        table,
        column_order=list(COLUMNS),
        column_config=COLUMNS,
        hide_index=True,
        key="methods.table",
        on_select="rerun",
        selection_mode="multi-row",
        placeholder="–",
        height=640,
        width="stretch",
        alt=f"{len(table)} methods with what they need and what {len(results)} of them measured on this zoo",
    )
    st.caption(
        "Accuracy of the merged model, before any calibrator: means over tasks in percent. Settings that were tuned "
        "elsewhere may not suit this zoo; the page Sweep finds better ones. "
        + plain(shipped_said(zoo, kind_of_zoo(zoo).many))
    )
    keys = list(methods())
    chosen = [keys[number] for number in picked["selection"]["rows"] if number < len(keys)]
    _actions(zoo, len(experts), results, chosen)
    _differences(results, chosen)
    st.download_button(
        "Download CSV",
        lambda: csv_table(table).encode(),
        "methods.csv",
        "text/csv",
        key="methods.csv",
        on_click="ignore",
        icon=":material/download:",
    )


def _before() -> None:
    """Draw recipes of fine-tuning, distillation and ways to align, and the one chosen with its equation."""
    table = premerging_table()
    picked = draw_table(
        table,
        column_order=list(BEFORE),
        column_config=BEFORE,
        hide_index=True,
        key="methods.before",
        on_select="rerun",
        selection_mode="single-row",
        placeholder="–",
        height="content",
        width="stretch",
        alt=f"{len(table)} methods that act before merging, with what they cost, make and need",
    )
    st.caption(
        "Costs are processor seconds of a step relative to a standard one of the same round, medians over rounds, on "
        "the encoder of mini8, batches of 64, one thread. A joint step is a standard one on a mixed batch."
    )
    rows = premerging_rows()
    for number in picked["selection"]["rows"][:1]:
        with st.container(border=True):
            st.markdown(f"**{plain(rows[number].title)}**")
            method_notes(rows[number])
    st.page_link("pages/zoo.py", label="Train experts by a recipe", icon=":material/model_training:")


def _differences(results: dict[Method, Result], chosen: list[Method]) -> None:
    """Draw the differences of the chosen methods to the first of them, paired by image."""
    table = methods()
    known = [name for name in chosen if name in results and results[name].run]
    if len(known) < 2:
        return
    try:
        runs = [(table[name].title, open_run(results[name].run)) for name in known]
    except EngineError as error:
        st.caption(plain(f"Differences have no intervals here: {error}"))
        return
    draw_paired(runs, "merged", "Method", f"In-domain mean minus that of {runs[0][0]}", "methods")


def _survey(results: dict[Method, Result], every: list[Result]) -> None:
    """Draw the survey's overview, row by row, with what stands for each here."""
    table = survey_table(results, every)
    draw_table(
        table,
        column_order=list(SURVEY),
        column_config=SURVEY,
        hide_index=True,
        key="methods.survey",
        placeholder="–",
        height="content",
        width="stretch",
        alt=f"{len(table)} methods of the survey with what runs measured here",
    )
    st.caption(
        f"{plain(SOURCE)}. Size, tuning, data and level are the survey's; numbers are of the run named, on this zoo. "
        "A transform is measured in front of Task Arithmetic, a calibrator behind the merge that is named."
    )
    st.download_button(
        "Download CSV",
        lambda: csv_table(table).encode(),
        "survey.csv",
        "text/csv",
        key="methods.survey.csv",
        on_click="ignore",
        icon=":material/download:",
    )


def _zoo() -> str:
    """Let a zoo be chosen; that of the run shown comes first."""
    view = find_current()
    shown = view.report.recipe.zoo if view else "mini8"
    options = list(dict.fromkeys([shown, *bundled_zoos()]))
    return st.selectbox(
        "Zoo",
        options,
        key="methods.zoo",
        bind="query-params",
        width=320,
        persist_state="session",
        help="Numbers come from runs that merged all experts of this zoo.",
    )


def _actions(zoo: str, experts: int, results: dict[Method, Result], chosen: list[Method]) -> None:
    table = methods()
    gaps = missing(results, table, experts)
    with st.container(horizontal=True, vertical_alignment="center"):
        if chosen:
            runnable = [name for name in chosen if fits(table[name], experts)]
            st.button(
                f"Run {len(runnable)} chosen" if len(chosen) > 1 else "Run it",
                key="methods.run",
                type="primary",
                icon=":material/play_arrow:",
                on_click=_submit,
                args=(zoo, runnable),
                disabled=not runnable,
            )
        st.button(
            f"Run the {len(gaps)} without a run here that need weights alone" if gaps else "All have a run here",
            key="methods.missing",
            icon=":material/playlist_play:",
            disabled=not gaps,
            on_click=_submit,
            args=(zoo, gaps),
        )
    if len(chosen) == 1:
        _one(chosen[0], table[chosen[0]], results.get(chosen[0]), experts)
    elif not chosen:
        st.caption("Choose rows to run them, or one to read about it.")


def _one(method: Method, row: Row, result: Result | None, experts: int) -> None:
    """Draw one method, and the run that its numbers come from."""
    with st.container(border=True):
        st.markdown(f"**{plain(row.title)}**")
        method_notes(row)
        st.caption(plain(f"Cost: {cost_of(row)}. At inference it needs {at_inference(row)}."))
        if not fits(row, experts):
            most = getattr(row, "max_experts", None)
            wanted = f"at most {most}" if most and experts > most else f"at least {row.min_experts}"
            st.caption(plain(f"Takes {wanted} experts; choose them in the lab."))
        if result is None:
            empty_state("Not run on this zoo yet", "Run it to see what it keeps of the experts.")
        elif not result.run:
            st.caption("Its numbers come with the app. Run it to see more of it, and differences with intervals.")
        elif st.button(f"Open the run: {plain(result.title or result.run)}", key="methods.open", type="tertiary"):
            show_run(result.run)
            st.switch_page("pages/lab.py", query_params={RUN: result.run})


@told_when_refused
def _submit(zoo: str, chosen: list[Method]) -> None:
    """Put runs into the queue; the workers take them side by side."""
    table = methods()
    for method in chosen:
        recipe = recipe_for(method, table[method], zoo)
        request = {"recipe": recipe.model_dump(mode="json"), "projection": None}
        ask("run", request, recipe_title(recipe), by=ASKED_BY)


def _active() -> list[str]:
    rows = store().runs.list(kinds=("run",), states=ACTIVE, limit=200)
    return [row.id for row in rows if row.requested_by == ASKED_BY]


def _at_work() -> None:
    waiting = _active()
    if waiting:
        with st.container(border=True, key="methods.active"):
            st.fragment(_progress, run_every=TICK)(len(waiting))


def _progress(before: int) -> None:
    """Draw how many runs are left, and the page again when one has ended."""
    waiting = _active()
    if len(waiting) != before:
        st.rerun()
    first = store().runs.get(waiting[-1])
    with st.container(horizontal=True, vertical_alignment="center"):
        text = f"{len(waiting)} runs to go" if len(waiting) > 1 else "One run to go"
        spent = duration(first.elapsed) if first.started else plain(keep_service())
        progress_bar(first, f"{text}: {plain(first.name)}, {spent}")
        st.button("Cancel all", key="methods.cancel", icon=":material/stop_circle:", on_click=_cancel_all)


def _cancel_all() -> None:
    for ident in _active():
        cancel(ident)


main()
