"""All work of the store and the examples: find, open, compare, label, cancel, delete with undo, free space."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from engine.errors import EngineError
from engine.figures.compare import MOST
from engine.store import ACTIVE, Run
from pages.sections.runs_details import details
from pages.sections.runs_list import COLUMNS, example_line, kind_choices, kind_title, line_of
from pages.sections.runs_storage import storage_panel
from pages.shared.choice import RUNS
from pages.shared.chrome import duration, empty_state, plain
from pages.shared.devices import device_panel
from pages.shared.one_of import one_of
from pages.shared.people import desk
from pages.shared.progress import cancel_button, progress_bar, progress_text, resume
from pages.shared.state import RUN, examples, is_projection, run_title, show_run, store
from pages.shared.tables import draw_table

PAGE = 50  # rows added by "Show older runs"
TICK = 1.0
ENDED = ("finished", "failed", "cancelled")
FILTERS = {"All": ENDED, "Finished": ("finished",), "Failed": ("failed", "cancelled"), "Deleted": ENDED}
UNDO = "runs.undo"  # ids of the runs deleted last
TABLE = "runs.version"  # counts up to clear the selection


def main() -> None:
    """Draw work under way, then a table of what has ended and what can be done with the rows chosen in it."""
    st.title("Runs", anchor=False)
    _at_work()
    with st.container(horizontal=True, vertical_alignment="center"):
        search = st.text_input(
            "Search",
            key="runs.search",
            bind="query-params",
            placeholder="Search names, tags, notes, recipes",
            label_visibility="collapsed",
            width=320,
            persist_state="session",
            help="Words from names, tags, notes or recipes; all of them have to be found.",
        )
        kinds = st.selectbox(
            "Kind",
            list(kind_choices()),
            key="runs.kind",
            bind="query-params",
            label_visibility="collapsed",
            width=220,
            persist_state="session",
            help="Runs, sweeps and other work, or one kind of it alone.",
        )
        chosen = one_of(
            "Show",
            list(FILTERS),
            key="runs.filter",
            default="All",
            label_visibility="collapsed",
            persist_state="session",
            help="All work that has ended, or only what finished, failed or was deleted.",
        )
    _undo_bar()
    _ended(search or "", kind_choices()[kinds], chosen)
    device_panel()
    storage_panel()


def _at_work() -> None:
    active = [row.id for row in store().runs.list(states=ACTIVE)]
    if active:
        with st.container(border=True, key="runs.active"):
            st.fragment(_progress, run_every=TICK)(active)


def _progress(before: Sequence[str]) -> None:
    """Draw progress of everything at work; draws the page again when something begins or ends."""
    rows = store().runs.list(states=ACTIVE)
    if [row.id for row in rows] != list(before):
        st.rerun()
    for row in rows:
        with st.container(horizontal=True, vertical_alignment="center"):
            spent = duration(row.elapsed) if row.started else "queued"
            kind = "" if row.kind == "run" else f" {plain(f'({kind_title(row.kind).lower()})')}"
            text = f"**{plain(run_title(row))}**{kind} · {plain(progress_text(row))} · {spent}"
            progress_bar(row, text)
            cancel_button(row, f"runs.cancel.{row.id}")


def _ended(search: str, kinds: Sequence[str], chosen: str) -> None:
    limit = st.session_state.get("runs.limit", PAGE)
    deleted = chosen == "Deleted"
    views = "projection" in kinds  # they belong to runs
    rows = store().runs.list(
        kinds=kinds, states=FILTERS[chosen], search=search, deleted=deleted, children=views, limit=limit + 1
    )
    more = len(rows) > limit  # before some are left out
    if views:
        rows = [row for row in rows if row.kind != "run" or row.parent is None]
    else:
        rows = [row for row in rows if not is_projection(row)]
    known = [e for e in examples() if chosen in ("All", "Finished") and "run" in kinds and _matches(e.title, search)]
    if not rows and not known:
        if search or chosen != "All" or kinds != next(iter(kind_choices().values())):
            empty_state("No runs match", "Take words out of the search, or choose another kind or All above.")
            return
        text = "Runs that you start in the lab are listed here with their result, log and, if they fail, the reason."
        empty_state("No runs yet", text)
        return
    lines = [line_of(row) for row in rows[:limit]] + [example_line(entry) for entry in known]
    columns = [name for name in COLUMNS if name in ("State", "Run") or any(line.get(name) for line in lines)]
    picked = draw_table(
        pd.DataFrame(lines, columns=["id", *COLUMNS]),
        column_order=columns,
        column_config=COLUMNS,
        hide_index=True,
        width="stretch",
        height="content" if len(lines) <= 12 else 460,
        key=f"runs.table.{st.session_state.get(TABLE, 0)}",
        placeholder="–",
        on_select="rerun",
        selection_mode="multi-row",
        alt=f"{len(lines)} runs with state, accuracy, age and duration",
    )
    if more:
        st.button("Show older runs", key="runs.more", on_click=_more, args=(limit,))
    by_id = {row.id: row for row in rows}
    ids = [lines[number]["id"] for number in picked["selection"]["rows"] if number < len(lines)]
    if not ids:
        st.caption(
            "Choose a row to open, label or delete it, several to compare them. By keyboard: Tab into the table, arrow "
            "keys, Shift and Space."
        )
        return
    _actions(ids, [by_id[ident] for ident in ids if ident in by_id], deleted)


def _matches(title: str, search: str) -> bool:
    return all(word in title.lower() for word in search.lower().split())


def _actions(ids: Sequence[str], rows: Sequence[Run], deleted: bool) -> None:
    """Draw the buttons for the chosen rows."""
    one = rows[0] if len(ids) == 1 and rows else None
    chosen = [row.id for row in rows]
    refused = next(filter(None, map(desk().refusal, rows)), "")
    bound = {"disabled": bool(refused), "help": plain(refused) or None}
    with st.container(horizontal=True):
        if len(ids) == 1 and not deleted:
            _open(ids[0], one)
        if len(ids) > 1 and not deleted:
            _compare(ids, rows)
        if one and one.state in ("failed", "cancelled") and not deleted:
            st.button(
                "Try again", key="runs.resume", icon=":material/replay:", on_click=_resume, args=(one.id,), **bound
            )
        if deleted:
            st.button("Restore", key="runs.restore", icon=":material/undo:", on_click=_restore, args=(chosen,), **bound)
        elif chosen:
            st.button("Delete", key="runs.delete", icon=":material/delete:", on_click=_delete, args=(chosen,), **bound)
    if refused:
        st.caption(plain(refused))
    if one is not None:
        details(one)


def _open(ident: str, row: Run | None) -> None:
    """Open a finished run or example in the lab, a sweep on its page."""
    label = {"label": "Open", "key": "runs.open", "type": "primary", "icon": ":material/open_in_full:"}
    if row is not None and row.kind == "sweep":
        if st.button(**label):
            st.switch_page("pages/sweep.py", query_params={"sweep": ident})
    elif (row is None or (row.kind == "run" and row.state == "finished")) and st.button(**label):
        show_run(ident)
        st.switch_page("pages/lab.py", query_params={RUN: ident})


def _compare(ids: Sequence[str], rows: Sequence[Run]) -> None:
    """Draw finished runs and examples side by side."""
    other = {row.id for row in rows if row.kind != "run" or row.state != "finished"}
    able = [ident for ident in ids if ident not in other]
    few, many = len(able) < 2, len(able) > MOST
    hint = f"At most {MOST} runs are compared." if many else "Choose two or more finished runs." if few else None
    if st.button(
        f"Compare {len(able)}" if not few else "Compare",
        key="runs.compare",
        type="primary",
        icon=":material/compare_arrows:",
        disabled=few or many,
        help=hint,
    ):
        st.switch_page("pages/compare.py", query_params={RUNS: ",".join(able)})


def _undo_bar() -> None:
    undone = st.session_state.get(UNDO)
    if undone:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption("One run deleted." if len(undone) == 1 else f"{len(undone)} runs deleted.", width="content")
            st.button("Undo", key="runs.undo.button", icon=":material/undo:", on_click=_restore, args=(undone,))


def _delete(ids: Sequence[str]) -> None:
    done = []
    for ident in ids:
        try:
            desk().delete(ident)
            done.append(ident)
        except EngineError as error:
            st.toast(plain(error))
    st.session_state[UNDO] = done
    for place in (st.session_state, st.query_params):
        if place.get(RUN) in done:
            del place[RUN]
    _clear_selection()


def _restore(ids: Sequence[str]) -> None:
    for ident in ids:
        try:
            desk().undelete(ident)
        except EngineError as error:
            st.toast(plain(error))
    st.session_state.pop(UNDO, None)
    _clear_selection()


def _resume(ident: str) -> None:
    resume(ident)
    _clear_selection()


def _more(limit: int) -> None:
    st.session_state["runs.limit"] = limit + PAGE


def _clear_selection() -> None:
    st.session_state[TABLE] = st.session_state.get(TABLE, 0) + 1


main()
