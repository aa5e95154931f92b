"""The lab: what the run shown says, and the recipe for the next one."""

from importlib import import_module
from importlib.util import find_spec

import streamlit as st

from engine.figures import accuracy_bars
from pages import _forms as forms
from pages._cards import expert_cards
from pages._chrome import context_bar, empty_state, figure, theme
from pages._jobs import job_panel, submit
from pages._state import RunView, find_current
from pages._story import headline, metrics

SEEN = "lab.seen"  # id and recipe of the run last shown, to tell whether the form was changed since


def main() -> None:
    """Job at work, result, recipe."""
    job_panel()
    run = find_current()
    _follow(run)
    with st.sidebar:
        st.fragment(forms.recipe_form)(run.report.recipe if run else None, submit)
    if run is None:
        st.title("Merge fine-tuned experts, see what merging does to them, repair it", anchor=False)
        empty_state(
            "No run has finished yet",
            "Press Run in the panel on the left: the experts of the bundled zoo are merged, repaired and measured, and "
            "the result appears here.",
        )
        return
    _result(run)


def _follow(run: RunView | None) -> None:
    """A newly shown run brings its recipe into the form, unless the form holds changes of its own."""
    seen = st.session_state.get(SEEN)
    if run is None or (seen and seen[0] == run.id):
        return
    if seen is None or not forms.is_changed(seen[1]):
        forms.load(run.report.recipe)
    st.session_state[SEEN] = (run.id, run.report.recipe)


def _result(run: RunView) -> None:
    context_bar(run)
    st.title(headline(run.report), anchor=False)
    metrics(run.report)
    st.subheader("Accuracy per task", anchor=False)
    figure(accuracy_bars(run.report, theme()), key="lab.accuracy", run=run, unit="Accuracy in percent")
    if find_spec("pages._features"):
        st.subheader("The same images in every state's features", anchor=False)
        import_module("pages._features").feature_view(run, key="lab.features", compact=True)
    st.subheader("The experts", anchor=False)
    expert_cards(run)


main()
