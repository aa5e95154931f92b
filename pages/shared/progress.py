"""Work under way: how far it is, its log, and the ways to stop it and to go on with it."""

import time
from collections.abc import Callable

import streamlit as st

from engine.errors import EngineError
from engine.rounding import seconds_left
from engine.store import Run
from pages.shared.chrome import duration, plain
from pages.shared.people import desk
from pages.shared.service import keep_service
from pages.shared.state import run_title, store

TICK = 1.0  # seconds between two looks at a row at work; each takes browser and server a tenth of a second
LOG_LINES = 40


def show_progress(
    row: Run,
    key: str,
    *,
    title: bool = False,
    border: bool = True,
    below: Callable[[Run], None] | None = None,
    ended: Callable[[], None] | None = None,
) -> None:
    """Draw how far a row at work is, and draw the page again as soon as it has ended.

    Args:
        row: at work.
        key: prefix of the widgets' keys.
        title: whether its title and its log are offered above the bar.
        border: whether a border surrounds it.
        below: draws more of the row below, as often as the bar is drawn.
        ended: called before the page is drawn again.
    """
    st.fragment(_draw_progress, run_every=TICK)(row.id, key, title, border, below, ended)


def progress_bar(row: Run, text: str = "") -> None:
    """Draw the bar of a row: how much of it is done, and at which step it is, or a text in Markdown."""
    st.progress(min(max(row.fraction, 0.0), 1.0), text=text or plain(progress_text(row)))


def cancel_button(row: Run, key: str) -> None:
    """Offer to stop a row at work; whoever may not is told why."""
    refused = desk().refusal(row)
    st.button(
        "Cancel",
        key=key,
        icon=":material/stop_circle:",
        help=plain(refused) or None,
        disabled=row.state == "cancelling" or bool(refused),
        on_click=cancel,
        args=(row.id,),
    )


def progress_text(row: Run) -> str:
    """Return which step of how many a row is at, and how far that is."""
    if row.state == "queued":
        return "Waiting for the engine"
    if row.state == "cancelling":
        return "Stopping"
    place = f"Step {row.step_number} of {row.step_count}: {row.step}" if row.step_count else ""
    return " · ".join(part for part in (place, row.message) if part) or "Planning"


def log_view(run: str) -> None:
    """Draw the last lines of a run's log."""
    lines = store().runs.logs.read(run)[-LOG_LINES:]
    text = "\n".join(f"{time.strftime('%H:%M:%S', time.localtime(line.time))}  {line.line}" for line in lines)
    st.code(text or "No lines yet.", language=None, wrap_lines=True, height=200)


def log_toggle(key: str) -> None:
    """Offer the log of a run; whether it is wanted stands under ``key`` in the session."""
    st.toggle("Log", key=key, help="The last lines that the engine wrote about this run.")


def cancel(run: str) -> None:
    """Ask for a run to stop; where that cannot be, a message says why."""
    _try(desk().cancel, run)


def resume(run: str) -> None:
    """Ask for a run that has ended badly to go on; where that cannot be, a message says why."""
    _try(desk().resume, run)
    keep_service(now=True)


def _try(action: Callable[[str], object], run: str) -> None:
    try:
        action(run)
    except EngineError as error:
        st.toast(plain(error))


def _draw_progress(
    ident: str,
    key: str,
    title: bool,
    border: bool,
    below: Callable[[Run], None] | None,
    ended: Callable[[], None] | None,
) -> None:
    row = store().runs.find(ident)
    if row is None or not row.active:
        if ended:
            ended()
        st.rerun()
    with st.container(border=border, key=f"{key}.progress"):
        if title:
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(f"**{plain(run_title(row))}**", width="stretch")
                log_toggle(f"{key}.log")
                cancel_button(row, f"{key}.cancel")
        progress_bar(row)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(_elapsed(row), width="stretch")
            if not title:
                cancel_button(row, f"{key}.cancel")
        if title and st.session_state.get(f"{key}.log"):
            log_view(ident)
    if below:
        below(row)


def _elapsed(row: Run) -> str:
    """Return the time since it started and left, how much is done, its id; of a queued row, what it waits for."""
    message = keep_service()
    spent = row.elapsed if row.started else time.time() - row.created
    what = message if row.state == "queued" else f"{row.kind.replace('_', ' ')} {row.id}"
    left = seconds_left(row.fraction, row.elapsed) if row.state == "running" else None
    told = "" if left is None else f" · about {duration(max(left, 1.0))} left"
    return f"{duration(spent)} elapsed{told} · {100 * row.fraction:.0f} % · {plain(what)}"
