"""All views of a run: which are there, what the others take, and one button that asks for all that are missing."""

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from engine.errors import EngineError
from engine.figures.drawing import task_titles
from engine.pipeline.offered import offered_views
from engine.pipeline.viewing.base import View, ViewRequest
from engine.rounding import about
from engine.store import ACTIVE, Run
from pages.shared.chrome import plain
from pages.shared.foreseen import foreseen
from pages.shared.on_demand import ask_view, view_at_hand, view_row
from pages.shared.progress import TICK, cancel_button, progress_bar, progress_text
from pages.shared.service import keep_service, told_when_refused
from pages.shared.state import RunView, store
from pages.shared.tables import draw_table


@dataclass(frozen=True)
class _Offered:
    """A view of a run, as far as it is."""

    view: View
    request: ViewRequest
    title: str
    row: Run | None  # the newest that asks for it
    there: bool

    @property
    def missing(self) -> bool:
        """Return whether it is to be asked for: neither there nor coming, and not known to fail."""
        return not self.there and (self.row is None or self.row.state in ("finished", "cancelled"))


def all_views_of(run: RunView, key: str) -> None:
    """Draw the views of a run once somebody opens them: what is there, what each of the others takes, a button for all.

    Args:
        run: the run shown.
        key: prefix of the widgets' keys.
    """
    st.fragment(_views)(run, key)


def _views(run: RunView, key: str) -> None:
    part = st.expander("All views of this run", icon=":material/checklist:", key=f"{key}.views", on_change="rerun")
    if not part.open:
        return
    with part:
        try:
            offered = _offered(run)
        except EngineError as error:
            st.caption(plain(error))
            return
        missing = [one for one in offered if one.missing]
        times = {one.title: foreseen(run, one.view, one.request) for one in missing}
        known = [found.seconds for found in times.values() if found is not None]
        if missing:
            count = "Compute all views of this run" if len(missing) == len(offered) else f"Compute {_missing(missing)}"
            st.button(
                count,
                key=f"{key}.views.all",
                type="primary",
                icon=":material/playlist_play:",
                on_click=_ask_all,
                args=(run, missing),
                help="The engine computes them one after another or side by side; each appears on its page when it is "
                "there. One that this run cannot have is told with its reason, and the others go on.",
            )
            st.caption(f"Foreseen to take {about(sum(known))} in all, one after another." if known else "")
        active = [one.row.id for one in offered if one.row is not None and one.row.active]
        if active:
            st.fragment(_progress, run_every=TICK)(active, key)
        _table(offered, times, key)


def _missing(missing: Sequence[_Offered]) -> str:
    return "the missing view" if len(missing) == 1 else f"the {len(missing)} missing views"


def _offered(run: RunView) -> list[_Offered]:
    titles, found = task_titles(run.report), []
    for view, request in offered_views(run.report):
        task = getattr(request, "task", "")
        title = f"{view.title}, {titles.get(task, task)}" if task else view.title
        row = view_row(view, request)
        found.append(_Offered(view, request, title, row, view_at_hand(run, view, request) is not None))
    return found


def _table(offered: Sequence[_Offered], times: dict, key: str) -> None:
    lines = [{"View": one.title, "State": _state(one), "Takes": _takes(one, times)} for one in offered]
    draw_table(lines, hide_index=True, width="stretch", height="content", key=f"{key}.views.table")


def _state(one: _Offered) -> str:
    if one.there:
        return "There"
    if one.row is None or one.missing:
        return "Not computed"
    return f"Not computed: {one.row.error}" if one.row.state == "failed" else one.row.state.capitalize()


def _takes(one: _Offered, times: dict) -> str:
    found = times.get(one.title)
    return "" if found is None else about(found.seconds)


def _progress(before: Sequence[str], key: str) -> None:
    """Draw progress of the views at work; draws the page again when one has ended."""
    keep_service()
    rows = [row for row in map(store().runs.find, before) if row is not None and row.state in ACTIVE]
    if len(rows) != len(before):
        st.rerun()
    running = [row for row in rows if row.state != "queued"]
    for row in running or rows[:1]:
        with st.container(horizontal=True, vertical_alignment="center"):
            progress_bar(row, f"**{plain(row.name)}** · {plain(progress_text(row))}")
            cancel_button(row, f"{key}.views.cancel.{row.id}")
    if waiting := len(rows) - len(running or rows[:1]):
        st.caption(f"{waiting} more wait for their turn.")


@told_when_refused
def _ask_all(run: RunView, missing: Sequence[_Offered]) -> None:
    for one in missing:
        ask_view(run, one.view, one.request, one.title)
