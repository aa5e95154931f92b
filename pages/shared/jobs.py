"""Runs at work: submit, follow, cancel, take over what they leave. The run table is the only channel to the engine."""

import threading
import time
from typing import Any

import streamlit as st

from engine.catalog.titles import recipe_title
from engine.errors import EngineError
from engine.pipeline.run.projecting import ProjectionRequest, projection_step
from engine.recipe import Recipe
from engine.service.client import ensure_service
from engine.store import ACTIVE, Run, Store
from pages.shared.chrome import duration, error_id, plain
from pages.shared.curves import live_curves
from pages.shared.state import run_title, show_run, store

JOB = "job"  # the address parameter and, in the session, the id of the run at work
PAGE = "page"  # who asked for a run
TICK = 0.5  # seconds between two looks at a run at work
CURVE_TICK = 1.5
KEEP_ALIVE = 10.0  # seconds between two looks at the service
LOG_LINES = 40


class Keeper:
    """Keeps the engine service running, from a thread of its own, so that no page ever waits for it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.message = "the engine is starting"
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._looked = float("-inf")

    def touch(self, now: bool = False) -> None:
        """Say that a page is open, and start the service if it does not run."""
        with self._lock:
            busy = self._thread is not None and self._thread.is_alive()
            if busy or (not now and time.monotonic() - self._looked < KEEP_ALIVE):
                return
            self._looked = time.monotonic()
            self._thread = threading.Thread(target=self._look, name="service-keeper", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        try:
            self.message = str(ensure_service(self.store))
        except (EngineError, OSError) as error:
            self.message = f"The engine cannot be started: {error}"


def keep_service() -> Keeper:
    """Keep the engine service running while pages are open; returns at once."""
    keeper = _keeper(str(store().root))
    keeper.touch()
    return keeper


def submit(recipe: Recipe) -> Run:
    """Ask for a run and follow it; its projection is asked for once the result can be shown (see `_project`)."""
    request = {"recipe": recipe.model_dump(mode="json"), "projection": None}
    row = store().runs.submit("run", request, name=recipe_title(recipe), requested_by=PAGE)
    follow(row.id)
    _keeper(str(store().root)).touch(now=True)
    return row


def follow(run: str) -> None:
    """Show a run's progress in this session and after a reload."""
    st.session_state[JOB] = run
    st.query_params[JOB] = run


def unfollow() -> None:
    """Stop showing a run's progress; the run goes on."""
    st.session_state.pop(JOB, None)
    st.query_params.pop(JOB, None)


def current_job() -> Run | None:
    """The run followed by the address or the session, else the newest one at work."""
    followed = st.query_params.get(JOB) or st.session_state.get(JOB)
    row = store().runs.find(followed) if followed else None
    if row is not None and row.deleted is None:
        follow(row.id)
        return row
    unfollow()
    row = next(iter(store().runs.list(kinds=("run",), states=ACTIVE, limit=1)), None)
    if row is not None and row.requested_by == PAGE and not row.request.get("projection"):
        follow(row.id)  # asked for in a lab, so that its result is waited for
    return row


def job_panel() -> Run | None:
    """Progress of the run at work, or how it ended; a finished one becomes the run shown.

    Returns:
        The run at work, or the one that failed or was cancelled; None when there is nothing to tell.
    """
    row = current_job()
    if row is None:
        return None
    if row.active:
        with st.container(border=True, key="job"):
            st.fragment(_progress, run_every=TICK)(row.id)
            if row.request.get("recipe", {}).get("calibrators"):
                st.fragment(_curves, run_every=CURVE_TICK)(row.id)
    elif row.state == "finished":
        unfollow()
        show_run(row.id)
        _project(row)
        st.toast(f"Finished in {duration(row.elapsed)}.", icon=":material/check:")
        return None
    else:
        _ended(row)
    return row


def progress_text(row: Run) -> str:
    """Which step of how many is at work, and how far it is."""
    if row.state == "queued":
        return "Waiting for the engine"
    if row.state == "cancelling":
        return "Stopping"
    place = f"Step {row.step_number} of {row.step_count}: {row.step}" if row.step_count else ""
    return " · ".join(part for part in (place, row.message) if part) or "Planning"


def log_view(run: str) -> None:
    """The last lines of a run's log."""
    lines = store().runs.logs.read(run)[-LOG_LINES:]
    text = "\n".join(f"{time.strftime('%H:%M:%S', time.localtime(line.time))}  {line.line}" for line in lines)
    st.code(text or "No lines yet.", language=None, wrap_lines=True, height=200)


def _project(row: Run) -> None:
    """Ask for the projection that the feature view shows first; the result itself does not wait for it."""
    view = ProjectionRequest()
    if store().find(projection_step(view, row.result).key, checksums=False) is None:
        request = {**view.model_dump(mode="json"), "bundle": row.result}
        store().runs.submit("projection", request, name=view.title, parent=row.id, requested_by=PAGE)


def _progress(run: str) -> None:
    row = store().runs.find(run)
    if row is None or not row.active:
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{plain(run_title(row))}**", width="stretch")
        st.toggle("Log", key="job.log", help="The last lines that the engine wrote about this run.")
        st.button(
            "Cancel",
            key="job.cancel",
            icon=":material/stop_circle:",
            disabled=row.state == "cancelling",
            on_click=cancel,
            args=(run,),
        )
    st.progress(min(max(row.fraction, 0.0), 1.0), text=plain(progress_text(row)))
    spent = row.elapsed if row.started else time.time() - row.created
    st.caption(f"{duration(spent)} elapsed · {100 * row.fraction:.0f} % · {plain(_engine_state(row))}")
    if st.session_state.get("job.log"):
        log_view(run)


def _curves(run: str) -> None:
    row = store().runs.find(run)
    if row is not None and row.active:
        live_curves(row.metrics)


def _engine_state(row: Run) -> str:
    """Why a queued run waits; for others their id."""
    if row.state != "queued":
        return f"run {row.id}"
    keeper = _keeper(str(store().root))
    keeper.touch()
    return keeper.message


def _ended(row: Run) -> None:
    """A followed run that failed or was cancelled: reason, what to do; the form keeps its inputs."""
    with st.container(border=True, key="job"):
        if row.state == "failed":
            st.error(f"**{plain(run_title(row))}** failed. {plain(row.error)}", icon=":material/error:")
            st.caption(
                "The settings are kept. Change them and run again, or try the same again: finished steps are kept."
            )
        else:
            st.info(f"**{plain(run_title(row))}** was cancelled. Finished steps are kept.", icon=":material/info:")
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button("Try again", key="job.resume", icon=":material/replay:", on_click=_resume, args=(row.id,))
            st.button("Dismiss", key="job.dismiss", on_click=unfollow)
            st.toggle("Log", key="job.ended.log", help="The last lines that the engine wrote about this run.")
            if row.state == "failed":
                st.code(f"{error_id(EngineError(row.error))} {row.id}", language=None, width="content")
        if st.session_state.get("job.ended.log"):
            log_view(row.id)


def cancel(run: str) -> None:
    """Ask for a run to stop."""
    _say_why(store().runs.request_cancel, run)


def _resume(run: str) -> None:
    _say_why(store().runs.resume, run)
    follow(run)
    _keeper(str(store().root)).touch(now=True)


def _say_why(action: Any, run: str) -> None:
    try:
        action(run)
    except EngineError as error:
        st.toast(plain(error))


@st.cache_resource(max_entries=4, show_spinner=False)
def _keeper(root: str) -> Keeper:
    return Keeper(store())
