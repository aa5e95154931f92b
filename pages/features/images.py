"""Thumbnails of the images in a space: made at once where that is quick, else ahead of a later rerun."""

import base64
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import streamlit as st

from engine.errors import EngineError
from engine.manifest import Task, locate_zoo
from engine.pipeline.zoos.pictures import pictures_at
from engine.report import Report
from engine.zoo.images.thumbnails import SIDE, is_open, is_ready, png, thumbnails
from pages.features.scatter import Atlas, Sentences
from pages.features.texts import texts_of
from pages.shared.chrome import plain
from pages.shared.nouns import kind_of
from pages.shared.on_demand import latest, recent
from pages.shared.pictures import run_request
from pages.shared.service import ask_unasked
from pages.shared.state import store
from pages.shared.zoos import zoo_manifest

KEPT = 8  # atlases held in memory
ZOOM_TO = 160  # px that small images are enlarged to, pixel by pixel
Places = Mapping[str, Path | None]  # task → folder of its pictures; None while they are being made

logger = logging.getLogger(__name__)


class ImageRows(Protocol):
    """Images of some tasks: ``task`` (n,) indexes ``tasks``, ``index`` (n,) is the row in a task's test array."""

    key: str  # names the images
    tasks: tuple[str, ...]
    task: np.ndarray
    index: np.ndarray

    def __len__(self) -> int: ...


class Atlases:
    """Pictures of images by what they are of: the last few atlases, and a thread that prepares thumbnails.

    The thread makes thumbnails of one zoo after the other and ends when nothing is left to be made.

    Args:
        cache: folder in which thumbnails are kept for all processes.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._kept: OrderedDict[str, Atlas] = OrderedDict()
        self._wanted: OrderedDict[Path, Sequence[Task]] = OrderedDict()  # zoo's folder → tasks; the first is at work
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def find(self, images: ImageRows, report: Report) -> Atlas | None:
        """Return the pictures of images; None where they are not at hand, or not yet."""
        key = f"{report.zoo.digest}:{images.key}"
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        try:
            atlas = self._make(images, report, key)
        except (EngineError, OSError):
            return None  # the zoo, or a file that it names, is not here
        if atlas is not None:
            with self._lock:
                self._kept[key] = atlas
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return atlas

    def are_coming(self, images: ImageRows, report: Report) -> bool:
        """Return whether pictures that are not at hand are being made, here or by the engine."""
        try:
            folder, tasks = _tasks(images, report)
            known = recent("register")
            rows = [latest("register", run_request(report, task), known) for task in tasks if not is_open(folder, task)]
        except (EngineError, OSError):
            return False
        with self._lock:
            return folder in self._wanted or any(row is not None and row.active for row in rows)

    def wait(self) -> None:
        """Wait until nothing is being prepared."""
        if self._thread is not None:
            self._thread.join()

    def _make(self, images: ImageRows, report: Report, key: str) -> Atlas | None:
        folder, tasks = _tasks(images, report)
        if len(tasks) < len(images.tasks):
            return None
        places = _registered(report, [task for task in tasks if not is_open(folder, task)])
        if not all(places.values()):
            return None
        arrays = [task for task in tasks if is_open(folder, task)]
        if not all(is_ready(folder, task, cache=self._cache) for task in arrays):
            self._prepare(folder, arrays)
            return None
        return Atlas(key, _sheet(images, {task.name: partial(self._pictures, folder, task, places) for task in tasks}))

    def _pictures(self, folder: Path, task: Task, places: Places, rows: np.ndarray) -> np.ndarray:
        place = places.get(task.name)
        return pictures_at(place, rows) if place else thumbnails(folder, task, rows, cache=self._cache)

    def _prepare(self, folder: Path, tasks: Sequence[Task]) -> None:
        with self._lock:
            self._wanted.setdefault(folder, tasks)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="thumbnails", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._thread = None
                    return
                folder, tasks = next(iter(self._wanted.items()))
            try:
                for task in tasks:
                    thumbnails(folder, task, [], cache=self._cache)
            except (EngineError, OSError) as error:
                logger.warning("No thumbnails of %s: %s", folder.name, error)
            finally:
                with self._lock:
                    self._wanted.pop(folder)


def images_of(images: ImageRows, report: Report) -> Atlas | Sentences | None:
    """Return thumbnails of images, or texts; None where the zoo's data is not at hand, or not yet."""
    if not is_seen(report):
        return texts_of(images, report)
    return atlases().find(images, report)


def images_coming(images: ImageRows, report: Report) -> bool:
    """Return whether thumbnails that are not at hand are being made; texts need not be."""
    if not is_seen(report):
        return False
    return atlases().are_coming(images, report)


def show_sample(found: Atlas | Sentences, row: int, name: str, *, enlarged: int = ZOOM_TO, width: int = 96) -> None:
    """Draw one image or one text.

    Args:
        found: pictures or texts.
        row: of it.
        name: the true class.
        enlarged: px that small images are enlarged to, pixel by pixel.
        width: px at which an image is drawn.
    """
    if isinstance(found, Sentences):
        st.write(plain(found.texts[row]))
        return
    image = found.images[row]
    st.image(inline(png(image, max(1, enlarged // image.shape[0]))), width=width, alt=f"An image of {name}")


def is_seen(report: Report) -> bool:
    """Return whether a run's samples are pictures."""
    return kind_of(report).shown == "picture"


def inline(picture: bytes) -> str:
    """Return a PNG as an address that holds it: a file may be gone before a busy browser asks for it."""
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def atlases() -> Atlases:
    """Return the atlases of this app's store."""
    return _atlases(str(store().root / "thumbnails"))


@st.cache_resource(max_entries=4, show_spinner=False)
def _atlases(cache: str) -> Atlases:
    return Atlases(Path(cache))


def _tasks(images: ImageRows, report: Report) -> tuple[Path, list[Task]]:
    """Return a run's zoo and those of its tasks that the manifest still has.

    Raises:
        ZooError: the zoo is gone.
    """
    folder, table = locate_zoo(report.recipe.zoo), zoo_manifest(report.recipe.zoo).task_table
    return folder, [table[name] for name in images.tasks if name in table]


def _sheet(images: ImageRows, pictures: Mapping[str, partial[np.ndarray]]) -> np.ndarray:
    """Return one array of images of equal size, smaller ones centred on grey: uint8 (n, side, side, 3)."""
    parts = {n: pictures[task](images.index[images.task == n]) for n, task in enumerate(images.tasks)}
    side = max((part.shape[1] for part in parts.values()), default=SIDE)
    sheet = np.full((len(images), side, side, 3), 127, np.uint8)
    for number, part in parts.items():
        gap = (side - part.shape[1]) // 2
        sheet[images.task == number, gap : gap + part.shape[1], gap : gap + part.shape[1]] = part
    return sheet


def _registered(report: Report, tasks: Sequence[Task]) -> Places:
    """Return what the engine left of the pictures that a run looked at; asks for them where no row did."""
    known = recent("register") if tasks else []
    found: dict[str, Path | None] = {}
    for task in tasks:
        request = run_request(report, task)
        row = latest("register", request, known)
        if row is None:
            ask_unasked("register", request, f"Pictures of {task.label}")
        finished = row is not None and row.state == "finished"
        found[task.name] = store().find(row.result, checksums=False) if finished else None
    return found
