"""Recipes that the form holds and nobody has run yet, so that a reloaded page has them again."""

import secrets
from collections import OrderedDict

import streamlit as st

from engine.recipe import Recipe

DRAFT = "draft"  # the address parameter and, in the session, the name under which the form's recipe is kept
KEPT = 200  # recipes, in the memory of the app


def keep(recipe: Recipe) -> None:
    """Keep what the form holds under a name that the address carries from then on."""
    name = st.session_state.setdefault(DRAFT, secrets.token_urlsafe(9))
    drafts = _drafts()
    drafts[name] = recipe
    drafts.move_to_end(name)
    while len(drafts) > KEPT:
        drafts.popitem(last=False)
    if st.query_params.get(DRAFT) != name:
        st.query_params[DRAFT] = name


def forget() -> None:
    """Take the name out of the address, where the form holds nothing of its own."""
    _drafts().pop(st.session_state.pop(DRAFT, ""), None)
    st.query_params.pop(DRAFT, None)


def kept() -> Recipe | None:
    """Return the recipe that the address names; None where it names none, or the app was started again since."""
    return _drafts().get(st.query_params.get(DRAFT, ""))


@st.cache_resource(show_spinner=False)
def _drafts() -> OrderedDict[str, Recipe]:
    return OrderedDict()
