"""Thumbnails of the images in a space, prepared off the script thread when that takes a while."""

import base64
import threading
from pathlib import Path

import numpy as np
import streamlit as st

from engine.errors import EngineError
from engine.manifest import Manifest, Task, locate_zoo, read_manifest
from engine.pipeline.zoos.pictures import pictures_at
from engine.report import Report
from engine.zoo.images.thumbnails import SIDE, is_ready, thumbnails
from pages.features.data import Space
from pages.features.scatter import Atlas
from pages.shared.on_demand import latest, recent
from pages.shared.pictures import run_request
from pages.shared.service import ask
from pages.shared.state import store

_ready: dict[str, dict[str, Path | None]] = {}  # atlases made without waiting, and what they were made of
_preparing: dict[str, threading.Thread] = {}
_lock = threading.Lock()


def images_coming(space: Space, report: Report) -> bool:
    """Whether thumbnails that are not at hand are being made."""
    try:
        folder = locate_zoo(report.recipe.zoo)
        manifest = _manifest(str(folder), (folder / "zoo.yaml").stat().st_mtime_ns)
        entries = [manifest.task_table[task] for task in space.tasks]
        known = recent("register")
        encoded = [entry for entry in entries if not (entry.data or "").endswith(".npz")]
        rows = [latest("register", run_request(report, entry), known) for entry in encoded]
    except (EngineError, OSError, KeyError):
        return False
    thread = _preparing.get(str(folder))
    return any(row is not None and row.active for row in rows) or (thread is not None and thread.is_alive())


def inline(picture: bytes) -> str:
    """A PNG as an address that holds it: a file of its own may be gone before a busy browser asks for it."""
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def images_of(space: Space, report: Report) -> Atlas | None:
    """Thumbnails of every image of a space; None where the zoo's data is not at hand, or not yet."""
    key = f"{report.zoo.digest}:{space.key}"
    try:
        folder = locate_zoo(report.recipe.zoo)
        if key in _ready:
            return _atlas(space, str(folder), key, _ready[key])
        manifest = _manifest(str(folder), (folder / "zoo.yaml").stat().st_mtime_ns)
        entries = [manifest.task_table[task] for task in space.tasks]
        cache = store().root / "thumbnails"
        encoded = [entry for entry in entries if not (entry.data or "").endswith(".npz")]
        places = _registered(report, encoded)
        if not all(places.values()):
            return None
        entries = [entry for entry in entries if entry not in encoded]
        if not all(is_ready(folder, entry, cache=cache) for entry in entries):
            _prepare(str(folder), lambda: [thumbnails(folder, entry, [], cache=cache) for entry in entries])
            return None
        atlas = _atlas(space, str(folder), key, places)
        _ready[key] = places
        return atlas
    except (EngineError, OSError, KeyError):
        _ready.pop(key, None)  # what it was made of is gone
        return None


@st.cache_resource(max_entries=8, ttl="6h", show_spinner=False)
def _atlas(_space: Space, folder: str, key: str, _registered: dict[str, Path | None]) -> Atlas:
    """One array of images of equal size, smaller ones centred on grey."""
    manifest = _manifest(folder, (Path(folder) / "zoo.yaml").stat().st_mtime_ns)
    parts = {}
    for number, task in enumerate(_space.tasks):
        rows = _space.index[_space.task == number]
        if place := _registered.get(task):
            parts[number] = pictures_at(place, rows)
        else:
            entry = manifest.task_table[task]
            parts[number] = thumbnails(Path(folder), entry, rows, cache=store().root / "thumbnails")
    side = max((part.shape[1] for part in parts.values()), default=SIDE)
    images = np.full((len(_space), side, side, 3), 127, np.uint8)
    for number, part in parts.items():
        gap = (side - part.shape[1]) // 2
        images[_space.task == number, gap : gap + part.shape[1], gap : gap + part.shape[1]] = part
    return Atlas(key, images)


def _registered(report: Report, tasks: list[Task]) -> dict[str, Path | None]:
    """What the engine left of the pictures that a run looked at, by task; asked for where nobody has."""
    known = recent("register") if tasks else []
    found: dict[str, Path | None] = {}
    for task in tasks:
        request = run_request(report, task)
        row = latest("register", request, known)
        if row is None:
            ask("register", request, f"Pictures of {task.label}")
        finished = row is not None and row.state == "finished"
        found[task.name] = store().find(row.result, checksums=False) if finished else None
    return found


@st.cache_resource(max_entries=16, show_spinner=False)
def _manifest(folder: str, modified: int) -> Manifest:
    return read_manifest(Path(folder))


def _prepare(name: str, work: object) -> None:
    """Make thumbnails in a thread of its own, one per zoo at a time; they are there on a later rerun."""
    with _lock:
        running = _preparing.get(name)
        if running is None or not running.is_alive():
            _preparing[name] = threading.Thread(target=work, name="thumbnails", daemon=True)
            _preparing[name].start()
