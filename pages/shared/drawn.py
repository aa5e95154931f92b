"""Figures of runs and what is told with them, made once for everybody who looks at the same."""

from collections.abc import Callable
from typing import Any, TypeVar

import streamlit as st

from engine.figures import Drawing
from pages.shared.chrome import FONT
from pages.shared.nouns import figure_called, kind_of
from pages.shared.state import RunView

T = TypeVar("T")


def drawn(run: RunView, shown: tuple[Any, ...], make: Callable[[], Drawing]) -> Drawing:
    """Return a figure that depends on a run and on what is chosen alone; nobody may change it.

    Plotly checks every field of a figure, which takes longer than all else that a page does.

    Args:
        run: that the figure is of.
        shown: the figure's name and all that is chosen of it: the theme, a view's folder.
        make: makes it.
    """
    return shared(run, shown, lambda: prepared(run, make()))


def shared(run: RunView, shown: tuple[Any, ...], make: Callable[[], T]) -> T:
    """Return what depends on a run and on what is chosen alone; nobody may change it. Errors are not kept."""
    return _shared(run.stamp, shown, make)


def prepared(run: RunView, drawing: Drawing) -> Drawing:
    """Give a figure all that :func:`.chrome.figure` changes of one, so that it changes nothing of it any more."""
    figure_called(drawing.figure, kind_of(run.report))
    drawing.figure.layout.font.family = FONT
    return drawing


@st.cache_resource(max_entries=256, ttl="6h", show_spinner=False)
def _shared(stamp: str, shown: tuple[Any, ...], _make: Callable[[], T]) -> T:
    return _make()
