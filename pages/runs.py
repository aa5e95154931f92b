"""All runs of the store and the examples: open, cancel, delete with undo, log, error."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from engine.catalog import MERGE_METHODS
from engine.errors import EngineError
from engine.store import ACTIVE, Run
from pages._chrome import age, duration, empty_state, error_id, plain
from pages._jobs import cancel, keep_service, log_view, progress_text
from pages._state import EXAMPLES, RUN, examples, result_folder, run_title, show_run, store

PAGE = 50  # rows added by "Show older runs"
TICK = 1.0
FILTERS = {
    "All": ("finished", "failed", "cancelled"),
    "Finished": ("finished",),
    "Failed": ("failed", "cancelled"),
    "Deleted": ("finished", "failed", "cancelled"),
}
UNDO = "runs.undo"  # ids of the runs deleted last
TABLE = "runs.version"  # counts up to clear the selection
COLUMNS = {
    "State": st.column_config.TextColumn(width="small"),
    "Run": st.column_config.TextColumn(width="large"),
    "Merge": st.column_config.TextColumn(width="medium"),
    "Merged": st.column_config.NumberColumn("Merged, %", format="%.1f", help="Mean accuracy, in-domain tasks"),
    "Repaired": st.column_config.NumberColumn("Repaired, %", format="%.1f", help="The last calibrator's, same tasks"),
    "H": st.column_config.NumberColumn(
        "H-score", format="%.1f", help="Merged: harmonic mean of in-domain and out-of-domain accuracy"
    ),
    "Age": st.column_config.TextColumn(width="small"),
    "Took": st.column_config.TextColumn(width="small"),
}


def main() -> None:
    """Runs at work, then a table of the ended ones and what can be done with those chosen in it."""
    st.title("Runs", anchor=False)
    _at_work()
    with st.container(horizontal=True, vertical_alignment="center"):
        search = st.text_input(
            "Search",
            key="runs.search",
            placeholder="Search names and recipes",
            label_visibility="collapsed",
            width=320,
            persist_state="session",
        )
        chosen = st.segmented_control(
            "Show",
            list(FILTERS),
            key="runs.filter",
            default="All",
            required=True,
            label_visibility="collapsed",
            persist_state="session",
        )
    _undo_bar()
    _ended(search, chosen)


def _at_work() -> None:
    active = [row.id for row in store().runs.list(kinds=("run",), states=ACTIVE)]
    if active:
        with st.container(border=True, key="runs.active"):
            st.fragment(_progress, run_every=TICK)(active)


def _progress(before: Sequence[str]) -> None:
    """Progress of every run at work; draws the page again when one begins or ends."""
    rows = store().runs.list(kinds=("run",), states=ACTIVE)
    if [row.id for row in rows] != list(before):
        st.rerun()
    for row in rows:
        with st.container(horizontal=True, vertical_alignment="center"):
            spent = duration(row.elapsed) if row.started else "queued"
            text = f"**{plain(run_title(row))}** · {plain(progress_text(row))} · {spent}"
            st.progress(min(max(row.fraction, 0.0), 1.0), text=text)
            st.button(
                "Cancel",
                key=f"runs.cancel.{row.id}",
                icon=":material/stop_circle:",
                disabled=row.state == "cancelling",
                on_click=cancel,
                args=(row.id,),
            )


def _ended(search: str, chosen: str) -> None:
    limit = st.session_state.get("runs.limit", PAGE)
    deleted = chosen == "Deleted"
    rows = store().runs.list(
        kinds=("run",), states=FILTERS[chosen], search=search or "", deleted=deleted, limit=limit + 1
    )
    known = [e for e in examples() if chosen in ("All", "Finished") and (search or "").lower() in e.title.lower()]
    if not rows and not known:
        text = "Runs that you start in the lab are listed here with their result, log and, if they fail, the reason."
        empty_state("No runs match" if search or chosen != "All" else "No runs yet", text)
        return
    lines = [_line(row) for row in rows[:limit]] + [_example_line(entry.id, entry.title) for entry in known]
    picked = st.dataframe(
        pd.DataFrame(lines, columns=["id", *COLUMNS]),
        column_order=list(COLUMNS),
        column_config=COLUMNS,
        hide_index=True,
        width="stretch",
        height="content" if len(lines) <= 12 else 460,
        key=f"runs.table.{st.session_state.get(TABLE, 0)}",
        on_select="rerun",
        selection_mode="multi-row",
        alt=f"{len(lines)} runs with state, accuracy, age and duration",
    )
    if len(rows) > limit:
        st.button("Show older runs", key="runs.more", on_click=_more, args=(limit,))
    by_id = {row.id: row for row in rows}
    ids = [lines[number]["id"] for number in picked["selection"]["rows"] if number < len(lines)]
    if not ids:
        st.caption("Choose a row to open, delete or read about it.")
        return
    _actions(ids, [by_id[ident] for ident in ids if ident in by_id], deleted)


def _actions(ids: Sequence[str], rows: Sequence[Run], deleted: bool) -> None:
    """What can be done with the chosen rows."""
    one = rows[0] if len(ids) == 1 and rows else None
    openable = len(ids) == 1 and not deleted and (one is None or one.state == "finished")
    with st.container(horizontal=True):
        if openable and st.button("Open", key="runs.open", type="primary", icon=":material/open_in_full:"):
            show_run(ids[0])
            st.switch_page("pages/lab.py", query_params={RUN: ids[0]})
        if one and one.state in ("failed", "cancelled") and not deleted:
            st.button("Try again", key="runs.resume", icon=":material/replay:", on_click=_resume, args=(one.id,))
        chosen = [row.id for row in rows]
        if deleted:
            st.button("Restore", key="runs.restore", icon=":material/undo:", on_click=_restore, args=(chosen,))
        elif chosen:
            st.button("Delete", key="runs.delete", icon=":material/delete:", on_click=_delete, args=(chosen,))
    if one is None:
        return
    if one.error:
        st.error(plain(one.error), icon=":material/error:")
        st.code(f"{error_id(EngineError(one.error))} {one.id}", language=None, width="content")
    else:
        st.caption(f"Run {one.id}")
    with st.expander("Log", key="runs.log", icon=":material/list:"):
        log_view(one.id)
    with st.expander("Recipe", key="runs.recipe", icon=":material/data_object:"):
        st.json(one.request.get("recipe", {}))


def _undo_bar() -> None:
    undone = st.session_state.get(UNDO)
    if undone:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption("One run deleted." if len(undone) == 1 else f"{len(undone)} runs deleted.", width="content")
            st.button("Undo", key="runs.undo.button", icon=":material/undo:", on_click=_restore, args=(undone,))


def _line(row: Run) -> dict[str, Any]:
    recipe = row.request.get("recipe", {})
    method = (recipe.get("merge") or {}).get("method", "")
    folder = result_folder(row.result) if row.state == "finished" else None
    return {
        "id": row.id,
        "State": row.state.capitalize() if folder or row.state != "finished" else "Result gone",
        "Run": run_title(row),
        "Merge": MERGE_METHODS[method].title if method in MERGE_METHODS else method,
        "Age": age(row.created),
        "Took": duration(row.elapsed) if row.started else "–",
        **(_summary(str(folder)) if folder else {}),
    }


def _example_line(name: str, title: str) -> dict[str, Any]:
    return {"id": name, "State": "Example", "Run": title, "Age": "–", "Took": "–", **_summary(str(EXAMPLES / name))}


@st.cache_data(max_entries=500, ttl="1h", show_spinner=False)
def _summary(folder: str) -> dict[str, Any]:
    """The averages in a report, read without checking the rest of it."""
    try:
        report = json.loads((Path(folder) / "report.json").read_bytes())
        averages, method = report["average"], report["recipe"]["merge"]["method"]
        calibrators = [name for name, part in report.get("calibrators", {}).items() if part["on"] == "merged"]
        merged = averages.get("merged", {})
        return {
            "Merge": MERGE_METHODS[method].title if method in MERGE_METHODS else method,
            "Merged": merged.get("in"),
            "Repaired": averages.get(calibrators[-1], {}).get("in") if calibrators else None,
            "H": merged.get("h_score"),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _delete(ids: Sequence[str]) -> None:
    done = []
    for ident in ids:
        try:
            store().runs.delete(ident)
            done.append(ident)
        except EngineError as error:
            st.toast(plain(error))
    st.session_state[UNDO] = done
    if st.session_state.get(RUN) in done:
        st.session_state.pop(RUN)
        st.query_params.pop(RUN, None)
    _clear_selection()


def _restore(ids: Sequence[str]) -> None:
    for ident in ids:
        store().runs.undelete(ident)
    st.session_state.pop(UNDO, None)
    _clear_selection()


def _resume(ident: str) -> None:
    try:
        store().runs.resume(ident)
    except EngineError as error:
        st.toast(plain(error))
    keep_service()
    _clear_selection()


def _more(limit: int) -> None:
    st.session_state["runs.limit"] = limit + PAGE


def _clear_selection() -> None:
    st.session_state[TABLE] = st.session_state.get(TABLE, 0) + 1


main()
