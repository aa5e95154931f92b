"""Tables and figures of the papers that bundled zoos cannot show, below the table of experiments."""

import pandas as pd
import streamlit as st

from engine.experiments.elsewhere import elsewhere
from pages.shared.tables import draw_table

COLUMNS = {
    "Paper": st.column_config.TextColumn("Paper", width="medium"),
    "Part": st.column_config.TextColumn("Part", width=150),
    "Shows": st.column_config.TextColumn("Shows", width="medium"),
    "Needs": st.column_config.TextColumn("Needs", width="large"),
    "Command": st.column_config.TextColumn("Command", width="large"),
}


def draw_elsewhere() -> None:
    """Draw what needs other models, with the command that makes it there."""
    part = st.expander(
        "What only other models can show",
        icon=":material/travel_explore:",
        key="experiments.elsewhere",
        on_change="rerun",
    )
    if not part.open:
        return
    rows = [
        {
            "Paper": entry.paper,
            "Part": entry.part,
            "Shows": entry.shows,
            "Needs": entry.needs,
            "Command": " && ".join(entry.commands) or None,
        }
        for entry in elsewhere()
    ]
    with part:
        draw_table(
            pd.DataFrame(rows),
            hide_index=True,
            key="experiments.elsewhere.table",
            column_config=COLUMNS,
            placeholder="–",
            alt=f"{len(rows)} tables and figures with what they need and their command",
        )
        st.caption(
            "`experiment NAME --zoo PATH --foreseen` says first how long it takes and what memory. Sizes follow the "
            "encoder's width, so the same file asks for the papers' ranks there."
        )
