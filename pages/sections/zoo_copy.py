"""The part of the zoo page that makes a copy, where the zoo shown stays as it is and is to be changed."""

import json
from pathlib import Path

import streamlit as st

from engine.manifest import Manifest
from engine.zoo.making.copy import copies_of
from engine.zoo.names import safe_name
from pages.forms.params import seeded
from pages.shared.chrome import plain
from pages.shared.progress import show_progress
from pages.shared.service import ask, told_when_refused
from pages.shared.state import store

COPY = "zoo.copy"  # in the session: id of the copy that this page follows
GO = "zoo.copy.go"  # and a copy that is to be shown instead


def made_copy(zoo: str) -> str | None:
    """Draw a copy at work; returns the new zoo's folder once."""
    row = store().runs.find(st.session_state.get(COPY, ""))
    if row is None or row.request.get("zoo") != zoo:
        return None
    if row.active:
        show_progress(row, "zoo.copying", title=True)
        return None
    st.session_state.pop(COPY)
    if row.state == "failed":
        st.error(plain(row.error), icon=":material/error:")
        return None
    folder = store().find(row.result, checksums=False) if row.state == "finished" else None
    return json.loads((folder / "copied.json").read_text("utf-8"))["folder"] if folder else None


def copy_form(zoo: str, manifest: Manifest, key: str, to: str, ending: str) -> str | None:
    """Ask for a copy of the zoo shown, or for one that there is; returns a copy that was chosen, to be shown instead.

    Args:
        zoo: name or folder.
        manifest: of the zoo.
        key: prefix of the widgets' keys.
        to: what is to be done in it, one word.
        ending: of the copy's usual name.
    """
    known = copies_of(manifest.name, store().zoos.list())
    for place in known:
        st.button(
            f"{to.capitalize()} in {plain(place.name)}",
            key=f"{key}.in.{place.name}",
            icon=":material/folder_open:",
            on_click=_go,
            args=(str(place),),
        )
    if st.session_state.get(COPY):
        return st.session_state.pop(GO, None)
    taken = {place.name for place in (store().root / "zoos").glob("*")}
    usual = next(
        name for n in range(1, 99) if (name := f"{manifest.name}-{ending}{'' if n == 1 else f'-{n}'}") not in taken
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.text_input(
            "Name of the copy",
            key=seeded(f"{key}.name.{usual}", usual),
            max_chars=64,
            help="A new zoo in the store, beside those that were imported.",
        )
        st.button(
            f"Make a copy to {to} in",
            key=f"{key}.copy.button",
            type="secondary" if known else "primary",
            icon=":material/content_copy:",
            disabled=not name or safe_name(name) != name,
            on_click=_copy,
            args=(zoo, name),
        )
    if name and safe_name(name) != name:
        st.caption(plain(f"A name of letters, digits, dots, dashes and underscores, such as {safe_name(name)}."))
    return st.session_state.pop(GO, None)


def _go(zoo: str) -> None:
    st.session_state[GO] = zoo


@told_when_refused
def _copy(zoo: str, name: str) -> None:
    st.session_state[COPY] = ask("copy", {"zoo": zoo, "name": name}, f"Copy of {Path(zoo).name}: {name}").id
