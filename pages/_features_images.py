"""Thumbnails of the images in a space, prepared off the script thread when that takes a while."""

import threading
from pathlib import Path

import numpy as np
import streamlit as st

from engine.errors import EngineError
from engine.manifest import Manifest, locate_zoo, read_manifest
from engine.report import Report
from engine.zoo.thumbnails import SIDE, is_ready, thumbnails
from pages._features_data import Space
from pages._scatter import Atlas
from pages._state import store

_ready: set[str] = set()  # atlases made without waiting; their files need no second look
_preparing: dict[str, threading.Thread] = {}
_lock = threading.Lock()


def images_of(space: Space, report: Report) -> Atlas | None:
    """Thumbnails of every image of a space; None where the zoo's data is not at hand, or not yet."""
    try:
        folder = locate_zoo(report.recipe.zoo)
        key = f"{report.zoo.digest}:{space.key}"
        if key in _ready:
            return _atlas(space, str(folder), key)
        manifest = _manifest(str(folder), (folder / "zoo.yaml").stat().st_mtime_ns)
        entries = [manifest.task_table[task] for task in space.tasks]
        cache = store().root / "thumbnails"
        if not all(is_ready(folder, entry, cache=cache) for entry in entries):
            _prepare(str(folder), lambda: [thumbnails(folder, entry, [], cache=cache) for entry in entries])
            return None
        atlas = _atlas(space, str(folder), key)
        _ready.add(key)
        return atlas
    except (EngineError, OSError, KeyError):
        return None


@st.cache_resource(max_entries=8, ttl="6h", show_spinner=False)
def _atlas(_space: Space, folder: str, key: str) -> Atlas:
    """One array of images of equal size, smaller ones centred on grey."""
    manifest = _manifest(folder, (Path(folder) / "zoo.yaml").stat().st_mtime_ns)
    parts = {
        number: thumbnails(
            Path(folder),
            manifest.task_table[task],
            _space.index[_space.task == number],
            cache=store().root / "thumbnails",
        )
        for number, task in enumerate(_space.tasks)
    }
    side = max((part.shape[1] for part in parts.values()), default=SIDE)
    images = np.full((len(_space), side, side, 3), 127, np.uint8)
    for number, part in parts.items():
        gap = (side - part.shape[1]) // 2
        images[_space.task == number, gap : gap + part.shape[1], gap : gap + part.shape[1]] = part
    return Atlas(key, images)


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
