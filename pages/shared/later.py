"""Parts of a page that wait for its first one, so that their large scripts do not hold it back."""

from collections.abc import Callable
from pathlib import Path

import streamlit as st

LOADED = "later.loaded"  # in the session: the browser has what is large, nothing is put off any more
SOURCE = Path(__file__).parents[2] / "assets" / "later" / "later.js"

_signal = st.components.v2.component(
    "mergelens_later", html="<div hidden></div>", js=SOURCE.read_text(encoding="utf-8")
)


@st.fragment
def later(draw: Callable[[], None], *, after: str, height: int, key: str) -> None:
    """Draw something once the browser shows something else; at once when that has happened in this session.

    Args:
        draw: draws it.
        after: name that the browser script of what comes first gives its being there; waited for four seconds at most.
        height: px that it will take, held free for it.
        key: identity of the signal.
    """
    if not st.session_state.get(LOADED):
        _signal(key=key, data={"after": after}, on_ready_change=_loaded)
        st.skeleton(height=height)
        return
    draw()


def _loaded() -> None:
    st.session_state[LOADED] = True
