"""Differences of accuracies with their intervals, as a table with what it says."""

import pandas as pd
import streamlit as st

from engine.analysis.paired import MARGIN
from pages.shared.chrome import plain
from pages.shared.tables import draw_table


def draw_differences(found: pd.DataFrame, name: str, what: str, key: str) -> None:
    """Draw the table of :func:`engine.figures.paired.difference_table`; nothing where nothing could be paired.

    Args:
        found: the table.
        name: of its first column.
        what: which difference it is, for the caption.
        key: prefix of the widget's key.
    """
    if found.empty:
        return
    points = st.column_config.NumberColumn
    columns = {
        "name": name,
        "difference": points("Difference", format="%+.1f", help="Percentage points, mean over tasks"),
        "low": points("from", format="%+.1f", help="Lower end of the 95 % interval"),
        "high": points("to", format="%+.1f", help="Upper end of the 95 % interval"),
        "says": st.column_config.TextColumn(
            "What it says",
            help=f"Higher or lower: the interval leaves 0 out. No difference: all of it is within ± {MARGIN:g} points. "
            "Undecided: anything else.",
        ),
        "images": None,
        "seeds": None,
    }
    draw_table(found, hide_index=True, key=f"{key}.paired", column_config=columns)
    images, seeds = found["images"].max(), found["seeds"].max()
    chance = f"{seeds} training seeds and" if seeds > 1 else "one training seed and"
    st.caption(
        f"{plain(what)}, percentage points; 95 % intervals of a bootstrap, paired by image, over {chance} "
        f"{images:,} evaluation images."
    )
