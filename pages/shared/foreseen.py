"""The time that views are foreseen to take here, for people."""

import json

import streamlit as st

from engine.errors import EngineError
from engine.pipeline.preflight.views import Foreseen, foresee
from engine.pipeline.viewing.base import View, ViewRequest
from engine.pipeline.views import view_of
from pages.shared.state import RunView, store

SOON = 3.0  # seconds below which a view is computed without being asked for
FRESH = 60  # seconds for which what is foreseen is kept


def foreseen(run: RunView, view: View, request: ViewRequest) -> Foreseen | None:
    """Return what a view of a run is foreseen to take; None where that is not known."""
    text = json.dumps(request.model_dump(mode="json"), sort_keys=True)
    return _foreseen(str(store().root), view.name, text, not run.example)


def is_soon(expected: Foreseen | None) -> bool:
    """Return whether a view is so quick that nobody has to ask for it."""
    return expected is not None and expected.seconds < SOON


@st.cache_data(max_entries=512, ttl=FRESH, show_spinner=False)
def _foreseen(root: str, name: str, text: str, finished: bool) -> Foreseen | None:
    view = view_of(name)
    try:
        return foresee(view, view.request.parse(json.loads(text)), store(), finished=finished)
    except EngineError:
        return None  # the zoo is gone or cannot be read; what is asked for will say so
