"""First results of a run that is still at work."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine.figures import Drawing
from engine.figures.glance import first_accuracies
from engine.figures.palette import Theme
from engine.rounding import rounded
from engine.store import FIRST_NUMBERS, Run
from pages.shared.chrome import PROTOCOLS, numbers_of, plain, plot, theme
from pages.shared.nouns import called, kind_of_zoo

STATES = {"merged": "merged", "pretrained": "pretrained", "expert": "experts"}


def first_results(row: Run) -> None:
    """Draw the accuracies before any repair, as soon as a run's live metrics hold them."""
    document = row.metrics.get(FIRST_NUMBERS)
    if not document or not document.get("means"):
        return
    means = document["means"]
    said = ", ".join(f"{title} {rounded(means[state])}\u00a0%" for state, title in STATES.items() if state in means)
    st.markdown(f"**First numbers, before any repair:** {said}, mean over in-domain tasks.")
    drawing = _drawing(row.id, theme(), document)
    plot(drawing, key="job.glance")
    counts = {task["evaluated"] for task in document["tasks"] if "merged" in task}
    n = f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,}–{max(counts):,}"
    told = (
        f"n = {n} evaluation images a task; {PROTOCOLS[document['protocol']]}, split seed {document['split_seed']}, "
        f"seed {document['seed']}; 95 % intervals. Repairs and biases are still computed."
    )
    told = called(told, kind_of_zoo(str(row.request.get("recipe", {}).get("zoo", ""))))
    st.caption(plain(told))
    numbers_of(drawing, "job.glance", "first-accuracies", told, ticking=True)


@st.cache_resource(max_entries=16, ttl="10m", show_spinner=False)
def _drawing(run: str, shade: Theme, _document: Mapping[str, Any]) -> Drawing:
    return first_accuracies(_document, shade)
