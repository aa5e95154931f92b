"""Choosing checkpoints on the server: configured folders only, names recognised and editable."""

from pathlib import Path
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.zoo.importing.roots import (
    Candidates,
    Entry,
    configured_roots,
    find_candidates,
    inside_roots,
    list_folder,
    sort_candidates,
)
from engine.zoo.names import distinct, expert_name
from pages.shared.chrome import plain

ITEMS = "bring.items"  # ident → {role, name, path}
FOLDER = "bring.folder"  # where the chooser stands
COUNTER = "bring.counter"
ROLES = {"base": "Base", "expert": "Expert", "head": "Head"}


def chooser() -> None:
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
            key=f"bring.open.{st.session_state.get(COUNTER, 0)}",
            on_change=_open,
            help="Folders on the server below those that the setting MERGELENS_ROOTS allows.",
        )
        chosen = st.multiselect(
            "Models here",
            list(models),
            format_func=lambda path: _label(models[path]),
            placeholder=_counted(len(models), "model"),
            key=f"bring.models.{st.session_state.get(COUNTER, 0)}",
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
    if problem := st.session_state.pop("bring.problem", ""):
        st.error(plain(problem), icon=":material/error:")


def chosen_files() -> list[dict[str, Any]]:
    """Return the files chosen so far, each with role and name to be corrected.

    Returns:
        ``{role, name, path}`` as corrected.
    """
    items: dict[str, dict[str, Any]] = st.session_state.get(ITEMS, {})
    for ident, item in list(items.items()):
        with st.container(horizontal=True, vertical_alignment="bottom", key=f"bring.row.{ident}"):
            item["role"] = st.selectbox(
                "Role",
                list(ROLES),
                format_func=ROLES.__getitem__,
                key=_seeded(f"bring.role.{ident}", item["role"]),
                width=120,
                help="The base is the pretrained model; experts were fine-tuned from it; a head classifies one task.",
            )
            item["name"] = st.text_input(
                "Task" if item["role"] == "head" else "Name",
                key=_seeded(f"bring.name.{ident}", item["name"]),
                max_chars=64,
                placeholder="none needed" if item["role"] == "base" else None,
                disabled=item["role"] == "base",
                width=200,
                help="Lower-case name under which the zoo lists it; a head bears the name of its task.",
            )
            st.caption(plain(_short(item["path"])), width="stretch")
            st.button(
                "Remove",
                key=f"bring.remove.{ident}",
                icon=":material/delete:",
                type="tertiary",
                on_click=_remove,
                args=(ident,),
            )
    return list(items.values())


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
    number = st.session_state.get(COUNTER, 0)
    chosen = st.session_state.get(f"bring.open.{number}")
    if chosen:
        st.session_state[FOLDER] = chosen
        st.session_state[COUNTER] = number + 1


def _add(paths: list[str]) -> None:
    _take(sort_candidates(Path(path) for path in paths))


def _add_all(folder: str) -> None:
    try:
        found = find_candidates(Path(folder))
    except EngineError as error:
        st.session_state["bring.problem"] = str(error)
        return
    if found.base is None and not found.experts and not found.heads:
        st.session_state["bring.problem"] = f"No models were found in {folder} or three levels below it."
    _take(found)


def _take(found: Candidates) -> None:
    """Add candidates that are not there yet; only one of all files is the base."""
    items: dict[str, dict[str, Any]] = st.session_state.setdefault(ITEMS, {})
    known = {item["path"] for item in items.values()}
    has_base = any(item["role"] == "base" for item in items.values())
    listed = [("base" if not has_base else "expert", found.base)] if found.base else []
    listed += [("expert", path) for path in found.experts] + [("head", path) for path in found.heads]
    taken = [item["name"] for item in items.values() if item["role"] == "expert"]
    for role, path in listed:
        if str(path) in known:
            continue
        name = "" if role == "base" else expert_name(path)
        if role == "expert":
            name = distinct([*taken, name])[-1]
            taken.append(name)
        number = st.session_state[COUNTER] = st.session_state.get(COUNTER, 0) + 1
        items[f"i{number}"] = {"role": role, "name": name, "path": str(path)}


def _remove(ident: str) -> None:
    st.session_state[ITEMS].pop(ident, None)


def _seeded(key: str, value: Any) -> str:
    if key not in st.session_state:
        st.session_state[key] = value
    return key


def _counted(count: int, what: str) -> str:
    return f"{count or 'No'} {what}{'' if count == 1 else 's'} here"


def _label(entry: Entry) -> str:
    return f"{entry.name} ({entry.size / 2**20:.0f} MiB)" if entry.size else entry.name


def _short(path: str) -> str:
    parts = Path(path).parts
    return str(Path("…", *parts[-3:])) if len(parts) > 4 else path
