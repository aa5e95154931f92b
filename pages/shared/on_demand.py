"""Work that takes longer than a page may: asked for with a button, done in the background, found by its request."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.pipeline.viewing.base import View, ViewRequest
from engine.pipeline.viewing.shipped import shipped_view
from engine.store import Run
from pages.shared.chrome import error_state
from pages.shared.nouns import called, kind_of
from pages.shared.progress import show_progress
from pages.shared.service import ask, keep_service, told_when_refused
from pages.shared.state import RunView, store

TICK = 1.0  # seconds between two looks at what is computed in the background
LOOKED_BACK = 300  # rows searched for an earlier request of the same


def on_demand(
    run: RunView | None, kind: str, request: Mapping[str, Any], *, key: str, name: str, label: str, icon: str
) -> Path | None:
    """Draw the folder of what a request left, or what stands in for it: a button, its progress, or why it failed.

    Args:
        run: the run shown, where the view belongs to it.
        kind: of the row in the run table.
        request: names everything that the result depends on; the same request is never computed twice.
        key: prefix of the widgets' keys.
        name: what the row is called.
        label: of the button.
        icon: of the button.
    """
    row = latest(kind, request)
    if row is not None and row.state == "finished":
        folder = store().find(row.result, checksums=False)
        if folder is not None:
            return folder
    if row is not None and row.active:
        show_progress(row, key)
        return None
    if row is not None and row.state == "failed":
        error_state(EngineError(row.error), "Change the settings, or try it again.")
    st.button(
        label,
        key=f"{key}.compute",
        type="primary",
        icon=icon,
        on_click=_ask,
        args=(kind, dict(request), name, None if run is None or run.example else run.id),
    )
    return None


@told_when_refused
def _ask(kind: str, request: Mapping[str, Any], name: str, parent: str | None) -> None:
    ask(kind, request, name, parent)


def view_on_demand(
    run: RunView, view: View, request: ViewRequest, *, key: str, label: str, icon: str, takes: str = "", title: str = ""
) -> Path | None:
    """Return the folder of what a view left; draws a button, its progress, or why it failed where there is none.

    Args:
        run: the run shown.
        view: as it is declared.
        request: names everything that it depends on.
        key: prefix of the widgets' keys.
        label: of the button.
        icon: of the button.
        takes: said below the button: what is done with how many images.
        title: of the row, where it is not the view's own.
    """
    shipped = shipped_view(run.folder, view, request) if run.example else None
    if shipped is not None:
        return shipped
    document = request.model_dump(mode="json")
    folder = on_demand(run, view.name, document, key=key, name=title or view.title, label=label, icon=icon)
    if folder is None and takes:
        st.caption(called(takes, kind_of(run.report)))
    return folder


def view_at_hand(run: RunView, view: View, request: ViewRequest) -> Path | None:
    """Return the folder of what a view left, where it came with the example or was computed; draws nothing."""
    shipped = shipped_view(run.folder, view, request) if run.example else None
    if shipped is not None:
        return shipped
    row = view_row(view, request)
    return store().find(row.result, checksums=False) if row is not None and row.state == "finished" else None


def view_row(view: View, request: ViewRequest) -> Run | None:
    """Return the newest row that asks for a view."""
    return latest(view.name, request.model_dump(mode="json"))


def ask_view(run: RunView, view: View, request: ViewRequest, title: str = "") -> None:
    """Ask for a view in the background."""
    parent = None if run.example else run.id
    ask(view.name, request.model_dump(mode="json"), title or view.title, parent)


def latest(kind: str, request: Mapping[str, Any], rows: Sequence[Run] | None = None) -> Run | None:
    """Return the newest row that asks for exactly this, among all of its kind or those given."""
    rows = recent(kind) if rows is None else rows
    return next((row for row in rows if row.request == request), None)


def recent(kind: str) -> list[Run]:
    """Return rows of a kind, newest first: for those who look for several requests."""
    return store().runs.list(kinds=(kind,), limit=LOOKED_BACK)


def refresh_when(done: Callable[[], bool]) -> None:
    """Draw the page again as soon as something in the background is done."""
    st.fragment(_rerun_when, run_every=TICK)(done)


def _rerun_when(done: Callable[[], bool]) -> None:
    keep_service()
    if done():
        st.rerun()
