"""Sources of checkpoints: uploads, configured folders of the server, the hub; roles and names to be corrected."""

from pathlib import Path

import streamlit as st

from engine.errors import EngineError
from engine.store.uploads import folder_name
from engine.zoo.importing.roots import (
    WEIGHTS,
    Entry,
    configured_roots,
    find_candidates,
    inside_roots,
    list_folder,
    sort_candidates,
)
from pages.sections import bring_draft as draft
from pages.sections.uploader import tray, uploader
from pages.shared.chrome import plain
from pages.shared.progress import show_progress
from pages.shared.service import ask, told_when_refused
from pages.shared.state import store

FOLDER = "bring.folder"  # where the chooser stands
TURN = "bring.turn"  # of the chooser's lists, which begin empty in each folder
HUB = "bring.hub"  # id of the download that this page follows
ROLES = {"base": "Base", "expert": "Expert", "head": "Head"}
PLACES = {"upload": "Upload", "server": "On the server", "hub": "Hugging Face Hub"}
EXPECTED = "safetensors, PyTorch files or whole Hugging Face folders; an upload that breaks off goes on where it was."


def sources() -> None:
    """Draw the ways to add models."""
    where = place_switch("models")
    if where == "upload":
        uploader(key="bring.upload", accepts=(*WEIGHTS, ".json", ".txt", ".model"), hint=EXPECTED, folders=True)
    elif where == "hub":
        hub_field("models", "openai/clip-vit-base-patch32")
    else:
        _chooser()
    said()


def place_switch(name: str) -> str:
    """Let the kind of place be chosen that files come from."""
    return st.segmented_control(
        "From",
        list(PLACES),
        format_func=PLACES.__getitem__,
        key=draft.kept(f"place.{name}", "upload"),
        required=True,
        label_visibility="collapsed",
        help="Files of this computer, files of the machine that the app runs on, or a repository of the hub.",
    )


def hub_field(name: str, example: str, *, of_data: bool = False) -> None:
    """Ask for a repository's id; the engine downloads it into this visit's folder."""
    row = store().runs.find(st.session_state.get(HUB, ""))
    if row is not None and row.active:
        show_progress(row, f"bring.hub.{name}", border=False)
        return
    if row is not None and row.state == "failed":
        st.error(plain(row.error), icon=":material/error:")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        asked = st.text_input(
            "Repository",
            key=draft.kept(f"hub.{name}", ""),
            placeholder=example,
            max_chars=300,
            help="OWNER/NAME; with @REVISION and :FILE where they are not the usual ones.",
        )
        st.button(
            "Fetch",
            key=f"bring.hub.{name}.go",
            icon=":material/cloud_download:",
            disabled=not asked,
            on_click=_fetch,
            args=(asked, of_data),
        )


def said() -> None:
    """Draw what went wrong in a callback, once."""
    if problem := st.session_state.pop(draft.PROBLEM, ""):
        st.error(plain(problem), icon=":material/error:")


def chosen_files() -> None:
    """Draw the files chosen so far, each with role and name to be corrected."""
    for ident, item in draft.models().items():
        with st.container(horizontal=True, vertical_alignment="bottom", key=f"bring.row.{ident}"):
            role = st.selectbox(
                "Role",
                list(ROLES),
                format_func=ROLES.__getitem__,
                key=draft.kept(f"role.{ident}", item["role"]),
                width=120,
                help="The base is the pretrained model; experts were fine-tuned from it; a head classifies one task.",
            )
            st.text_input(
                "Task" if role == "head" else "Name",
                key=draft.kept(f"name.{ident}", item["name"]),
                max_chars=64,
                placeholder="none needed" if role == "base" else None,
                disabled=role == "base",
                width=200,
                help="Under this name the zoo lists it; a head bears the name of its task.",
            )
            st.caption(plain(draft.title_of_path(item["path"])), width="stretch")
            remove_button(ident)


