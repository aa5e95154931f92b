"""Work that takes longer than a page may: asked for with a button, done in the background, found by its request."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.pipeline.offered import offered_views
from engine.pipeline.viewing.base import View, ViewRequest
from engine.pipeline.viewing.shipped import shipped_view
from engine.rounding import about
from engine.store import Run
from pages.shared.chrome import error_state, plain
from pages.shared.foreseen import foreseen, is_soon
from pages.shared.nouns import called, kind_of
from pages.shared.progress import show_progress
from pages.shared.service import ask, ask_unasked, keep_service, told_when_refused
from pages.shared.state import RunView, examples, open_run, store

TICK = 1.0  # seconds between two looks at what is computed in the background
LOOKED_BACK = 300  # rows searched for an earlier request of the same


def on_demand(
    run: RunView | None,
    kind: str,
    request: Mapping[str, Any],
    *,
    key: str,
    name: str,
    label: str,
    icon: str,
    beside: str = "",
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
        beside: text beside the button: what it costs.
    """
    asked = dict(request)
    return _left(run, kind, asked, latest(kind, asked), key=key, name=name, label=label, icon=icon, beside=beside)


def _left(
    run: RunView | None,
    kind: str,
    request: dict[str, Any],
    row: Run | None,
    *,
    key: str,
    name: str,
    label: str,
    icon: str,
    beside: str,
) -> Path | None:
    """Draw what :func:`on_demand` does, of the newest row that asks for it."""
    if row is not None and row.state == "finished":
        folder = store().find(row.result, checksums=False)
        if folder is not None:
            return folder
    if row is not None and row.active:
        show_progress(row, key)
        return None
    if row is not None and row.state == "failed":
        error_state(EngineError(row.error), "Change the settings, or try it again.")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            label,
            key=f"{key}.compute",
            type="primary",
            icon=icon,
            on_click=_ask,
            args=(kind, request, name, None if run is None or run.example else run.id),
        )
        if beside:
            st.caption(plain(beside), width="content")
    return None


@told_when_refused
def _ask(kind: str, request: Mapping[str, Any], name: str, parent: str | None) -> None:
    ask(kind, request, name, parent)


def view_on_demand(
    run: RunView,
    view: View,
    request: ViewRequest,
    *,
    key: str,
    label: str,
    icon: str,
    takes: str = "",
    title: str = "",
    draw: Callable[[RunView, Path], None] | None = None,
    unasked: bool = True,
) -> Path | None:
    """Return the folder of what a view left; draws a button, its progress, or why it failed where there is none.

    A view that is foreseen to take less than :data:`.foreseen.SOON` seconds is asked for without a button, once.

    Args:
        run: the run shown.
        view: as it is declared.
        request: names everything that it depends on.
        key: prefix of the widgets' keys.
        label: of the button.
        icon: of the button.
        takes: said below the button: what is done with how many images.
        title: of the row, where it is not the view's own.
        draw: draws a view of a run; where this one takes long and is not there, it draws the example's, marked as that.
        unasked: a quick one needs no button.
    """
    shipped = shipped_view(run.folder, view, request) if run.example else None
    if shipped is not None:
        return shipped
    document = request.model_dump(mode="json")
    row = latest(view.name, document)
    expected = foreseen(run, view, request) if row is None or row.state in ("failed", "cancelled") else None
    named = title or view.title
    if unasked and row is None and is_soon(expected):
        with suppress(EngineError):  # what is asked for with the button says why it cannot be
            row = ask_unasked(view.name, document, named, None if run.example else run.id)
    cost = "" if expected is None else f"{about(expected.seconds).capitalize()}, by {expected.basis}."
    folder = _left(run, view.name, document, row, key=key, name=named, label=label, icon=icon, beside=cost)
    if folder is None and takes:
        st.caption(called(takes, kind_of(run.report)))
    if folder is None and draw is not None:
        draw_example(run, view, request, draw)
    return folder


def draw_example(run: RunView, view: View, request: ViewRequest, draw: Callable[[RunView, Path], None]) -> None:
    """Draw what an example ships of a view that takes long, so that it is seen what is waited or asked for.

    Args:
        run: the run shown, which has no such view yet.
        view: as it is declared.
        request: what is asked of it; an example's may differ, but is of one task where this is.
        draw: draws a view of a run.
    """
    if is_soon(foreseen(run, view, request)):
        return
    found = _example_with(view.name, kind_of(run.report).name, bool(getattr(request, "task", "")))
    if found is None:
        return
    example, folder = open_run(found[0]), found[1]
    with st.container(border=True, key=f"example.{view.name}"):
        st.markdown(
            f":material/visibility: **The example's picture, not this run's** — {plain(example.title)} on the zoo "
            f"{plain(example.report.zoo.title or example.report.zoo.name)}. This run's appears here in its place."
        )
        with suppress(EngineError):
            draw(example, folder)


@st.cache_data(max_entries=64, show_spinner=False)
def _example_with(name: str, kind: str, of_task: bool) -> tuple[str, Path] | None:
    """Return the first example on a kind of data that ships a view as it is offered, and the view's folder."""
    for entry in examples():
        try:
            example = open_run(entry.id)
            offered = offered_views(example.report) if kind_of(example.report).name == kind else []
        except EngineError:
            continue
        for view, asked in offered:
            if view.name != name or bool(getattr(asked, "task", "")) != of_task:
                continue
            if (folder := shipped_view(example.folder, view, asked)) is not None:
                return entry.id, folder
    return None


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
    """Ask for a view in the background, unless it is asked for already."""
    row = view_row(view, request)
    if row is not None and row.active:
        return
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
