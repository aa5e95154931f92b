"""A zoo whose files lie elsewhere: what is missing, and a question before anything is downloaded."""

import time
from pathlib import Path

import streamlit as st

from engine.errors import EngineError
from engine.store import Run
from engine.zoo.described.make import Holding, holding
from engine.zoo.importing.roots import inside_roots
from pages.shared.chrome import duration, plain
from pages.shared.jobs import PAGE, cancel, keep_service
from pages.shared.state import store

ROW = "fetch.row"  # in the session: zoo and id of the fetch that this page follows
TICK = 1.0
LISTED = 60


def fetch_panel(zoo: str) -> None:
    """What a chosen zoo lacks and how to get it; nothing for a zoo that is here."""
    row = _followed(zoo)
    if row is not None and row.active:
        st.fragment(_progress, run_every=TICK)(row.id)
        return
    found = _holding(zoo, int(time.time() // 5))
    if found is None:
        return
    if row is not None and row.state == "failed":
        st.error(plain(row.error), icon=":material/error:")
    with st.container(border=True, key="fetch"):
        _said(found)
        _local(zoo)
        if found.missing:
            _confirm(zoo, found)
        else:
            st.button("Prepare this zoo", key="fetch.prepare", type="primary", on_click=_submit, args=(zoo, (), False))


def _said(found: Holding) -> None:
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
    """A folder of the server that holds the files."""
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
    """The question; only a click inside it starts a download."""
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


def _submit(zoo: str, places: tuple[str, ...], download: bool, images: bool = True) -> None:
    request = {"zoo": zoo, "places": list(places), "download": download, "images": images}
    row = store().runs.submit("fetch", request, name=f"Fetch {Path(zoo).name}", requested_by=PAGE)
    st.session_state[ROW] = (zoo, row.id)
    keep_service()


def _followed(zoo: str) -> Run | None:
    """The fetch that this session asked for, else one that another session has at work."""
    known = st.session_state.get(ROW)
    if known and known[0] == zoo:
        return store().runs.find(known[1])
    active = store().runs.list(kinds=("fetch",), states=("queued", "running", "cancelling"), limit=20)
    return next((row for row in active if row.request.get("zoo") == zoo), None)


def _progress(run: str) -> None:
    row = store().runs.find(run)
    if row is None or not row.active:
        _holding.clear()
        st.rerun(scope="app")
    with st.container(border=True):
        st.progress(min(max(row.fraction, 0.0), 1.0), text=plain(row.message or "Waiting for the engine"))
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(f"{duration(row.elapsed)} · {100 * row.fraction:.0f} %")
            st.button("Cancel", key="fetch.cancel", disabled=row.state == "cancelling", on_click=cancel, args=(row.id,))


@st.cache_data(max_entries=64, show_spinner=False)
def _holding(zoo: str, moment: int) -> Holding | None:
    """Looked up once in five seconds: it asks the disk about every source."""
    try:
        return holding(zoo)
    except EngineError:
        return None  # the form says what is wrong with it
