"""The linked feature view: the same images in two to four spaces, brushed together.

A component of our own, drawn on canvases by the script in ``assets/scatter``. Brushing, hovering and zooming are linked
in the browser while the pointer moves; Python hears of a selection once, when a gesture ends.

Points, thumbnails and colours travel in separate packets (see ``_scatter_packing``), because Streamlit does not send a
message again that has not changed: a rerun sends 2 KB, recolouring 8,000 points about 110 KB, most of it the script.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from pages.features.packing import (
    CIVIDIS,
    PURPLE_ORANGE,
    TOL_MUTED,
    TOL_MUTED_DARK,
    Atlas,
    Categorical,
    Continuous,
    Labels,
    Panel,
    ScatterDataError,
    Sentences,
    content_name,
    content_packet,
    point_count,
    sentence_packet,
    thumbnail_packet,
    thumbnails_name,
    view_packet,
)
from pages.features.selection import Exchange, Selection, read_selection, settle

__all__ = [
    "CIVIDIS",
    "PURPLE_ORANGE",
    "TOL_MUTED",
    "TOL_MUTED_DARK",
    "Atlas",
    "Categorical",
    "Continuous",
    "Labels",
    "Panel",
    "ScatterDataError",
    "Selection",
    "Sentences",
    "linked_scatter",
]

ASSETS = Path(__file__).parents[2] / "assets" / "scatter"
SHARED_SOURCES = ("packet.js",)
VIEW_SOURCES = (
    "packet.js",
    "colour.js",
    "raster.js",
    "plane.js",
    "dom.js",
    "legend.js",
    "card.js",
    "painter.js",
    "selection.js",
    "gestures.js",
    "keyboard.js",
    "morph.js",
    "film.js",
    "filmbar.js",
    "filmfacts.js",
    "save.js",
    "scatter.js",
)


def _source(names: Sequence[str]) -> str:
    return "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in names)


_view = st.components.v2.component(
    "mergelens_scatter",
    html='<div class="scatter"></div>',
    css=_source(["scatter.css", "film.css"]),
    js=_source(VIEW_SOURCES),
)
_carrier = st.components.v2.component(
    "mergelens_scatter_packet",
    html="<div hidden></div>",
    js=_source([*SHARED_SOURCES, "carrier.js"]),
)


def linked_scatter(
    panels: Sequence[Panel],
    *,
    key: str,
    content_key: str,
    colour: Categorical | Continuous,
    labels: Labels | None = None,
    thumbnails: Atlas | Sentences | None = None,
    visible: Any = None,
    selection: Sequence[int] | None = None,
    height: int = 380,
    morph: Sequence[str] = (),
    morph_open: bool = False,
    noun: tuple[str, str] = ("image", "images"),
    content: Callable[[], bytes] | None = None,
    film: Mapping[str, Any] | None = None,
    on_select: Callable[[], None] | None = None,
) -> Selection:
    """Draw one joint projection as linked panels and return the selected rows.

    Args:
        panels: one to four, all of n points; row i is the same image in each.
        key: identity of the view; zoom, mode, focus and selection are kept under it, also across a change of page.
            Rows of another meaning (other images) need another key.
        content_key: names the content of ``panels`` and ``labels`` (a run and a projection). Packing is cached under
            it: other content under the same key is not noticed.
        colour: what the points' colour says. A click on a category in the legend focuses it; the other points turn grey
            and do not answer to brush and pointer.
        labels: true class and predictions for the hover card.
        thumbnails: images or texts of the hover card, cached under their own key.
        visible: of shape (n,), bool, optional; hidden points are neither drawn nor selected.
        selection: rows selected from outside, by a worklist or the address. A value that is new since the last run
            replaces the selection; a repeated one, or the selection handed back, does not. None leaves it alone.
        height: of a panel in px, at most; narrow panels are square.
        morph: titles of two or more panels, in order; adds a panel in which the points move from state to state, with
            trails. ``morph_open`` shows it from the start, else a button does.
        noun: singular and plural of what a point is.
        content: packs the points of a film, in place of those of ``panels``; cached under ``content_key``.
        film: the frame at which a film begins (``at``), and a ``revision`` that is above the browser's where the page
            wants it moved there. The browser tells frame and revision under ``film`` in the view's state.
        on_select: called before the rerun that follows a gesture, like every widget's callback.
    Returns: the selected rows in ascending order, and a revision that grows with every change of them.
    Raises: ScatterDataError: arrays that do not fit each other, an unknown title in ``morph``.
    """
    count = point_count(panels)
    if thumbnails is not None and len(thumbnails) != count:
        raise ScatterDataError(f"There are {len(thumbnails)} thumbnails for {count} points; expected one a point.")
    header = {
        "key": key,
        "content": content_name(content_key),
        "thumbnails": thumbnails_name(thumbnails.key) if thumbnails else None,
        "height": height,
        "morph": _stages(panels, morph),
        "morphOpen": morph_open,
        "noun": list(noun),
        "film": dict(film) if film else None,
    }
    memory_key = f"{key}.exchange"
    state = st.session_state.get(key) or {}
    memory = settle(
        st.session_state.get(memory_key, Exchange()), read_selection(state.get("selection"), count), selection, count
    )
    st.session_state[memory_key] = memory
    with st.container(gap=None):
        _carrier(
            key=f"{key}.content",
            data=_content(content or (lambda: content_packet(panels, labels, content_key)), content_key),
        )
        if thumbnails is not None:
            _carrier(key=f"{key}.thumbnails", data=_thumbnails(thumbnails, thumbnails.key))
        _view(
            key=key,
            data=view_packet(panels, colour, header, visible, memory.written),
            on_selection_change=on_select or (lambda: None),
            on_film_change=lambda: None,
        )
    return memory.current


def _stages(panels: Sequence[Panel], titles: Sequence[str]) -> list[int]:
    """Return panel numbers of the morph's states."""
    known = [panel.title for panel in panels]
    unknown = [title for title in titles if title not in known]
    if unknown or len(titles) == 1:
        raise ScatterDataError(f"The morph names {list(titles)}; expected none, or two or more of the panels {known}.")
    return [known.index(title) for title in titles]


@st.cache_resource(max_entries=8, ttl="6h", show_spinner=False)
def _content(_packed: Callable[[], bytes], content_key: str) -> bytes:
    return _packed()


@st.cache_resource(max_entries=4, ttl="6h", show_spinner=False)
def _thumbnails(_atlas: Atlas | Sentences, key: str) -> bytes:
    return sentence_packet(_atlas) if isinstance(_atlas, Sentences) else thumbnail_packet(_atlas)
