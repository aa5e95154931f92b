"""The lab: what the run shown says, and the recipe for the next one."""

import streamlit as st

from engine.errors import EngineError
from engine.recipe import Recipe, parse_recipe
from engine.store import Run
from pages.features.view import feature_view
from pages.forms import drafts, preview
from pages.forms import recipe as forms
from pages.sections.accuracy_bars import draw_accuracy
from pages.sections.cards import expert_cards
from pages.sections.run_views import all_views_of
from pages.sections.story import headline, metrics, questions
from pages.shared.chrome import context_bar, empty_state, error_state
from pages.shared.jobs import job_panel, others_at_work, submit
from pages.shared.later import later
from pages.shared.nouns import called, kind_of
from pages.shared.state import RunView, find_current

SEEN = "lab.seen"  # id and recipe of the run last shown, to tell whether the form was changed since


def main() -> None:
    """Draw the job at work, the result and the recipe."""
    job = job_panel()
    asked = _recipe_of(job)
    run = find_current()
    _follow(run, asked)
    place = None
    if run is not None:
        context_bar(run)
        place = st.container(key="preview.place")
    preview.begin()
    with st.sidebar:
        st.fragment(forms.recipe_form)(run, submit, asked if job and job.active else None, place)
    preview.end()
    if run is None:
        st.title("Merge fine-tuned experts, see what merging does to them, repair it", anchor=False)
        others_at_work(job)
        empty_state(
            "No run has finished yet",
            "Press Run in the panel on the left: the experts of the bundled zoo are merged, repaired and measured, and "
            "the result appears here.",
        )
        return
    _result(run, job)


def _follow(run: RunView | None, asked: Recipe | None) -> None:
    """Load the recipe of a newly shown run into the form, unless the form holds changes of its own.

    After a reload the form starts from what it held, else from what was asked for last; what another page has put into
    it stays.
    """
    seen = st.session_state.get(SEEN)
    started = seen is None and forms.RECIPE not in st.session_state
    if started and (draft := drafts.kept() or asked):
        forms.load(draft)
    elif seen is None and not started:
        pass
    elif run is not None and (seen is None or (seen[0] != run.id and not forms.is_changed(seen[1]))):
        forms.load(run.report.recipe)
    if run is not None:
        st.session_state[SEEN] = (run.id, run.report.recipe)


def _recipe_of(job: Run | None) -> Recipe | None:
    try:
        return parse_recipe(job.request.get("recipe")) if job else None
    except EngineError:
        return None


def _result(run: RunView, job: Run | None) -> None:
    st.title(headline(run.report), anchor=False)
    others_at_work(job)
    metrics(run.report)
    questions(run)
    st.subheader(called("The same images in the features of every state", kind_of(run.report)), anchor=False)
    try:
        feature_view(run, key="lab.features", compact=True)
    except Exception as error:  # the rest of the page does not depend on it
        error_state(error)
    st.subheader("Accuracy per task", anchor=False)
    later(lambda: _accuracy(run), after="mergelensFeatureView", height=340, key="lab.later")
    st.subheader("The experts", anchor=False)
    expert_cards(run)
    all_views_of(run, "lab")


def _accuracy(run: RunView) -> None:
    draw_accuracy(run, "lab.accuracy", "Accuracy in percent")


main()
