"""A card per expert: some of its images, its classes, and what merging does to its task."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import streamlit as st
from PIL import Image

from engine.errors import DataError, EngineError
from engine.report import Report
from engine.rounding import rounded
from engine.store import Run
from engine.zoo.images.data import open_task
from engine.zoo.images.thumbnails import strip
from pages.features.images import is_seen
from pages.features.texts import few_texts
from pages.shared.causes import address, can_diagnose
from pages.shared.chrome import percent, plain
from pages.shared.nouns import kind_of
from pages.shared.on_demand import recent
from pages.shared.pictures import strip_of
from pages.shared.selection import DIAGNOSE
from pages.shared.state import RunView
from pages.shared.zoos import zoo_folder, zoo_manifest

IMAGES = 6
TEXTS = 3
SIDE = 64  # px of a thumbnail, drawn at half of it on dense screens
CLASSES_NAMED = 5
NOTICEABLE = 0.5  # points
MAX_BYTES = 64 * 2**20  # larger data is not opened on the page for a strip of thumbnails


def expert_cards(run: RunView) -> None:
    """Draw a card for every in-domain task of a run."""
    report = run.report
    if description := _description(report):
        st.caption(plain(description))
    looked_at = recent("register")
    with st.grid("auto", min_column_width=230, gap="small"):
        for task in report.tasks_of("in"):
            with st.container(border=True, height="stretch", gap="xsmall"):
                _card(report, task, looked_at)
                _why(run, task)


def _description(report: Report) -> str:
    """Return the zoo's own description: where its images come from and how its base was made."""
    try:
        return zoo_manifest(report.recipe.zoo).description
    except EngineError:
        return ""


def _card(report: Report, task: str, looked_at: Sequence[Run]) -> None:
    summary = report.tasks[task]
    st.markdown(f"**{plain(summary.title or task)}**")
    strip = _strip(report, task, looked_at) if is_seen(report) else None
    if lines := [] if is_seen(report) else _lines(report, task):
        st.markdown("\n".join(f"- {plain(line)}" for line in lines))
    if strip is not None:
        st.image(strip, width="stretch", alt=f"{IMAGES} images of {summary.title or task}")
    names = ", ".join(summary.classes[:CLASSES_NAMED])
    more = len(summary.classes) - CLASSES_NAMED
    st.caption(plain(f"{len(summary.classes)} classes: {names}" + (f" and {more} more" if more > 0 else "")))
    values = {state: report.accuracy.get(state, {}).get(task) for state in ("expert", "merged")}
    st.markdown(f":small[Expert **{percent(values['expert'])}** · merged :orange[**{percent(values['merged'])}**]]")


def _why(run: RunView, task: str) -> None:
    """Draw the way to the diagnosis of a task that loses or gains by merging."""
    if not can_diagnose(run.report, task):
        return
    change = run.report.accuracy["merged"][task] - run.report.accuracy["expert"][task]
    if abs(change) >= NOTICEABLE:
        said = f"Why {rounded(change, signed=True)} points?".replace("-", "−")
        st.page_link(DIAGNOSE, label=said, icon=":material/troubleshoot:", query_params=address(run, task))


def _lines(report: Report, task: str) -> list[str]:
    """Return a few test texts of as many classes; none where the data is not at hand."""
    try:
        folder, entry = zoo_folder(report.recipe.zoo), zoo_manifest(report.recipe.zoo).task_table.get(task)
        return [] if entry is None or not entry.data else few_texts(folder, kind_of(report), entry, TEXTS)
    except EngineError:
        return []


def _strip(report: Report, task: str, looked_at: Sequence[Run]) -> bytes | None:
    """Return a row of test images as PNG; None where the data is not at hand."""
    try:
        folder, manifest = zoo_folder(report.recipe.zoo), zoo_manifest(report.recipe.zoo)
        entry = manifest.task_table.get(task)
        if entry is None or not entry.data:
            return None
        path = folder / entry.data
        found = path.stat() if path.exists() else None  # of a folder, as far as it tells
        if found and path.suffix == ".npz" and found.st_size <= MAX_BYTES:
            return _thumbnails(str(folder), task, found.st_mtime_ns)
        given = (report.recipe.zoo, manifest, entry, IMAGES, report, looked_at)
        if found is not None:
            stamp = (found.st_mtime_ns, found.st_size, *entry.classes)
            return _row_of_file(str(path), stamp, lambda: strip_of(*given))
        tiles = strip_of(*given)
        return None if tiles is None else _row(tiles)
    except EngineError:
        return None


@st.cache_data(max_entries=256, show_spinner=False)
def _row(tiles: np.ndarray) -> bytes:
    return strip(tiles)


@st.cache_data(max_entries=256, show_spinner=False)
def _row_of_file(path: str, stamp: tuple[object, ...], _tiles: Callable[[], np.ndarray | None]) -> bytes:
    """Return a row of images of a file or folder; it is kept, whoever looks at it."""
    tiles = _tiles()
    if tiles is None:
        raise DataError("These images are not at hand.")  # which is not kept
    return strip(tiles)


@st.cache_data(max_entries=128, show_spinner=False)
def _thumbnails(folder: str, task: str, modified: int) -> bytes:
    manifest = zoo_manifest(folder)
    data = open_task(Path(folder), manifest.task_table[task])
    labels = data.labels("test")
    classes = np.unique(labels)
    wanted = classes[np.linspace(0, len(classes) - 1, IMAGES).astype(int)]
    rows = [
        int(np.flatnonzero(labels == label)[number % 3])
        if (labels == label).sum() > 3
        else int(np.flatnonzero(labels == label)[0])
        for number, label in enumerate(wanted)
    ]
    tiles = [
        Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.NEAREST) for image in data.samples("test", rows)
    ]
    sheet = Image.new("RGBA", (IMAGES * SIDE + (IMAGES - 1) * 4, SIDE))
    for number, tile in enumerate(tiles):
        sheet.paste(tile, (number * (SIDE + 4), 0))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()
