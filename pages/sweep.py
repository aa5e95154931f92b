"""Sweep: a recipe for several values of one or two of its parameters; curves, the best, and every run to open."""

import streamlit as st

from engine.errors import EngineError
from engine.figures.sweep import MEASURES, measured_states, sweep_curves, sweep_map, sweep_state_title
from engine.pipeline.viewing.shipped import SWEEP as SWEPT
from engine.recipe import REFERENCE_STATES
from engine.rounding import rounded
from engine.store import Run
from engine.sweeps import SweepRequest, SweepTable, read_table, sweep_title
from engine.sweeps.grid import value_text
from pages.forms import recipe as forms
from pages.forms.sweep import sweep_form
from pages.sections.sweep_film import sweep_film
from pages.sections.sweep_table import recipe_of, run_of_point, table_of
from pages.shared.chrome import age, empty_state, error_state, numbers_of, plain, plot, switcher, theme
from pages.shared.differences import draw_paired
from pages.shared.nouns import kind_of_zoo
from pages.shared.one_of import one_of
from pages.shared.progress import log_view, resume, show_progress
from pages.shared.service import ask, told_when_refused
from pages.shared.state import RUN, example_folder, examples, open_run, run_title, show_run, store
from pages.shared.tables import draw_table

SWEEP = "sweep"  # the address parameter: id of the sweep shown
LISTED = 50


def main() -> None:
    """Draw form, then the sweep shown: progress, figure, table, what can be done with a point."""
    st.title("How the result depends on a setting", anchor=False)
    rows = store().runs.list(kinds=("sweep",), limit=LISTED)
    with st.expander("New sweep", icon=":material/add_chart:", expanded=not rows, key="sweep.new"):
        request = sweep_form()
        if st.button(
            "Start", key="sweep.start", type="primary", icon=":material/play_arrow:", disabled=request is None
        ):
            start(request)
    row = _chosen(rows)
    if row is None:
        _no_sweep()
        return
    if row.active:
        show_progress(row, "sweep", title=True, below=_so_far)
    else:
        _ended(row)
        _result(row)


def _no_sweep() -> None:
    """Draw the sweep that came with an example, while there is none of one's own."""
    empty_state(
        "No sweep yet",
        "Choose a parameter and a range above: the recipe is run for every value, and a curve shows what in-domain and "
        "out-of-domain accuracy do. The best value is chosen on validation images, not on those shown.",
    )
    found = next((entry for entry in examples() if (example_folder(entry.id) / SWEPT).is_dir()), None)
    if found is None:
        return
    table = read_table(example_folder(found.id) / SWEPT)
    st.subheader(plain(f"{', '.join(table.titles)} of {found.title}, a sweep that came with the app"), anchor=False)
    measure = _measure(table)
    if measure:
        drawing = sweep_curves(table, measure, theme())
        plot(drawing, key="sweep.figure")
        st.caption(plain(table.provenance()))
        numbers_of(drawing, "sweep.figure", found.id)
    _best(table, kind_of_zoo(open_run(found.id).report.recipe.zoo).many)


@told_when_refused
def start(request: SweepRequest) -> None:
    """Ask for a sweep and show it."""
    row = ask("sweep", request.model_dump(mode="json"), sweep_title(request))
    st.query_params[SWEEP] = row.id
    st.session_state["sweep.shown"] = row.id
    st.rerun()


def _chosen(rows: list[Run]) -> Run | None:
    """Return the sweep that the address names, else the newest."""
    asked = st.query_params.get(SWEEP) or st.session_state.get("sweep.shown")
    found = store().runs.find(asked) if asked else None
    if found is None or found.kind != "sweep" or found.deleted:
        if st.query_params.get(SWEEP):
            st.toast("The address names a sweep that is not here (any more). Another one is shown.")
        found = rows[0] if rows else None
    if found is None:
        st.query_params.pop(SWEEP, None)
        return None
    titles = {row.id: f"{run_title(row)} · {age(row.created)} · {row.id[-4:]}" for row in [*rows, found]}
    switcher(
        "Sweep shown",
        titles,
        found.id,
        key="sweep.choice",
        on_choice=_show,
        help="Sweeps of this store, the newest first; the address names the one shown.",
    )
    _show(found.id)
    return found


