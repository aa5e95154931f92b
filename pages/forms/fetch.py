"""A zoo whose files lie elsewhere: what is missing, and a question before anything is downloaded."""

import time
from pathlib import Path

import streamlit as st

from engine.errors import EngineError
from engine.store import Run
from engine.zoo.described.make import Holding, holding
from engine.zoo.importing.roots import inside_roots
from pages.shared.chrome import plain
from pages.shared.progress import show_progress
from pages.shared.service import ask, told_when_refused
from pages.shared.state import store

ROW = "fetch.row"  # in the session: zoo and id of the fetch that this page follows
LISTED = 60


def fetch_panel(zoo: str) -> None:
    """Draw what a chosen zoo lacks and the ways to get it; nothing for a zoo that is here."""
    row = _followed(zoo)
    if row is not None and row.active:
        show_progress(row, "fetch", ended=_holding.clear)
        return
    found = _holding(zoo, int(time.time() // 5))
    if found is None:
        return
    if row is not None and row.state == "failed":
        st.error(plain(row.error), icon=":material/error:")
    with st.container(border=True, key="fetch"):
        _draw_missing(found)
        _local(zoo)
        if found.missing:
            _confirm(zoo, found)
        else:
            st.button("Prepare this zoo", key="fetch.prepare", type="primary", on_click=_submit, args=(zoo, (), False))


def _draw_missing(found: Holding) -> None:
    missing, count = found.missing, len(found.here)
    if not missing:
        st.caption("All files of this zoo are on this machine; they are converted once.")
        return
    images = sum(item.role == "data" for item in missing)
    size = f"about {found.about / 1e9:.1f} GB" if found.about else "files of unknown size"
    also = f" and the images of {images} tasks" if images else ""
    away = {item.scheme for item in missing} == {"local"}
    where = "a local folder" if away else "the Hugging Face Hub"
    have = f"{count - len(missing)} of {count} are here."
    st.caption(f":material/cloud_download: Needs {size}{also} from {where}; {have}")


def _local(zoo: str) -> None:
    """Draw a folder of the server that holds the files."""
    place = st.text_input(
        "Local folder with the files",
        key=f"fetch.place.{zoo}",
        placeholder="/data/clip-experts",
        help="A folder on the server that holds files of this zoo; nothing is downloaded then.",
    )
    if not place:
        return
    try:
        folder = inside_roots(place)
        found = holding(zoo, [folder])
    except EngineError as error:
        st.error(plain(error), icon=":material/error:")
        return
    if found is None:
        return
    lacking = [item.label for item in found.missing]
    if lacking:
        more = f" and {len(lacking) - 4} more" if len(lacking) > 4 else ""
        st.caption(f"Not found there: {plain(', '.join(lacking[:4]))}{more}.")
    models = [item for item in found.missing if item.role != "data"]
    if not models:
        st.button(
            "Use this folder" if not lacking else "Use this folder, without the missing images",
            key="fetch.use",
            type="primary",
            on_click=_submit,
            args=(zoo, (str(folder),), False, not lacking),
        )


def _confirm(zoo: str, found: Holding) -> None:
    """Draw the question; only a click inside it starts a download."""
    if {item.scheme for item in found.missing} == {"local"}:
        return
    with st.popover("Download …", icon=":material/download:", key="fetch.popover"):
        sizes = [f" (about {item.about / 1e6:,.0f} MB)" if item.about else "" for item in found.missing]
        listed = zip(found.missing[:LISTED], sizes, strict=False)
        st.markdown("\n".join(f"- {plain(item.label)}: {plain(item.source)}{size}" for item, size in listed))
        st.caption(
            "Sizes of images are known once the hub is asked. Downloads can be cancelled and resumed; every file is "
            "verified. The licences of the files apply."
        )
        images = st.checkbox(
            "With the images of the tasks",
            value=True,
            key="fetch.images",
            help="Without images models are merged, but nothing can be scored.",
        )
        st.button(
            "Download from the hub", key="fetch.go", type="primary", on_click=_submit, args=(zoo, (), True, images)
        )


@told_when_refused
def _submit(zoo: str, places: tuple[str, ...], download: bool, images: bool = True) -> None:
    request = {"zoo": zoo, "places": list(places), "download": download, "images": images}
    st.session_state[ROW] = (zoo, ask("fetch", request, f"Fetch {Path(zoo).name}").id)


def _followed(zoo: str) -> Run | None:
    """Return the fetch that this session asked for, else one that another session has at work."""
    known = st.session_state.get(ROW)
    if known and known[0] == zoo:
        return store().runs.find(known[1])
    active = store().runs.list(kinds=("fetch",), states=("queued", "running", "cancelling"), limit=20)
    return next((row for row in active if row.request.get("zoo") == zoo), None)


@st.cache_data(max_entries=64, show_spinner=False)
def _holding(zoo: str, moment: int) -> Holding | None:
    """Return what is here of a zoo, looked up once in five seconds: it asks the disk about every source."""
    try:
        return holding(zoo)
    except EngineError:
        return None  # the form says what is wrong with it
