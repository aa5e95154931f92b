"""Lists of images that are worth a look, and a table of classes. Free of Streamlit."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from engine.analysis.worklists import gained, highest, lost
from engine.figures.drawing import task_titles
from engine.report import Report
from pages.features.data import Space, class_name

MOST = 24  # images in a list that ranks all of them
SHIFTED, LOST, REPAIRED, BROKEN, UNCERTAIN = "shifted", "lost", "repaired", "broken", "uncertain"
COUNTED = (LOST, REPAIRED, BROKEN)


def picks_of(space: Space, corrected: str | None, visible: np.ndarray, count: int = MOST) -> dict[str, np.ndarray]:
    """Return images by what happened to them; empty lists are left out.

    Args:
        space: the images.
        corrected: the calibrator shown, if any.
        visible: (n,) whether an image is shown; others are in no list.
        count: length of the lists that rank all images.
    """
    found: dict[str, np.ndarray] = {}
    shift = space.numbers.get("shift", {}).get("merged")
    if shift is not None:
        found[SHIFTED] = highest(shift, visible, count)
    judged = visible & space.judged
    if {"merged", "expert"} <= set(space.states):
        found[LOST] = lost(space.right("expert"), space.right("merged"), judged)
    if corrected and {"merged", corrected} <= set(space.states):
        found[REPAIRED] = gained(space.right("merged"), space.right(corrected), judged)
        found[BROKEN] = lost(space.right("merged"), space.right(corrected), judged)
    chance = space.numbers.get("probability", {}).get(corrected or "merged")
    if chance is not None:
        found[UNCERTAIN] = highest(-chance, visible, count)
    return {name: rows for name, rows in found.items() if len(rows)}


def totals_of(samples: pd.DataFrame, tasks: Sequence[str], corrected: str | None) -> dict[str, int]:
    """Return how many of all measured images were lost, repaired and broken; those are drawn that are in a space.

    Args:
        samples: of a run.
        tasks: that count.
        corrected: the calibrator shown, if any.
    """
    own = samples[samples["task"].isin(tasks) & (samples["split"] == "evaluate")]
    right = own.assign(right=own["prediction"] == own["label"])
    table = right.pivot(index=["task", "index"], columns="state", values="right")
    wanted = {LOST: ("expert", "merged")}
    if corrected:
        wanted |= {REPAIRED: (corrected, "merged"), BROKEN: ("merged", corrected)}
    found = {}
    for name, (good, bad) in wanted.items():
        if {good, bad} <= set(table):
            both = table[[good, bad]].dropna().astype(bool)
            found[name] = int((both[good] & ~both[bad]).sum())
    return found


def class_table(space: Space, picks: Mapping[str, np.ndarray], visible: np.ndarray, report: Report) -> pd.DataFrame:
    """Return one row a class of the images shown, the farthest from its expert first.

    Returns:
        Columns task (title), class, images, shift (mean distance of the merged model's features to the expert's, NaN
        where unknown), one count for each of ``COUNTED`` in ``picks``; and ``number`` (task, label), which tells
        :func:`rows_of_class` what is meant.
    """
    titles = task_titles(report, space.tasks)
    shift = space.numbers.get("shift", {}).get("merged", np.full(len(space), np.nan))
    inside = {name: np.isin(np.arange(len(space)), picks[name]) for name in COUNTED if name in picks}
    lines = []
    for number, task in enumerate(space.tasks):
        for label in np.unique(space.label[visible & (space.task == number) & (space.label >= 0)]).tolist():
            own = _of_class(space, (number, label), visible)
            known = shift[own][np.isfinite(shift[own])]
            lines.append(
                {
                    "task": titles[task],
                    "class": class_name(report, task, label),
                    "images": int(own.sum()),
                    "shift": float(known.mean()) if len(known) else np.nan,
                    **{name: int((own & mask).sum()) for name, mask in inside.items()},
                    "number": (number, label),
                }
            )
    table = pd.DataFrame(lines, columns=["task", "class", "images", "shift", *inside, "number"])
    return table.sort_values("shift", ascending=False, kind="stable", ignore_index=True)


def rows_of_class(
    space: Space, number: tuple[int, int], visible: np.ndarray, among: np.ndarray | None = None
) -> np.ndarray:
    """Return images of a class, all that are shown or those of them in a list."""
    rows = np.flatnonzero(_of_class(space, number, visible))
    return rows if among is None else rows[np.isin(rows, among)]


def _of_class(space: Space, number: tuple[int, int], visible: np.ndarray) -> np.ndarray:
    task, label = number
    return visible & (space.task == task) & (space.label == label)
