"""Before merging: what the way in which experts were trained, and where they start, does to their merge."""

import streamlit as st

from pages.sections.premerging_connection import connection
from pages.sections.premerging_measures import disentanglement, energy, sharpness
from pages.sections.premerging_scaling import over_scaling
from pages.sections.premerging_spawning import spawning
from pages.shared.chrome import context_bar
from pages.shared.one_of import one_of
from pages.shared.state import current_run

VIEWS = {
    "scaling": ("Over λ", over_scaling),
    "disentanglement": ("Disentanglement", disentanglement),
    "sharpness": ("Sharpness", sharpness),
    "energy": ("Subspaces", energy),
    "connection": ("Alignment", connection),
    "spawning": ("Spawning", spawning),
}


def main() -> None:
    """Draw one view at a time; what is not chosen is neither computed nor sent."""
    run = current_run()
    context_bar(run)
    st.title("How experts were trained, and what it does to their merge", anchor=False)
    chosen = one_of(
        "View",
        list(VIEWS),
        format_func=lambda name: VIEWS[name][0],
        default="scaling",
        key="premerging.view",
        persist_state="session",
        label_visibility="collapsed",
        help="Everything here looks at the experts of the run shown and at their base.",
    )
    VIEWS[chosen][1](run)


main()
