"""Worklists over the feature view: images and classes worth a look; a click selects them in every panel."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import streamlit as st

from engine.figures.palette import state_title
from engine.report import Report
from pages.features.address import LIST
from pages.features.data import Space
from pages.features.picks import BROKEN, COUNTED, LOST, REPAIRED, SHIFTED, UNCERTAIN, class_table, rows_of_class
from pages.shared.chrome import plain
from pages.shared.nouns import called, kind_of
from pages.shared.tables import draw_table

TITLES = {
    SHIFTED: "Most shifted",
    LOST: "Lost by merging",
    REPAIRED: "Repaired by {calibrator}",
    BROKEN: "Broken by {calibrator}",
    UNCERTAIN: "Most uncertain",
}
SAID = {
    SHIFTED: "The images whose merged features are farthest from their expert's, in feature space.",
    LOST: "The expert is right, the merged model is wrong.",
    REPAIRED: "The merged model is wrong, and right once its features are corrected.",
    BROKEN: "The merged model is right, and wrong once its features are corrected.",
    UNCERTAIN: "The images on whose answer {state} puts the lowest probability.",
}
OPENED = "classes"


def worklists(
    space: Space,
    picks: dict[str, np.ndarray],
    corrected: str | None,
    visible: np.ndarray,
    report: Report,
    key: str,
    totals: Mapping[str, int],
) -> None:
    """Draw buttons for lists of images, and a table of classes.

    Args:
        space: the images.
        picks: the lists' rows by name.
        corrected: the calibrator shown, if any.
        visible: (n,) whether an image is shown.
        report: names of tasks, classes and states.
        key: prefix of the widgets; a chosen list is left in the address, a class's rows under ``{key}.picked``.
        totals: how many images a list would have if all that were measured were drawn, by its name.
    """
    names = {"calibrator": state_title(corrected, report) if corrected else "", "state": "the merged model"}
    if corrected:
        names["state"] = f"{names['calibrator']}'s correction"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption("Select", width="content")
        for name, rows in picks.items():
            st.button(
                f"{plain(TITLES[name].format(**names))} ({_count(len(rows), totals.get(name))})",
                key=f"{key}.pick.{name}",
                type="tertiary",
                help=plain(called(SAID[name].format(**names), kind_of(report))),
                on_click=_choose,
                args=(name,),
            )
    part = st.expander(
        "Class by class: shifted, lost, repaired, broken",
        icon=":material/format_list_numbered:",
        key=f"{key}.{OPENED}",
        on_change="rerun",
    )
    if part.open:
        with part:
            _classes(space, picks, visible, report, names["calibrator"], key)


def _count(drawn: int, total: int | None) -> str:
    return str(drawn) if total is None or total <= drawn else f"{total:,}; {drawn} shown"


def _classes(
    space: Space, picks: dict[str, np.ndarray], visible: np.ndarray, report: Report, calibrator: str, key: str
) -> None:
    """Draw the table of classes; a cell selects its images in every panel."""
    table = class_table(space, picks, visible, report)
    columns = {
        "task": "Task",
        "class": "Class",
        "images": called("Images", kind_of(report)),
        "shift": st.column_config.NumberColumn("Mean shift, merged", format="%.2f"),
    }
    columns |= {name: TITLES[name].format(calibrator=calibrator) for name in COUNTED if name in table}
    chosen = draw_table(
        table.drop(columns="number"),
        column_config=columns,
        hide_index=True,
        width="stretch",
        height=300,
        key=f"{key}.classes.table",
        on_select="rerun",
        selection_mode="single-cell",
        placeholder="–",
        alt=f"{len(table)} classes with their mean shift and how many images were lost, repaired and broken",
    )
    said = (
        "Counts are of the images drawn; the lists above count all that were measured. Click a count to select those "
        "images in every panel, a name to select all images of the class. Shift: distance of merged features to the "
        "expert's, feature units."
    )
    st.caption(called(said, kind_of(report)))
    cells = chosen["selection"]["cells"]
    cell = tuple(cells[0]) if cells else None
    seen = f"{key}.classes.seen"
    if cell == st.session_state.get(seen):
        return
    st.session_state[seen] = cell
    if cell is not None and cell[0] < len(table):
        among: Any = picks.get(cell[1]) if cell[1] in COUNTED else None
        rows = rows_of_class(space, table["number"].iloc[cell[0]], visible, among)
        st.session_state[f"{key}.picked"] = tuple(rows.tolist())


def _choose(name: str) -> None:
    st.query_params[LIST] = name  # which is followed when the lists are drawn
