"""The end of an import: the new zoo, its first run, and the way to what the run found."""

from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.manifest import Manifest
from engine.recipe import Recipe, parse_recipe
from engine.rounding import bytes_text
from engine.store import Run
from engine.zoo.modalities import modality_of
from pages.forms.recipe import load
from pages.forms.recipes import check
from pages.sections import bring_draft as draft
from pages.sections.bring_check import JOB, summary_of
from pages.shared import jobs
from pages.shared.chrome import percent, plain
from pages.shared.nouns import called
from pages.shared.progress import show_progress
from pages.shared.state import open_run, show_run, store
from pages.shared.zoos import zoo_manifest


def followed() -> Run | None:
    """Return the import that the address names."""
    row = store().runs.find(st.query_params.get(JOB, ""))
    if row is None or row.kind != "import":
        st.query_params.pop(JOB, None)
        return None
    return row


def import_progress(row: Run) -> None:
    """Draw an import at work, or how it ended badly."""
    with st.container(border=True, key="bring.job"):
        if row.active:
            show_progress(row, "bring", border=False)
        else:
            st.error(plain(row.error or "The import was cancelled; nothing was written."), icon=":material/error:")
            st.button("Back to the files", key="bring.back", on_click=_unfollow)


def first_run(row: Run) -> None:
    """Draw a zoo that was made, and its first run."""
    summary = summary_of(row)
    if summary is None:
        st.error("What this import found is no longer in the store; the zoo itself may still be there.")
        st.button("Back to the files", key="bring.back", on_click=_unfollow)
        return
    experts = sum(item["role"] == "expert" for item in summary["rows"])
    many = "1 expert" if experts == 1 else f"{experts} experts"
    st.success(f"**{plain(summary['name'])}** is a zoo now: {many}, {bytes_text(summary['bytes'])}.")
    for warning in summary["warnings"]:
        st.warning(plain(warning), icon=":material/warning:")
    _run(summary)
    with st.container(horizontal=True):
        if st.button("Open in the lab", key="bring.lab", icon=":material/science:"):
            load(parse_recipe(_document(summary)))
            st.switch_page("pages/lab.py")
        st.button("Bring more", key="bring.more", on_click=_again)


def _run(summary: dict[str, Any]) -> None:
    """Draw the first run: what it will do, how far it is, what it found."""
    job = store().runs.find(st.query_params.get(jobs.JOB, ""))
    if job is not None and job.kind == "run" and (job.request.get("recipe") or {}).get("zoo") == summary["out"]:
        _followed_run(job)
        return
    try:
        manifest = zoo_manifest(summary["out"])
    except (EngineError, OSError) as error:
        st.error(plain(error), icon=":material/error:")
        return
    recipe, problems = check(_document(summary))
    if recipe is None or not any(task.data for task in manifest.tasks):
        reasons = " ".join(problems) or "It has no images, so nothing can be scored; it can be merged and exported."
        st.caption(f":material/info: {plain(called(reasons, modality_of(manifest)))}")
        return
    st.write(plain(called(_plan(recipe, manifest), modality_of(manifest))))
    st.button(
        "Run", key="bring.run", type="primary", icon=":material/play_arrow:", on_click=jobs.submit, args=(recipe,)
    )


def _followed_run(job: Run) -> None:
    if job.active:
        show_progress(job, "bring.run")
        return
    if job.state != "finished":
        st.error(plain(job.error or "The run was cancelled."), icon=":material/error:")
        st.button("Try again", key="bring.run.again", icon=":material/replay:", on_click=jobs.unfollow)
        return
    try:
        average = open_run(job.id).report.average
    except EngineError as error:
        st.error(plain(error), icon=":material/error:")
        return
    states = {"pretrained": "Base", "merged": "Merged", "expert": "Experts"}
    shown = {title: average[state].within for state, title in states.items() if state in average}
    st.write(" · ".join(f"{title} **{percent(accuracy)}**" for title, accuracy in shown.items()))
    if st.button("See the accuracies", key="bring.accuracy", type="primary", icon=":material/bar_chart:"):
        jobs.unfollow()
        show_run(job.id)
        st.switch_page("pages/accuracy.py")


def _plan(recipe: Recipe, manifest: Manifest) -> str:
    scored = [task.label for task in manifest.tasks if task.data]
    what = ", ".join(scored[:3]) + (f" and {len(scored) - 3} more" if len(scored) > 3 else "")
    return (
        f"A first run merges the experts by Task Arithmetic (λ {recipe.merge.params['scaling']:g}) and scores the "
        f"base, every expert and the merged model on the images of {what}."
    )


def _document(summary: dict[str, Any]) -> dict[str, Any]:
    return {"zoo": summary["out"], "merge": {"method": "task_arithmetic"}}


def _unfollow() -> None:
    st.query_params.pop(JOB, None)


def _again() -> None:
    _unfollow()
    jobs.unfollow()
    draft.forget()
