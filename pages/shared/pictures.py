"""Pictures of a task's images: from the file itself where it is small, else from what the engine looked at."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import streamlit as st

from engine.errors import EngineError
from engine.manifest import Manifest, Task, locate_zoo, manifest_file
from engine.pipeline.zoos.pictures import COUNTS, PER_CLASS, SEED
from engine.report import Report
from engine.store import Run
from engine.zoo.images.data import LABELLED, SPLITS, open_task
from engine.zoo.images.thumbnails import is_open, is_ready, thumbnails
from pages.shared.on_demand import latest, on_demand, recent, refresh_when
from pages.shared.service import ask, told_when_refused
from pages.shared.state import store

AWAY = ("hf:", "local:")  # data whose files are elsewhere
LOOK, LOOK_ICON = "Look at the images", ":material/image_search:"


@dataclass(frozen=True)
class Gallery:
    """Some images of a task, by split."""

    pictures: dict[str, np.ndarray]  # uint8 (n, side, side, 3)
    labels: dict[str, np.ndarray]  # (n,); -1 where an image has none
    lengths: dict[str, int]  # images there are
    counts: dict[str, list[int]]  # by class, of splits with labels
    notes: tuple[str, ...] = ()
    sampled: bool = False  # whether only some images of each class were looked at
    key: str = ""


def gallery_of(zoo: str, manifest: Manifest, task: Task, key: str) -> Gallery | None:
    """Draw a task's pictures, or a button and progress in their place."""
    if small(zoo, task):
        folder = locate_zoo(zoo)
        modified = (folder / task.data).stat().st_mtime_ns
        return _direct(str(folder), manifest, task.name, f"{modified}:{task.classes}")
    folder = on_demand(
        None, "register", request_of(zoo, task), key=key, name=f"Images of {task.label}", label=LOOK, icon=LOOK_ICON
    )
    return None if folder is None else _registered(str(folder))


def strip_of(
    zoo: str, manifest: Manifest, task: Task, count: int, report: Report | None = None, rows: Sequence[Run] = ()
) -> np.ndarray | None:
    """Return a few test images of as many classes; None where they are not at hand.

    Args:
        zoo: name or path.
        manifest: its manifest.
        task: the task.
        count: how many images.
        report: of a run whose pictures serve as well.
        rows: of the run table that speak of pictures.
    """
    try:
        folder = locate_zoo(zoo)
        if is_ready(folder, task, cache=store().root / "thumbnails"):
            stamp = f"{(folder / task.data).stat().st_mtime_ns}:{task.classes}"
            return _few(str(folder), manifest, task.name, stamp, count)
        place = _finished(latest("register", request_of(zoo, task), rows))
        if place is None and report is not None:
            place = _finished(latest("register", run_request(report, task), rows))
        if place is None:
            return None
        found = _registered(str(place))
    except (EngineError, OSError):
        return None
    return np.asarray(found.pictures["test"][_one_a_class(found.labels["test"], count)])


def _one_a_class(labels: np.ndarray, count: int) -> np.ndarray:
    """Return rows of images of different classes, spread over all of them; at most ``count``."""
    _, first = np.unique(labels, return_index=True)
    return np.sort(first[np.linspace(0, len(first) - 1, min(count, len(first))).astype(int)])


def offer_pictures(zoo: str, tasks: Sequence[Task], key: str) -> None:
    """Offer to have the engine look at images that have no pictures yet, and draw its progress."""
    here = locate_zoo(zoo).is_dir()
    tasks = [task for task in tasks if here and not (task.data or "hf:").startswith(AWAY)]
    known = recent("register")
    rows = {task.name: latest("register", request_of(zoo, task), known) for task in tasks if not small(zoo, task)}
    wanted = [task for task in tasks if task.name in rows and not (rows[task.name] and rows[task.name].active)]
    wanted = [task for task in wanted if _finished(rows[task.name]) is None]
    if any(row is not None and row.active for row in rows.values()):
        st.caption(":material/hourglass_top: The engine is looking at images; they appear here.")
        refresh_when(lambda: not any(row and row.active for row in _again(rows)))
    elif wanted:
        st.button(LOOK, key=f"{key}.look", icon=LOOK_ICON, on_click=_ask_all, args=(zoo, wanted))


def run_request(report: Report, task: Task) -> dict[str, object]:
    """Return the request for pictures of the images that a run looked at."""
    recipe = report.recipe
    return {**request_of(recipe.zoo, task), "per_class": None, "probe": recipe.probe.model_dump(mode="json")}


def _again(rows: dict[str, Run | None]) -> list[Run | None]:
    return [store().runs.find(row.id) for row in rows.values() if row is not None]


@told_when_refused
def _ask_all(zoo: str, tasks: Sequence[Task]) -> None:
    for task in tasks:
        ask("register", request_of(zoo, task), f"Images of {task.label}")


def _finished(row: Run | None) -> Path | None:
    """Return the folder that a finished row left, where it is still there."""
    return store().find(row.result, checksums=False) if row is not None and row.state == "finished" else None


def request_of(zoo: str, task: Task) -> dict[str, object]:
    """Return the request for a task's pictures; the stamp makes a changed file another request."""
    folder = locate_zoo(zoo)
    stamp = [manifest_file(folder).stat().st_mtime_ns]
    data = manifest_file(folder).parent / (task.data or "")
    if data.exists():
        stamp.append(data.stat().st_mtime_ns)
    return {"zoo": zoo, "task": task.name, "per_class": PER_CLASS, "seed": SEED, "stamp": stamp}


def small(zoo: str, task: Task) -> bool:
    """Return whether the page may open the file itself."""
    folder = locate_zoo(zoo)
    if not is_open(folder, task):
        return False
    cache = store().root / "thumbnails"
    data = open_task(folder, task)
    return all(is_ready(folder, task, split=split, cache=cache) for split in SPLITS if data.has(split))


@st.cache_resource(max_entries=128, show_spinner=False)
def _few(folder: str, _manifest: Manifest, name: str, stamp: str, count: int) -> np.ndarray:
    task = _manifest.task_table[name]
    rows = _one_a_class(open_task(Path(folder), task).labels("test"), count)
    return thumbnails(Path(folder), task, rows, cache=store().root / "thumbnails")


@st.cache_resource(max_entries=32, show_spinner=False)
def _direct(folder: str, _manifest: Manifest, name: str, stamp: str) -> Gallery:
    task = _manifest.task_table[name]
    data = open_task(Path(folder), task)
    cache = store().root / "thumbnails"
    splits = [split for split in SPLITS if data.has(split)]
    labels = {s: data.labels(s) if s in LABELLED else np.full(data.lengths[s], -1) for s in splits}
    counts = {s: np.bincount(labels[s], minlength=len(task.classes)).tolist() for s in splits if s in LABELLED}
    pictures = {split: thumbnails(Path(folder), task, split=split, cache=cache) for split in splits}
    return Gallery(pictures, labels, dict(data.lengths), counts, data.notes, key=f"{folder}:{name}:{stamp}")


@st.cache_resource(max_entries=16, show_spinner=False)
def _registered(folder: str) -> Gallery:
    place = Path(folder)
    document = json.loads((place / COUNTS).read_text("utf-8"))
    splits = [split for split in SPLITS if split in document["counts"]]
    return Gallery(
        {split: np.load(place / f"{split}.pictures.npy", mmap_mode="r") for split in splits},
        {split: np.load(place / f"{split}.labels.npy") for split in splits},
        document["lengths"],
        {split: document["counts"][split] for split in splits if split in LABELLED},
        tuple(document["notes"]),
        sampled=True,
        key=folder,
    )
