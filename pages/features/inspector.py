"""The selected images of the feature view, with every model's prediction and how far correction moved them."""

from collections.abc import Mapping, Sequence

import numpy as np
import streamlit as st

from engine.figures.drawing import task_titles
from engine.figures.palette import state_title
from engine.outgoing import csv_table
from engine.pipeline.views.occlusion import OCCLUSION
from engine.rounding import rounded
from pages.features.data import Space, class_name, selection_table
from pages.features.film import Film
from pages.features.images import show_sample
from pages.features.neighbours import has_neighbours, neighbours
from pages.features.scatter import Atlas, Sentences
from pages.features.words import marked, occlusion_folder
from pages.shared.causes import can_diagnose, diagnose
from pages.shared.chrome import plain
from pages.shared.nouns import called, kind_of
from pages.shared.selection import MOST
from pages.shared.state import RunView
from pages.shared.tables import draw_table

PAGE = 12  # images shown at once
ORDERS = {"shift": "Largest shift first", "margin": "Smallest margin first", "row": "In order of the data"}


def inspector(
    run: RunView,
    space: Space,
    rows: Sequence[int],
    states: Sequence[str],
    atlas: Atlas | Sentences | None,
    key: str,
    picked: str,
) -> None:
    """Draw images and table of the selected rows.

    Args:
        run: the run shown.
        space: the images.
        rows: which are selected.
        states: of the panels, in order.
        atlas: thumbnails or texts of all rows of the space, if there are any.
        key: prefix of the widgets.
        picked: where in the session the view looks for a selection to take over.
    """
    if not rows:
        st.caption("Nothing is selected. Drag around points, click one, or use a button above.")
        return
    kind = kind_of(run.report)
    base = "merged" if "merged" in states else states[0]
    alone = len(rows) > 1 and atlas is not None and has_neighbours(run)
    pages, page = -(-len(rows) // PAGE), 1
    with st.container(horizontal=True, vertical_alignment="bottom"):
        said = f"{len(rows):,} {kind.many if len(rows) != 1 else kind.one} selected"
        st.subheader(said, anchor=False, width="stretch")
        order = "row"
        if len(rows) > 1:
            order = st.selectbox(
                "Order",
                list(ORDERS),
                format_func=ORDERS.get,
                key=f"{key}.order",
                bind="query-params",
                width=220,
                help="By the merged model's shift or margin, or as the data set has them.",
            )
        if pages > 1:
            page = st.number_input(
                f"Page of {pages}",
                1,
                pages,
                key=f"{key}.page.{pages}",
                bind="query-params",
                width=140,
                help=called("Twelve images are shown at a time.", kind),
            )
    way_to_causes(run, space, rows, key)
    ordered = _ordered(space, np.asarray(rows, dtype=int), order, base)
    words = _words_of(run, space, ordered) if isinstance(atlas, Sentences) else {}
    with st.grid("auto", min_column_width=240 if isinstance(atlas, Sentences) else 170, gap="small"):
        for row in ordered[(page - 1) * PAGE : page * PAGE].tolist():
            with st.container(border=True, height="stretch", gap="xsmall"):
                _card(run, space, row, states, atlas, words)
                if alone:
                    st.button(
                        "Neighbours",
                        key=f"{key}.alone.{row}",
                        type="tertiary",
                        icon=":material/hub:",
                        help=called(
                            "Select this image alone: its nearest images in every feature space appear below.", kind
                        ),
                        on_click=_alone,
                        args=(picked, row),
                    )
    if len(ordered) == 1 and atlas is not None:
        neighbours(run, space, int(ordered[0]), states, atlas)
    _table(run, space, ordered, states, atlas, key)


def way_to_causes(run: RunView, space: Space | Film, rows: Sequence[int], key: str) -> None:
    """Draw the way to the diagnosis of the selected images, of the task that most of them are of."""
    chosen = np.asarray(rows, dtype=int)
    counts = np.bincount(space.task[chosen], minlength=len(space.tasks))
    task = space.tasks[int(counts.argmax())]
    if not can_diagnose(run.report, task):
        return
    own = chosen[space.task[chosen] == counts.argmax()]
    images = sorted(space.index[own].tolist())
    title = task_titles(run.report)[task]
    said = "Why this image?" if len(images) == 1 else f"Why these {min(len(images), MOST)} images of {title}?"
    if st.button(plain(called(said, kind_of(run.report))), icon=":material/troubleshoot:", key=f"{key}.why"):
        diagnose(run, task, images=images)


def _words_of(run: RunView, space: Space, rows: np.ndarray) -> dict[tuple[str, int], str]:
    """Return texts with the words marked that move features most, by task and row, where words have been hidden."""
    found = {}
    for task in {space.tasks[number] for number in space.task[rows].tolist()}:
        if (folder := occlusion_folder(run, task)) is not None:
            parts = OCCLUSION.read(folder)["tasks"][task]["texts"]
            found |= {(task, text["index"]): marked(text) for text in parts}
    return found


def _card(
    run: RunView,
    space: Space,
    row: int,
    states: Sequence[str],
    atlas: Atlas | Sentences | None,
    words: Mapping[tuple[str, int], str],
) -> None:
    """Draw one image or text: true class, what every state says, its distance to the expert's feature."""
    task = space.tasks[space.task[row]]
    truth = class_name(run.report, task, int(space.label[row]))
    if said := words.get((task, int(space.index[row]))):
        st.markdown(said)
    elif atlas is not None:
        show_sample(atlas, row, truth)
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
        rounded(space.numbers["shift"][state][row])
        for state in states
        if state != "expert" and np.isfinite(space.numbers["shift"][state][row])
    ]
    if shifts:
        lines.append(f"Distance to the expert's feature: {' → '.join(shifts)}")
    st.caption("  \n".join(lines))


def _table(
    run: RunView, space: Space, rows: np.ndarray, states: Sequence[str], atlas: Atlas | Sentences | None, key: str
) -> None:
    table = selection_table(space, rows, states, run.report)
    if isinstance(atlas, Sentences):
        table.insert(2, "text", [atlas.texts[row] for row in rows.tolist()])
    with st.expander("Table and download", icon=":material/table_rows:"):
        draw_table(table, width="stretch", hide_index=True, key=f"{key}.table")
        st.download_button(
            "Download CSV",
            lambda: csv_table(table).encode(),
            file_name=f"{run.id}-selection.csv",
            mime="text/csv",
            key=f"{key}.csv",
            on_click="ignore",
        )


def _ordered(space: Space, rows: np.ndarray, order: str, base: str) -> np.ndarray:
    if order == "row":
        return rows
    values = space.numbers[order][base][rows]
    key = np.nan_to_num(-values if order == "shift" else values, nan=np.inf)
    return rows[np.argsort(key, kind="stable")]


def _alone(picked: str, row: int) -> None:
    st.session_state[picked] = (row,)
