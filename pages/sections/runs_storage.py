"""The size of the store, the preview of a clean-up, and the clean-up; the engine carries both out."""

import time

import pandas as pd
import streamlit as st

from engine.rounding import bytes_text
from engine.store import Run, read_collected
from engine.store.artefacts import KEEP_DAYS
from engine.store.desk import deeds
from pages.shared.chrome import age, plain
from pages.shared.people import desk, person
from pages.shared.progress import show_progress
from pages.shared.service import ask, told_when_refused
from pages.shared.state import store
from pages.shared.tables import draw_table

PREVIEW = "runs.gc"  # in the session: id of the preview or clean-up shown
TITLES = {
    "artefacts": "Results",
    "trash": "Trash",
    "incoming": "Being written",
    "thumbnails": "Thumbnails",
    "database": "Run table",
}
DEEDS = {"delete": "deleted", "undelete": "brought back", "clean": "cleaned up"}


def storage_panel() -> None:
    """Draw totals when somebody opens it, and the way to free space."""
    part = st.expander("Storage", icon=":material/hard_drive:", key="runs.storage", on_change="rerun")
    if not part.open:
        return
    with part:
        sizes = _sizes(str(store().root))
        listed = " · ".join(f"{TITLES.get(name, name)} {bytes_text(size)}" for name, size in sizes.items() if size)
        st.markdown(f"**{bytes_text(sum(sizes.values()))}** in all")
        st.caption(plain(listed or "The store is empty."))
        with st.container(horizontal=True, vertical_alignment="bottom"):
            days = st.number_input(
                "Forget runs deleted more than … days ago",
                0,
                365,
                int(KEEP_DAYS),
                key="runs.gc.days",
                width=320,
                help="Until then a deleted run can be brought back. What no run refers to is removed in any "
                "case; checkpoints of stopped trainings go after as many days.",
            )
            st.button("Preview", key="runs.gc.preview", icon=":material/preview:", on_click=_ask, args=(days, True))
        _draw_collection(store().runs.find(st.session_state.get(PREVIEW, "")))
        if person().id and desk().may_clean():
            _draw_deeds()


def _draw_deeds() -> None:
    """Draw who deleted, brought back or cleaned up what, newest first."""
    st.markdown("**Deletions**")
    found = deeds(store())
    if not found:
        st.caption("Nobody has deleted anything yet.")
        return
    when = pd.to_datetime([deed.time for deed in found], unit="s")
    table = {
        "When (UTC)": when.floor("s"),
        "Who": [deed.person or "at the machine" for deed in found],
        "What": [DEEDS.get(deed.action, deed.action) for deed in found],
        "Run": [deed.text for deed in found],
        "Id": [deed.run for deed in found],
    }
    draw_table(pd.DataFrame(table), key="runs.deeds", hide_index=True)


@told_when_refused
def _ask(days: float, dry: bool) -> None:
    request = {"asked": time.time(), "days": days, "dry": dry}
    name = "Preview of a clean-up" if dry else "Clean-up"
    st.session_state[PREVIEW] = ask("gc", request, name).id
    _sizes.clear()


def _draw_collection(row: Run | None) -> None:
    """Draw a preview or clean-up: at work, failed, or what it says."""
    if row is None:
        return
    if row.active:
        show_progress(row, "runs.gc", ended=_sizes.clear)
        return
    if row.state != "finished":
        st.error(plain(row.error or "It was cancelled."), icon=":material/error:")
        return
    folder = store().find(row.result, checksums=False)
    if folder is None:
        return
    found = read_collected(folder)
    text = plain(f"{found} Looked at {age(row.created)}.")
    if not found.dry:
        st.success(text, icon=":material/check:")
        return
    st.write(text)
    if found.names:
        more = f" and {found.runs - len(found.names)} more" if found.runs > len(found.names) else ""
        st.caption(plain(f"Forgotten for good: {', '.join(found.names)}{more}."))
    if found.by_step:
        kinds = sorted(found.by_step.items(), key=lambda item: -item[1][1])
        st.caption(plain(", ".join(f"{name} {count} ({bytes_text(size)})" for name, (count, size) in kinds)))
    if found.freed or found.runs:
        days = row.request.get("days", KEEP_DAYS)
        st.button(
            f"Free {bytes_text(found.freed)}",
            key="runs.gc.go",
            type="primary",
            icon=":material/delete_sweep:",
            disabled=not desk().may_clean(),
            on_click=_ask,
            args=(days, False),
            help="Removes for good what the preview lists.",
        )
    else:
        st.caption("Nothing to free.")


@st.cache_data(max_entries=4, ttl="60s", show_spinner=False)
def _sizes(root: str) -> dict[str, int]:
    return store().sizes()