def remove_button(ident: str) -> None:
    """Offer to take a file out again."""
    st.button(
        "Remove",
        key=f"bring.remove.{ident}",
        icon=":material/delete:",
        type="tertiary",
        on_click=draft.drop,
        args=(ident,),
    )


def _chooser() -> None:
    """Walk through the configured folders and add what lies there."""
    roots = configured_roots()
    if not roots:
        st.error("None of the configured folders exists. Set MERGELENS_ROOTS and start the app again.")
        return
    folder, entries = _here(roots)
    st.caption(f":material/folder_open: {plain(folder)}")
    folders = [entry for entry in entries if entry.kind == "folder"]
    models = {str(entry.path): entry for entry in entries if entry.kind == "model"}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        places = _places(folder, roots, folders)
        st.selectbox(
            "Open a folder",
            list(places),
            format_func=places.__getitem__,
            index=None,
            placeholder=_counted(len(folders), "folder"),
            key=f"bring.open.{st.session_state.get(TURN, 0)}",
            on_change=_open,
            help="Folders on the server below those that the setting MERGELENS_ROOTS allows.",
        )
        chosen = st.multiselect(
            "Models here",
            list(models),
            format_func=lambda path: _label(models[path]),
            placeholder=_counted(len(models), "model"),
            key=f"bring.models.{st.session_state.get(TURN, 0)}",
            disabled=not models,
            help="Checkpoints recognised in this folder; nothing in them is executed.",
        )
    with st.container(horizontal=True):
        st.button(
            "Add chosen", key="bring.add", icon=":material/add:", disabled=not chosen, on_click=_add, args=(chosen,)
        )
        st.button(
            "Add all below this folder",
            key="bring.add_all",
            icon=":material/library_add:",
            on_click=_add_all,
            args=(str(folder),),
            help="Looks for models here and three levels further down.",
        )


@told_when_refused
def _fetch(repository: str, of_data: bool) -> None:
    request = {"repository": repository.strip(), "data": of_data, "tray": folder_name(tray())}
    st.session_state[HUB] = ask("hub", request, f"Fetch {repository}").id


def _here(roots: tuple[Path, ...]) -> tuple[Path, list[Entry]]:
    """Return the folder that the chooser shows; the first root where it cannot be shown."""
    try:
        folder = inside_roots(st.session_state.get(FOLDER) or roots[0])
        return folder, list_folder(folder)
    except EngineError as error:
        st.error(plain(error), icon=":material/error:")
        st.session_state.pop(FOLDER, None)
        return roots[0], []


def _places(folder: Path, roots: tuple[Path, ...], folders: list[Entry]) -> dict[str, str]:
    """List the folders to go to from here: up (inside a root), down, and the other roots."""
    places = {} if folder in roots else {str(folder.parent): "↑ up"}
    places |= {str(entry.path): entry.name for entry in folders}
    return places | {str(root): f"⌂ {root}" for root in roots if root != folder}


def _open() -> None:
    turn = st.session_state.get(TURN, 0)
    chosen = st.session_state.get(f"bring.open.{turn}")
    if chosen:
        st.session_state[FOLDER] = chosen
        st.session_state[TURN] = turn + 1


def _add(paths: list[str]) -> None:
    draft.add_models(sort_candidates(Path(path) for path in paths))
    st.session_state[TURN] = st.session_state.get(TURN, 0) + 1


def _add_all(folder: str) -> None:
    try:
        found = find_candidates(Path(folder))
    except EngineError as error:
        st.session_state[draft.PROBLEM] = str(error)
        return
    if found.base is None and not found.experts and not found.heads:
        st.session_state[draft.PROBLEM] = f"No models were found in {folder} or three levels below it."
    draft.add_models(found)


def _counted(count: int, what: str) -> str:
    return f"{count or 'No'} {what}{'' if count == 1 else 's'} here"


def _label(entry: Entry) -> str:
    return f"{entry.name} ({entry.size / 2**20:.0f} MiB)" if entry.size else entry.name
