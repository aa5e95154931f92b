"""Files, names and settings that somebody brings, kept in the session while the steps come and go."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.store.uploads import FOLDER
from engine.zoo.importing.documents import kind_of_base
from engine.zoo.importing.loose import sort_files
from engine.zoo.importing.roots import Candidates, inside_roots
from engine.zoo.modalities import USUAL, Modality
from engine.zoo.names import distinct, expert_name, known_task, safe_name
from pages.sections.uploader import tray_folder
from pages.shared.people import person
from pages.shared.state import store
from pages.shared.uploads import uploads

WIDGETS = "bring.w."  # keys of widgets whose values outlive them
MEMORY = "bring.memory"  # their values
ITEMS = "bring.items"  # ident → {role, name, path} of models and heads
IMAGES = "bring.images"  # ident → {task, path}
COUNTER = "bring.counter"
PROBLEM = "bring.problem"  # said once


def remember() -> None:
    """Keep what the widgets hold; called first, because a step that is left takes its widgets with it."""
    memory = st.session_state.setdefault(MEMORY, {})
    for key, value in st.session_state.items():
        if isinstance(key, str) and key.startswith(WIDGETS):
            memory[key] = value


def kept(name: str, default: Any = None) -> str:
    """Return the key of a widget, which starts from what it held when it was seen last."""
    key = WIDGETS + name
    if key not in st.session_state:
        st.session_state[key] = st.session_state.get(MEMORY, {}).get(key, default)
    return key


def value(name: str, default: Any = None) -> Any:
    """Return what a widget holds, or held when it was seen last."""
    key = WIDGETS + name
    found = st.session_state.get(key, st.session_state.get(MEMORY, {}).get(key))
    return default if found is None else found


def forget() -> None:
    """Start again without any files."""
    for key in list(st.session_state):
        if isinstance(key, str) and key.startswith("bring."):
            del st.session_state[key]


def models() -> dict[str, dict[str, str]]:
    """Return the models and heads chosen so far, with role and name as corrected: ident → {role, name, path}."""
    items = st.session_state.get(ITEMS, {})
    return {
        ident: {**item, "role": value(f"role.{ident}", item["role"]), "name": value(f"name.{ident}", item["name"])}
        for ident, item in items.items()
    }


def kind() -> Modality:
    """Return the kind of data of the base that is chosen; the usual one where there is none yet."""
    base = document()["base"]
    return kind_of_base(base) if base else USUAL


def images() -> dict[str, dict[str, str]]:
    """Return the images, or texts, chosen so far: ident → {task, path}."""
    items = st.session_state.get(IMAGES, {})
    return {ident: {**item, "task": value(f"task.{ident}", item["task"])} for ident, item in items.items()}


def trained() -> list[str]:
    """Return the names of the experts, which are the names of their tasks."""
    return [safe_name(item["name"]) for item in models().values() if item["role"] == "expert"]


def take_uploaded() -> None:
    """Add what has come into this visit's folder since."""
    folder = tray_folder()
    if folder is None:
        return
    try:
        found = sort_files(folder)
    except (EngineError, OSError) as error:
        st.session_state[PROBLEM] = str(error)
        return
    add_models(found.models, folder)
    add_images(found.data)


def add_models(found: Candidates, top: Path | None = None) -> None:
    """Add models that are not there yet; only one of all files is the base.

    Args:
        found: told apart by their names.
        top: folders above it say nothing about a model.
    """
    items: dict[str, dict[str, str]] = st.session_state.setdefault(ITEMS, {})
    known = {item["path"] for item in items.values()}
    is_foreign = _foreign()
    has_base = any(item["role"] == "base" for item in models().values())
    listed = [("expert" if has_base else "base", found.base)] if found.base else []
    listed += [("expert", path) for path in found.experts] + [("head", path) for path in found.heads]
    for role, path in listed:
        if str(path) in known or is_foreign(path):
            continue
        taken = [item["name"] for item in models().values() if item["role"] == role]
        name = "" if role == "base" else expert_name(path.relative_to(top) if top else path)
        items[_ident()] = {"role": role, "name": distinct([*taken, name])[-1] if name else "", "path": str(path)}


def add_images(paths: Iterable[Path]) -> None:
    """Add images, or texts, that are not there yet, for the task that their name speaks of."""
    items: dict[str, dict[str, str]] = st.session_state.setdefault(IMAGES, {})
    is_foreign = _foreign()
    for path in paths:
        if str(path) not in {item["path"] for item in items.values()} and not is_foreign(path):
            items[_ident()] = {"task": _task_of(path), "path": str(path)}


def drop(ident: str) -> None:
    """Take a model or data out; a file that was uploaded is removed from the server."""
    for name in (ITEMS, IMAGES):
        item = st.session_state.get(name, {}).pop(ident, None)
        folder = tray_folder()
        if item and folder and Path(item["path"]).is_relative_to(folder) and Path(item["path"]).exists():
            uploads().remove(folder.name, Path(item["path"]))


def document() -> dict[str, Any]:
    """Return what is brought as the engine reads it, without name, place and settings."""
    items = models().values()
    return {
        "base": next((item["path"] for item in items if item["role"] == "base"), ""),
        "experts": [{"path": i["path"], "name": safe_name(i["name"])} for i in items if i["role"] == "expert"],
        "heads": [{"path": i["path"], "task": i["name"]} for i in items if i["role"] == "head"],
        "data": {safe_name(item["task"]): item["path"] for item in images().values()},
    }


def title_of_path(path: str) -> str:
    """Return a path as it is worth reading: below the visit's folder, else its last parts."""
    folder = tray_folder()
    if folder and Path(path).is_relative_to(folder):
        return str(Path(path).relative_to(folder))
    parts = Path(path).parts
    return str(Path("…", *parts[-3:])) if len(parts) > 4 else path


def readable(place: str) -> Path:
    """Return a path that somebody typed, with its links resolved, if they may read it.

    Raises:
        ZooError: it lies outside the roots and the store; where people log in, outside the store's zoos and the
            visit's folder.
    """
    own = tray_folder()
    parts = (zoos_folder(), *([own] if own else ())) if person().id else (store().root,)
    found = inside_roots(place, parts)
    return inside_roots(found, roots=()) if _foreign()(found) else found


def zoos_folder() -> Path:
    """Return the folder of the store in which new zoos are made."""
    return store().root / "zoos"


def _foreign() -> Callable[[Path], bool]:
    """Return a test of paths: whether they lie among the files that others brought, where people log in."""
    if not person().id:
        return lambda path: False
    every, own = (store().root / FOLDER).resolve(), tray_folder()
    mine = (own or every / "none").resolve()
    return lambda path: path.resolve().is_relative_to(every) and not path.resolve().is_relative_to(mine)


def _task_of(path: Path) -> str:
    """Return the expert's task that a name speaks of, else the name itself."""
    stem = safe_name(path.stem if path.is_file() else path.name)
    names = trained()
    if stem in names:
        return stem
    known = known_task(stem)
    return next((name for name in names if known and known_task(name) == known), stem)


def _ident() -> str:
    number = st.session_state[COUNTER] = st.session_state.get(COUNTER, 0) + 1
    return f"i{number}"
