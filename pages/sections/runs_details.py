"""One row of the run table: its name, tags and notes, what it takes, its log, what belongs to it."""

import json
import re
from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.store import Run, usage_of
from engine.store.uploads import FOLDER, TRAY
from pages.sections.run_views import all_views_of
from pages.sections.runs_list import COLUMNS, kind_title, line_of
from pages.shared.chrome import age, duration, error_id, plain
from pages.shared.jobs import log_view
from pages.shared.people import desk
from pages.shared.state import RUN, open_run, run_title, show_run, store
from pages.shared.tables import draw_table

MAX_NAME = 120
MAX_NOTES = 4000
INSIDE = ("Run", "State", "Merged", "Repaired", "H")


def details(row: Run) -> None:
    """Draw everything about one row, below the table."""
    st.subheader(plain(run_title(row)), anchor=False)
    if row.error:
        st.error(plain(row.error), icon=":material/error:")
        st.code(f"{error_id(EngineError(row.error))} {row.id}", language=None, width="content")
    _facts(row)
    _inside(row)
    if row.kind == "run" and row.state == "finished" and row.deleted is None:
        _views(row)
    _labels(row)
    with st.expander("Log", key="runs.log", icon=":material/list:"):
        log_view(row.id)
    what = "Recipe" if set(row.request) <= {"recipe", "projection", "point"} else "Request"
    with st.expander(what, key="runs.recipe", icon=":material/data_object:"):
        st.json(row.request.get("recipe", {}) if what == "Recipe" else _shown(row.request))


def _shown(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request without the names of visitors' folders, which are nobody else's business."""
    text = re.sub(rf"{FOLDER}/{TRAY.pattern}", f"{FOLDER}/…", json.dumps(dict(request)))
    return {name: "…" if name == "tray" else value for name, value in json.loads(text).items()}


def _facts(row: Run) -> None:
    used = usage_of(store(), row)
    parts = [
        f"{kind_title(row.kind)} {row.id}",
        f"{row.state}, asked for {age(row.created)}" + _asked_by(row),
        f"took {duration(row.elapsed)}" if row.started else "",
        f"{used.total / 1e6:,.1f} MB, of which {used.own / 1e6:,.1f} MB are not shared with other runs",
    ]
    st.caption(plain(" · ".join(part for part in parts if part)))


def _asked_by(row: Run) -> str:
    return f" by {row.person}" if row.person else f" by the {row.requested_by}" if row.requested_by else ""


def _inside(row: Run) -> None:
    """Draw runs that this row made, such as the points of a sweep."""
    children = store().runs.list(kinds=("run",), parent=row.id, limit=500)
    if not children:
        return
    children.sort(key=_place)
    lines = [line_of(child) for child in children]
    st.caption(f"{len(children)} runs belong to it. Choose one to open it.")
    picked = draw_table(
        lines,
        column_order=list(INSIDE),
        column_config=COLUMNS,
        hide_index=True,
        key=f"runs.inside.{row.id}",
        on_select="rerun",
        selection_mode="single-row",
        height="content" if len(lines) <= 10 else 400,
        alt=f"{len(lines)} runs with state and accuracy",
    )
    chosen = [children[number] for number in picked["selection"]["rows"] if number < len(children)]
    if chosen and st.button("Open the chosen run", key="runs.inside.open", icon=":material/open_in_full:"):
        show_run(chosen[0].id)
        st.switch_page("pages/lab.py", query_params={RUN: chosen[0].id})


def _place(row: Run) -> tuple[int, float]:
    point = row.request.get("point")
    return (point.get("number", 0) if isinstance(point, dict) else 0, row.created)


def _views(row: Run) -> None:
    """Draw the views of a run that has left a result."""
    try:
        all_views_of(open_run(row.id), f"runs.{row.id}")
    except EngineError as error:
        st.caption(plain(error))


def _labels(row: Run) -> None:
    """Name, tags and notes, kept when they are saved by who may change them."""
    fixed = bool(desk().refusal(row))
    known = sorted({tag for other in store().runs.list(limit=500) for tag in other.tags})
    with st.form(f"runs.labels.{row.id}", border=True):
        name = st.text_input(
            "Name",
            run_title(row),
            max_chars=MAX_NAME,
            key=f"runs.name.{row.id}",
            disabled=fixed,
            help="What the run is called in lists; its recipe and results stay as they are.",
        )
        tags = st.multiselect(
            "Tags",
            sorted({*known, *row.tags}),
            default=row.tags,
            accept_new_options=True,
            key=f"runs.tags.{row.id}",
            disabled=fixed,
            placeholder="Choose or type tags",
            help="Short words to find it again: the search looks at them too.",
        )
        notes = st.text_area(
            "Notes",
            row.notes,
            max_chars=MAX_NOTES,
            key=f"runs.notes.{row.id}",
            disabled=fixed,
            height="content",
            help="Free text about this run; the search looks at it too.",
        )
        if st.form_submit_button("Save", key=f"runs.save.{row.id}", icon=":material/save:", disabled=fixed):
            _save(row, name, tags, notes)


def _save(row: Run, name: str, tags: list[str], notes: str) -> None:
    clean = list(dict.fromkeys(" ".join(tag.split())[:40] for tag in tags if tag.strip()))
    title = " ".join((name or "").split())
    changes = {"tags": clean, "notes": (notes or "").strip()} | ({"name": title} if title else {})
    try:
        desk().edit(row.id, **changes)
    except EngineError as error:
        st.error(plain(error), icon=":material/error:")
        return
    st.toast("Saved.", icon=":material/check:")
    st.rerun()
