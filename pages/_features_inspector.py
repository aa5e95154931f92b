"""What is selected in the feature view: images, what every model says of them, how far correction moved them."""

from collections.abc import Sequence

import numpy as np
import streamlit as st

from engine.analysis.neighbours import nearest_neighbours
from engine.figures.palette import state_title
from engine.zoo.thumbnails import png, strip
from pages._chrome import plain
from pages._features_data import Space, class_name, picks_of, selection_table
from pages._scatter import Atlas
from pages._state import RunView

PAGE = 12  # images shown at once
ZOOM_TO = 160  # px that small images are enlarged to, pixel by pixel
NEIGHBOURS = 8
ORDERS = {"shift": "Largest shift first", "margin": "Smallest margin first", "row": "In order of the data"}


def pick_buttons(space: Space, corrected: str | None, visible: np.ndarray, key: str) -> None:
    """Buttons that select images by what happened to them; the selection is handed over through the session."""
    picks = {name: rows[visible[rows]] for name, rows in picks_of(space, corrected).items()}
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption("Select", width="content")
        for name, rows in picks.items():
            if len(rows):
                st.button(f"{name} ({len(rows)})", key=f"{key}.pick.{name}", type="tertiary", on_click=_pick,
                          args=(f"{key}.picked", tuple(rows.tolist())))  # fmt: skip


def inspector(
    run: RunView, space: Space, rows: Sequence[int], states: Sequence[str], atlas: Atlas | None, key: str
) -> None:
    """Images and table of the selected rows.

    Args:
        run: the run shown.
        space: the images.
        rows: which are selected.
        states: of the panels, in order.
        atlas: thumbnails of all rows of the space, if there are any.
        key: prefix of the widgets.
    """
    if not rows:
        st.caption("Nothing is selected. Drag a line around points, click one, or use a button above.")
        return
    base = "merged" if "merged" in states else states[0]
    pages, page = -(-len(rows) // PAGE), 1
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.subheader(f"{len(rows):,} image{'s' if len(rows) != 1 else ''} selected", anchor=False, width="stretch")
        order = "row"
        if len(rows) > 1:
            order = st.selectbox("Order", list(ORDERS), format_func=ORDERS.get, key=f"{key}.order", width=220)
        if pages > 1:
            page = st.number_input(f"Page of {pages}", 1, pages, key=f"{key}.page.{pages}", width=140)
    ordered = _ordered(space, np.asarray(rows, dtype=int), order, base)
    with st.grid("auto", min_column_width=170, gap="small"):
        for row in ordered[(page - 1) * PAGE : page * PAGE].tolist():
            with st.container(border=True, height="stretch", gap="xsmall"):
                _card(run, space, row, states, atlas)
    if len(ordered) == 1 and atlas is not None:
        _neighbours(run, space, int(ordered[0]), states, atlas)
    _table(run, space, ordered, states, key)


def _card(run: RunView, space: Space, row: int, states: Sequence[str], atlas: Atlas | None) -> None:
    """One image: true class, what every state says, and its distance to the expert's feature before and after."""
    task = space.tasks[space.task[row]]
    truth = class_name(run.report, task, int(space.label[row]))
    if atlas is not None:
        image = atlas.images[row]
        st.image(
            png(image, max(1, ZOOM_TO // image.shape[0])), width=96, output_format="PNG", alt=f"An image of {truth}"
        )
    st.markdown(f"**{plain(truth)}**")
    lines = []
    for state in states:
        number = int(space.prediction[state][row])
        mark = ":green[:material/check:]" if number == space.label[row] else ":red[:material/close:]"
        chance = space.numbers["probability"][state][row]
        said = (
            f"{plain(class_name(run.report, task, number))}, {100 * chance:.0f}\u00a0%"
            if number >= 0
            else "no prediction"
        )
        lines.append(f"{mark} {plain(state_title(state, run.report))}: {said}")
    shifts = [
        f"{space.numbers['shift'][state][row]:.1f}"
        for state in states
        if state != "expert" and np.isfinite(space.numbers["shift"][state][row])
    ]
    if shifts:
        lines.append(f"Distance to the expert's feature: {' → '.join(shifts)}")
    st.caption("  \n".join(lines))


def _neighbours(run: RunView, space: Space, row: int, states: Sequence[str], atlas: Atlas) -> None:
    """The images most like one image, in the feature space of every state shown."""
    found = _features(run, space, row, states)
    if not found:
        return
    task = space.tasks[space.task[row]]
    st.markdown("**Nearest in feature space** (cosine distance, among the images of this task that are shown)")
    own = np.flatnonzero(space.task == space.task[row])
    for state, features in found.items():
        near, away = nearest_neighbours(features, int(np.flatnonzero(own == row)[0]), NEIGHBOURS)
        rows = own[near]
        same = int((space.label[rows] == space.label[row]).sum())
        names = ", ".join(class_name(run.report, task, int(space.label[n])) for n in rows)
        st.caption(
            f"{plain(state_title(state, run.report))}: {same} of {len(rows)} are of the same class, "
            f"distances {away[0]:.3f} to {away[-1]:.3f}"
        )
        zoom = max(1, ZOOM_TO // 2 // atlas.images.shape[1])
        st.image(strip(atlas.images[rows], gap=3, zoom=zoom), width="content", output_format="PNG", alt=names)


def _features(run: RunView, space: Space, row: int, states: Sequence[str]) -> dict[str, np.ndarray]:
    """Features of the shown images of one task by state; empty where the run keeps none, as examples do."""
    path = run.folder / "features.safetensors"
    if not path.is_file():
        return {}
    from safetensors import safe_open

    from pages._state import samples

    task = space.tasks[space.task[row]]
    table = samples(run)
    first = table[(table["task"] == task) & (table["state"] == "pretrained")]["index"].to_numpy()
    place = {int(index): position for position, index in enumerate(first)}
    wanted = [place[int(index)] for index in space.index[space.task == space.task[row]]]
    with safe_open(path, "numpy") as file:
        names = {state: f"{state}/{task}/evaluate" for state in states}
        there = set(file.keys())
        return {state: file.get_tensor(name)[wanted] for state, name in names.items() if name in there}


def _table(run: RunView, space: Space, rows: np.ndarray, states: Sequence[str], key: str) -> None:
    table = selection_table(space, rows, states, run.report)
    with st.expander("Table and download", icon=":material/table_rows:"):
        st.dataframe(table, width="stretch", hide_index=True, key=f"{key}.table")
        st.download_button(
            "Download CSV", lambda: table.to_csv(index=False).encode(), file_name=f"{run.id}-selection.csv",
            mime="text/csv", key=f"{key}.csv", on_click="ignore",
        )  # fmt: skip


def _ordered(space: Space, rows: np.ndarray, order: str, base: str) -> np.ndarray:
    if order == "row":
        return rows
    values = space.numbers[order][base][rows]
    key = np.nan_to_num(-values if order == "shift" else values, nan=np.inf)
    return rows[np.argsort(key, kind="stable")]


def _pick(name: str, rows: tuple[int, ...]) -> None:
    st.session_state[name] = rows