def _show(ident: str) -> None:
    st.session_state["sweep.shown"] = ident
    st.query_params[SWEEP] = ident


def _so_far(row: Run) -> None:
    """Draw the curve of a sweep at work, as far as it is."""
    table = table_of(row)
    if table is not None and table.points:
        st.caption(f"{len(table.points)} of {SweepRequest.parse(row.request).count()} runs are there.")
        _figure(table, row, "in", ticking=True)


def _ended(row: Run) -> None:
    if row.state == "finished":
        return
    if row.state == "failed":
        error_state(EngineError(row.error), "The runs that had finished are kept, and are below.")
    else:
        st.info("This sweep was cancelled. The runs that had finished are kept.", icon=":material/info:")
    with st.container(horizontal=True):
        st.button("Go on", key="sweep.resume", icon=":material/replay:", on_click=resume, args=(row.id,))
    with st.expander("Log", key="sweep.log"):
        log_view(row.id)


def _result(row: Run) -> None:
    table = table_of(row)
    if table is None or not any(point.evaluation or point.failed for point in table.points):
        empty_state("No numbers", "No run of this sweep left accuracies: it was ended early, or its zoo has no data.")
        return
    measure = _measure(table)
    if measure:
        _figure(table, row, measure)
    _best(table, kind_of_zoo(str(row.request["recipe"]["zoo"])).many)
    _differences(table, row)
    sweep_film(row, table)
    _points(table, row)


def _measure(table: SweepTable) -> str | None:
    """Draw the choice of what is shown of a sweep's points; None where they have no accuracies."""
    there = [name for name in MEASURES if any(s not in ("expert",) for s in measured_states(table, name))]
    if not there:
        return None
    return one_of(
        "Measure",
        there,
        format_func=lambda name: MEASURES[name][0],
        default=there[0],
        key="sweep.measure",
        label_visibility="collapsed",
        help="Mean over in-domain tasks, over out-of-domain tasks, or their harmonic mean H.",
    )


def _figure(table: SweepTable, row: Run, measure: str, *, ticking: bool = False) -> None:
    states = [
        state for state in measured_states(table, measure) if state not in ("pretrained", *REFERENCE_STATES, "expert")
    ]
    if not states:
        return
    if len(table.places) == 2:
        state = st.selectbox(
            "State",
            states,
            format_func=sweep_state_title,
            key=f"sweep.state.{measure}",
            bind="query-params",
            width=320,
            help="The state whose accuracy the map shows.",
        )
        drawing = sweep_map(table, state, measure, theme())
    else:
        drawing = sweep_curves(table, measure, theme())
        drawing.figure.update_xaxes(range=_span(row))
    plot(drawing, key="sweep.figure")
    st.caption(plain(f"{table.provenance()} Sweep {row.id}."))
    numbers_of(drawing, "sweep.figure", row.id, ticking=ticking)


def _span(row: Run) -> list[float] | None:
    """Return the whole range of values, so that a curve grows into its place; None for words and single values."""
    values = row.request["settings"][0]["values"]
    if len(values) < 2 or not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return None
    margin = 0.04 * (max(values) - min(values))
    return [min(values) - margin, max(values) + margin]


def _best(table: SweepTable, many: str) -> None:
    """Draw the best point of every state, in words; ``many`` is what samples are called."""
    found = [(state, best) for state in table.states() if (best := table.best(state)) is not None]
    if not found:
        return
    lines = []
    for state, point in found:
        value = point.evaluation[state].within if state in point.evaluation else None
        equal = sum(other.choice.get(state) == point.choice[state] for other in table.points)
        tie = f", the first of {equal} equals" if equal > 1 else ""
        shown = "–" if value is None else rounded(value)
        lines.append(
            f"- **{plain(sweep_state_title(state))}**: {plain(point.title)} ({rounded(point.choice[state])} % on "
            f"{table.split} {many}{tie}; {shown} % on evaluation {many})"
        )
    st.markdown("\n".join(lines))


