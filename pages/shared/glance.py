"""First results of a run that is still at work."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine.figures.glance import first_accuracies
from engine.rounding import rounded
from pages.shared.chrome import PROTOCOLS, numbers_of, plain, plot, theme

STATES = {"merged": "Merged", "pretrained": "Pretrained", "expert": "Experts"}


def first_results(metrics: Mapping[str, Any]) -> None:
    """Draw the accuracies before any repair, as soon as a run's live metrics hold them."""
    document = metrics.get("glance")
    if not document or not document["means"]:
        return
    means = document["means"]
    said = ", ".join(
        f"{title.lower()} {rounded(means[state])}\u00a0%" for state, title in STATES.items() if state in means
    )
    st.markdown(f"**First numbers, before any repair:** {said}, mean over in-domain tasks.")
    drawing = first_accuracies(document, theme())
    plot(drawing, key="job.glance")
    counts = {task["evaluated"] for task in document["tasks"]}
    n = f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,}–{max(counts):,}"
    told = (
        f"n = {n} evaluation images a task; {PROTOCOLS[document['protocol']]}, split seed {document['split_seed']}, "
        f"seed {document['seed']}; 95 % intervals. Repairs and biases are still computed."
    )
    st.caption(plain(told))
    numbers_of(drawing, "job.glance", "first-accuracies", told)
