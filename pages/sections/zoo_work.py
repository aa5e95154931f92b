"""Work on the zoo shown that changes it: found again after a reload, followed, and dismissed when it has ended."""

from collections.abc import Callable

import streamlit as st

from engine.store import ACTIVE, Run
from pages.shared.chrome import plain
from pages.shared.progress import log_toggle, log_view, resume, show_progress
from pages.shared.state import store

DISMISSED = "zoo.dismissed"  # ids of work that has ended and is not to be shown any more
LOOKED_BACK = 40


def followed(zoo: str, kind: str) -> Run | None:
    """Return the work of a kind on this zoo that is going on, else the last that ended and was not dismissed."""
    rows = [
        row
        for row in store().runs.list(kinds=(kind,), limit=LOOKED_BACK)
        if row.request.get("zoo") == zoo and row.id not in st.session_state.get(DISMISSED, ())
    ]
    return next((row for row in rows if row.state in ACTIVE), rows[0] if rows else None)


def dismiss(run: str) -> None:
    """Do not show work any more that has ended."""
    st.session_state[DISMISSED] = {*st.session_state.get(DISMISSED, ()), run}


def work(
    row: Run,
    key: str,
    *,
    made: Callable[[Run], None],
    stopped: str,
    again: str,
    below: Callable[[Run], None] | None = None,
) -> None:
    """Draw work on a zoo: how far it is, what it made, or why it ended.

    Args:
        row: of the work.
        key: prefix of the widgets' keys.
        made: draws what it left.
        stopped: said of work that was cancelled.
        again: what going on with it does.
        below: draws more of work that is going on.
    """
    with st.container(border=True, key=f"{key}.job"):
        if row.active:
            show_progress(row, key, title=True, border=False, below=below)
        elif row.state == "finished":
            made(row)
        else:
            _ended(row, key, stopped, again)


def _ended(row: Run, key: str, stopped: str, again: str) -> None:
    if row.state == "failed":
        st.error(f"**{plain(row.name)}** failed. {plain(row.error)}", icon=":material/error:")
    else:
        st.info(f"**{plain(row.name)}** was stopped. {stopped}", icon=":material/info:")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Go on", key=f"{key}.resume", icon=":material/replay:", on_click=resume, args=(row.id,), help=again)
        st.button("Dismiss", key=f"{key}.dismiss", on_click=dismiss, args=(row.id,))
        log_toggle(f"{key}.ended.log")
    if st.session_state.get(f"{key}.ended.log"):
        log_view(row.id)
