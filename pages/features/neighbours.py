"""The images most like one image in the feature space of every state: searched for, or looked up for an example."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import streamlit as st

from engine.analysis.neighbours import nearest_neighbours
from engine.figures.palette import state_title
from engine.zoo.images.thumbnails import strip
from pages.features.data import Space, class_name
from pages.features.images import inline
from pages.features.scatter import Atlas, Sentences
from pages.shared.chrome import plain
from pages.shared.nouns import called, kind_of
from pages.shared.state import RunView, samples

FEATURES, KEPT = "features.safetensors", "neighbours.parquet"  # a run has all features, an example what is nearest
COUNT = 8
SIDE = 80  # px that small images are enlarged to, pixel by pixel
Near = tuple[list[int], np.ndarray]  # rows of the space, nearest first, and their distances


def has_neighbours(run: RunView) -> bool:
    """Return whether the run, or the example, has what neighbours are read from."""
    return any((run.folder / name).is_file() for name in (FEATURES, KEPT))


def neighbours(run: RunView, space: Space, row: int, states: Sequence[str], atlas: Atlas | Sentences) -> None:
    """Draw the images most like one image, a line for every state shown."""
    task, kind = space.tasks[space.task[row]], kind_of(run.report)
    found, among = searched(run, space, row, states) or looked_up(run, space, row, states) or ({}, 0)
    if not found:
        if has_neighbours(run):
            said = "Neighbours of this image are not kept with the example; run its recipe to have them for all."
            st.caption(called(said, kind))
        return
    st.markdown(f"**Nearest in feature space** (cosine distance, among {among} {kind.many} of this task)")
    for state, (rows, away) in found.items():
        same = int((space.label[rows] == space.label[row]).sum())
        names = ", ".join(class_name(run.report, task, int(space.label[near])) for near in rows)
        st.caption(
            f"{plain(state_title(state, run.report))}: {same} of {len(rows)} are of the same class, "
            f"distances {away[0]:.3f} to {away[-1]:.3f}"
        )
        if isinstance(atlas, Sentences):
            classes = [class_name(run.report, task, int(space.label[near])) for near in rows]
            lines = [
                f"- {plain(atlas.texts[near])} :gray[({plain(name)})]" for near, name in zip(rows, classes, strict=True)
            ]
            st.markdown("\n".join(lines))
            continue
        zoom = max(1, SIDE // atlas.images.shape[1])
        st.image(inline(strip(atlas.images[rows], gap=3, zoom=zoom)), width="content", alt=names)


def searched(run: RunView, space: Space, row: int, states: Sequence[str]) -> tuple[dict[str, Near], int] | None:
    """Return, by state, the nearest of the images shown in the run's features; None where the run keeps none."""
    path = run.folder / FEATURES
    if not path.is_file() or (space.task == space.task[row]).sum() < 2:
        return None
    from safetensors import safe_open

    task = space.tasks[space.task[row]]
    table = samples(run)
    first = table[(table["task"] == task) & (table["state"] == "pretrained")]["index"].to_numpy()
    place = {int(index): position for position, index in enumerate(first)}
    own = np.flatnonzero(space.task == space.task[row])
    wanted = [place[int(index)] for index in space.index[own]]
    found: dict[str, Near] = {}
    with safe_open(path, "numpy") as file:
        there = set(file.keys())
        for state in states:
            if (name := f"{state}/{task}/evaluate") in there:
                features = file.get_tensor(name)[wanted]
                near, away = nearest_neighbours(features, int(np.flatnonzero(own == row)[0]), COUNT)
                found[state] = own[near].tolist(), away
    return found, len(own) - 1


def looked_up(run: RunView, space: Space, row: int, states: Sequence[str]) -> tuple[dict[str, Near], int] | None:
    """Return the same of an example, as far as it was kept and its images are shown; None where nothing was."""
    path = run.folder / KEPT
    if not path.is_file():
        return None
    task = space.tasks[space.task[row]]
    table = _kept(str(path), run.stamp)
    table = table[table["task"] == task]
    own = np.flatnonzero(space.task == space.task[row])
    place = {int(index): int(at) for index, at in zip(space.index[own], own, strict=True)}
    found: dict[str, Near] = {}
    for state in states:
        lines = table[(table["state"] == state) & (table["index"] == space.index[row])].sort_values("rank")
        if len(lines) and set(lines["neighbour"]) <= set(place):
            found[state] = [place[int(index)] for index in lines["neighbour"]], lines["distance"].to_numpy(dtype=float)
    return found, table["index"].nunique() - 1


@st.cache_resource(max_entries=4, ttl="6h", show_spinner=False)
def _kept(path: str, stamp: str) -> pd.DataFrame:
    return pd.read_parquet(path)