@st.fragment
def _differences(table: SweepTable, row: Run) -> None:
    """Draw the differences of all points to the best one of a state, paired by image, when somebody opens them."""
    states = [state for state in table.states() if table.best(state) is not None]
    part = st.expander(
        "Differences to the best, with intervals",
        icon=":material/straighten:",
        key=f"sweep.differences.{row.id}",
        on_change="rerun",
    )
    if not states or not part.open:
        return
    with part:
        state = st.selectbox(
            "State compared",
            states,
            format_func=sweep_state_title,
            key=f"sweep.differences.state.{row.id}",
            bind="query-params",
            width=320,
            help="The state whose points are compared with its best one, sample by sample.",
        )
        best = table.best(state)
        points = [best, *(point for point in table.points if point.number != best.number)]
        found = [(point.title, run_of_point(row, point)) for point in points]
        try:
            runs = [(title, open_run(child.id)) for title, child in found if child is not None]
        except EngineError as error:
            st.caption(plain(f"Differences have no intervals here: {error}"))
            return
        draw_paired(runs, state, "Value", f"In-domain mean minus that of {best.title}", f"sweep.{row.id}")


def _points(table: SweepTable, row: Run) -> None:
    """Draw all points as a table, as CSV, and what can be done with one."""
    lines = []
    states = [state for state in table.states() if state not in ("pretrained", *REFERENCE_STATES, "expert")]
    best = {state: point.number for state in states if (point := table.best(state))}
    for point in table.points:
        line = {title: _cell(value) for title, value in zip(table.titles, point.values, strict=True)}
        for state in states:
            average = point.evaluation.get(state)
            line[f"{sweep_state_title(state)} (%)"] = average.within if average else None
            if table.split:
                line[f"{sweep_state_title(state)}, {table.split[:3]}. (%)"] = point.choice.get(state)
        if "merged" in point.evaluation:
            line |= {"Merged out (%)": point.evaluation["merged"].out, "H": point.evaluation["merged"].h_score}
        line["Best of"] = ", ".join(sweep_state_title(state) for state in states if best.get(state) == point.number)
        if any(other.failed for other in table.points):
            line["Failed"] = point.failed
        lines.append(line)
    numbers = {
        name: st.column_config.NumberColumn(format="%.1f")
        for line in lines
        for name in line
        if name.endswith("(%)") or name == "H"
    }
    picked = draw_table(
        lines,
        column_config=numbers,
        hide_index=True,
        key=f"sweep.points.{row.id}",
        on_select="rerun",
        selection_mode="single-row",
        placeholder="–",
        alt=f"{len(lines)} runs of the sweep with their averages",
        height="content" if len(lines) <= 12 else 460,
    )
    chosen = [table.points[number] for number in picked["selection"]["rows"] if number < len(table.points)]
    with st.container(horizontal=True):
        st.download_button(
            "Download CSV",
            table.to_csv,
            file_name=f"sweep-{row.id}.csv",
            mime="text/csv",
            key="sweep.csv",
            icon=":material/download:",
            on_click="ignore",
        )
        point = chosen[0] if chosen else None
        child = run_of_point(row, point) if point else None
        if st.button(
            "Open this run",
            key="sweep.open",
            icon=":material/open_in_full:",
            disabled=child is None,
            help="Choose a row of the table first." if point is None else None,
        ):
            show_run(child.id)
            st.switch_page("pages/lab.py", query_params={RUN: child.id})
        if st.button(
            "Use these settings in the Lab",
            key="sweep.use",
            icon=":material/tune:",
            disabled=point is None,
            help="The Lab's form gets the recipe of the chosen row; nothing is run.",
        ):
            forms.load(recipe_of(row, point))
            st.switch_page("pages/lab.py")


def _cell(value: object) -> object:
    """Return a number as it is, so that the table can be sorted by it, and anything else as text."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else value_text(value)


main()
