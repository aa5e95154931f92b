"""The place of a page where files are dropped; they go to disk past Streamlit, see ``pages/shared/uploads.py``."""

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from engine.store.people import NotAllowed, check_allowed
from engine.store.uploads import most_bytes
from pages.shared.chrome import plain
from pages.shared.people import person
from pages.shared.uploads import PATH, base_path, uploads

ASSETS = Path(__file__).parents[2] / "assets" / "upload"
TRAY = "files"  # the address parameter, and the session's key, of the tray of this visit's files

_zone = st.components.v2.component(
    "mergelens_upload",
    html='<div class="upload"></div>',
    css=(ASSETS / "upload.css").read_text(encoding="utf-8"),
    js="\n".join((ASSETS / name).read_text(encoding="utf-8") for name in ("sha256.js", "upload.js")),
)


def uploader(*, key: str, accepts: Sequence[str], hint: str, folders: bool = False) -> None:
    """Draw a place to drop files into this visit's folder; the page is drawn again when they have come.

    Args:
        key: identity of the widget.
        accepts: endings of names.
        hint: what is expected.
        folders: whether whole folders may be chosen.
    """
    limit = most_bytes()
    if not limit:
        st.caption("This server takes no uploads. Choose files in its folders instead.")
        return
    try:
        address = f"{base_path()}{PATH}/{tray()}"
    except NotAllowed as error:
        st.info(plain(error), icon=":material/info:")
        return
    data = {"address": address, "place": key, "accepts": list(accepts), "hint": hint}
    _zone(key=key, data={**data, "limit": limit, "folders": folders}, on_ended_change=_seen)


def tray() -> str:
    """Return the tray of this visit's folder; the address names it, so that a reload finds the files again.

    Raises:
        NotAllowed: the visit has none, and its person may start nothing.
    """
    known = _own_tray()
    if not known:
        somebody = person()
        check_allowed(somebody, "run")
        known = uploads().new_tray(somebody.id)
    st.session_state[TRAY] = known
    if st.query_params.get(TRAY) != known:
        st.query_params[TRAY] = known
    return known


def tray_folder() -> Path | None:
    """Return this visit's folder where it has one."""
    known = _own_tray()
    return uploads().folder(known) if known else None


def _own_tray() -> str:
    """Return the tray that the session or the address names, where it is of this person."""
    named = (st.session_state.get(TRAY), st.query_params.get(TRAY))
    return next((known for known in named if known and uploads().folder(known, person().id)), "")


def _seen() -> None:
    """Let the page be drawn again: it reads the folder."""
