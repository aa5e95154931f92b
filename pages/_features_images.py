"""Thumbnails of the images in a space, prepared off the script thread when that takes a while."""

import threading
from pathlib import Path

import numpy as np
import streamlit as st

from engine.errors import EngineError
from engine.manifest import Manifest, Task, locate_zoo, read_manifest
from engine.pipeline.picturing import pictures_at
from engine.report import Report
from engine.zoo.thumbnails import SIDE, is_ready, thumbnails
from pages._features_data import Space
from pages._on_demand import ask, latest
from pages._scatter import Atlas
from pages._state import store
from pages._zoo_images import request_of

_ready: set[str] = set()  # atlases made without waiting; their files need no second look
_preparing: dict[str, threading.Thread] = {}
_lock = threading.Lock()


def images_of(space: Space, report: Report) -> Atlas | None:
    """Thumbnails of every image of a space; None where the zoo's data is not at hand, or not yet."""
    try:
        folder = locate_zoo(report.recipe.zoo)
        key = f"{report.zoo.digest}:{space.key}"
        if key in _ready:
            return _atlas(space, str(folder), key, {})
        manifest = _manifest(str(folder), (folder / "zoo.yaml").stat().st_mtime_ns)
        entries = [manifest.task_table[task] for task in space.tasks]
        cache = store().root / "thumbnails"
        encoded = [entry for entry in entries if not (entry.data or "").endswith(".npz")]
        if not all([_registered(report, entry) for entry in encoded]):
            return None
        entries = [entry for entry in entries if entry not in encoded]
        if not all(is_ready(folder, entry, cache=cache) for entry in entries):
            _prepare(str(folder), lambda: [thumbnails(folder, entry, [], cache=cache) for entry in entries])
            return None
        atlas = _atlas(space, str(folder), key, {e.name: _registered(report, e) for e in encoded})
        _ready.add(key)
        return atlas
    except (EngineError, OSError, KeyError):
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


def _registered(report: Report, task: Task) -> Path | None:
    """What the engine left of the pictures that a run looked at; asked for where nobody has."""
    recipe = report.recipe
    request = {**request_of(recipe.zoo, task), "per_class": None, "probe": recipe.probe.model_dump(mode="json")}
    row = latest("register", request)
    if row is None:
        ask("register", request, f"Pictures of {task.label}")
    if row is None or row.state != "finished":
        return None
    return store().find(row.result, checksums=False)


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
