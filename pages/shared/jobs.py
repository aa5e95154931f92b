"""Runs at work: submit, follow, cancel, take over what they leave. The run table is the only channel to the engine."""

import streamlit as st

from engine.catalog.titles import recipe_title
from engine.errors import EngineError
from engine.pipeline.run.projecting import ProjectionRequest, projection_step
from engine.recipe import Recipe
from engine.store import ACTIVE, Run
from pages.shared.chrome import duration, error_id, plain
from pages.shared.curves import OF_CALIBRATORS, live_curves
from pages.shared.glance import first_results
from pages.shared.nouns import called, kind_of_zoo
from pages.shared.progress import log_toggle, log_view, resume, show_progress
from pages.shared.service import ask, ask_unasked, keep_service, told_when_refused
from pages.shared.state import is_projection, run_title, show_run, store

JOB = "job"  # the address parameter and, in the session, the id of the run at work
CURVE_TICK = 1.5
OTHERS_TICK = 3.0


@told_when_refused
def submit(recipe: Recipe) -> None:
    """Ask for a run and follow it; its projection is asked for once the result can be shown (see `_project`)."""
    request = {"recipe": recipe.model_dump(mode="json"), "projection": None}
    row = ask("run", request, recipe_title(recipe))
    follow(row.id)


def follow(run: str) -> None:
    """Show a run's progress in this session and after a reload."""
    st.session_state[JOB] = run
    st.query_params[JOB] = run


def unfollow() -> None:
    """Stop showing a run's progress; the run goes on."""
    st.session_state.pop(JOB, None)
    st.query_params.pop(JOB, None)


def current_job() -> Run | None:
    """Return the run that the address or this session follows, None where it follows none."""
    followed = st.query_params.get(JOB) or st.session_state.get(JOB)
    row = store().runs.find(followed) if followed else None
    if row is not None and row.deleted is None:
        follow(row.id)
        return row
    unfollow()
    return None


def others_at_work(followed: Run | None) -> None:
    """Draw one line about runs at work that this session does not follow; nothing where there are none.

    Args:
        followed: the run whose progress the page shows.
    """
    own = followed.id if followed is not None else ""
    if _others(own):
        st.fragment(_draw_others, run_every=OTHERS_TICK)(own)


def _others(own: str) -> list[Run]:
    rows = store().runs.list(kinds=("run",), states=ACTIVE, children=False)
    return [row for row in rows if row.id != own and not is_projection(row)]


def _draw_others(own: str) -> None:
    keep_service()
    rows = _others(own)
    if not rows:
        return
    first, more = rows[-1], len(rows) - 1
    how_far = "waiting" if first.state == "queued" else f"{100 * first.fraction:.0f} %"
    said = f"At work: {plain(run_title(first))}, {how_far}" + (f", and {more} more" if more else "")
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="others"):
        st.caption(f":material/pending: {said}", width="content")
        if st.button("Follow", key="others.follow", type="tertiary"):
            follow(first.id)
            st.rerun()
        st.page_link("pages/runs.py", label="All work")


def job_panel() -> Run | None:
    """Draw the progress of the run at work, or how it ended; a finished one becomes the run shown.

    Returns:
        The run at work, or the one that failed or was cancelled; None when there is nothing to tell.
    """
    row = current_job()
    if row is None:
        return None
    if row.active:
        with st.container(border=True, key="job"):
            show_progress(row, "job", title=True, border=False)
            st.fragment(_measured, run_every=CURVE_TICK)(row.id)
    elif row.state == "finished":
        unfollow()
        show_run(row.id)
        _project(row)
        st.toast(f"Finished in {duration(row.elapsed)}.", icon=":material/check:")
        return None
    else:
        _ended(row)
    return row


def _project(row: Run) -> None:
    """Ask for the projection that the feature view shows first; the result itself does not wait for it."""
    view = ProjectionRequest()
    if store().find(projection_step(view, row.result).key, checksums=False) is None:
        request = {**view.model_dump(mode="json"), "bundle": row.result}
        ask_unasked("projection", request, view.title, row.id)


def _measured(run: str) -> None:
    row = store().runs.find(run)
    if row is not None and row.active:
        first_results(row)
        zoo = str(row.request.get("recipe", {}).get("zoo", ""))
        live_curves(row.metrics, called(OF_CALIBRATORS, kind_of_zoo(zoo)))


def _ended(row: Run) -> None:
    """Draw a followed run that failed or was cancelled: reason, what to do; the form keeps its inputs."""
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
            log_toggle("job.ended.log")
            if row.state == "failed":
                st.code(f"{error_id(EngineError(row.error))} {row.id}", language=None, width="content")
        if st.session_state.get("job.ended.log"):
            log_view(row.id)


def _resume(run: str) -> None:
    resume(run)
    follow(run)
