"""The place of a page where files are dropped; they go to disk past Streamlit, see ``pages/shared/uploads.py``."""

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from engine.store.uploads import most_bytes
from pages.shared.uploads import PATH, base_path, uploads

ASSETS = Path(__file__).parents[2] / "assets" / "upload"
TRAY = "files"  # the address parameter, and the session's key, of the folder that this visit's files lie in

_zone = st.components.v2.component(
    "mergelens_upload",
    html='<div class="upload"></div>',
    css=(ASSETS / "upload.css").read_text(encoding="utf-8"),
    js="\n".join((ASSETS / name).read_text(encoding="utf-8") for name in ("sha256.js", "upload.js")),
)


def uploader(tray: str, *, key: str, accepts: Sequence[str], hint: str, folders: bool = False) -> None:
    """Draw a place to drop files into a visit's folder; the page is drawn again when they have come.

    Args:
        tray: from :func:`tray`.
        key: identity of the widget.
        accepts: endings of names.
        hint: what is expected.
        folders: whether whole folders may be chosen.
    """
    limit = most_bytes()
    if not limit:
        st.caption("This server takes no uploads. Choose files in its folders instead.")
        return
    data = {"address": f"{base_path()}{PATH}/{tray}", "accepts": list(accepts), "hint": hint}
    _zone(key=key, data={**data, "limit": limit, "folders": folders}, on_ended_change=_seen)


def tray() -> str:
    """Return the name of this visit's folder; the address names it, so that a reload finds the files again."""
    for known in (st.session_state.get(TRAY), st.query_params.get(TRAY)):
        if known and uploads().folder(known):
            break
    else:
        known = uploads().new_tray()
    st.session_state[TRAY] = known
    if st.query_params.get(TRAY) != known:
        st.query_params[TRAY] = known
    return known


def tray_folder() -> Path | None:
    """Return this visit's folder where it has one."""
    known = st.session_state.get(TRAY) or st.query_params.get(TRAY)
    return uploads().folder(known) if known else None


def _seen() -> None:
    """Let the page be drawn again: it reads the folder."""
