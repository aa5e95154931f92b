"""Weights: what fine-tuning changed, what the merge made of it, and what lies between the models."""

import streamlit as st

from pages.sections.weights_learned import coefficients
from pages.sections.weights_path import path
from pages.sections.weights_receipt import receipt
from pages.sections.weights_vectors import spectra, task_vectors, what_was_kept
from pages.shared.chrome import context_bar
from pages.shared.one_of import one_of
from pages.shared.state import current_run

VIEWS = {
    "vectors": ("Task vectors", task_vectors),
    "kept": ("What the merge kept", what_was_kept),
    "receipt": ("What came from whom", receipt),
    "coefficients": ("Learned coefficients", coefficients),
    "spectra": ("Spectra", spectra),
    "path": ("Between two models", path),
}


def main() -> None:
    """Draw one view at a time; what is not chosen is neither computed nor sent."""
    run = current_run()
    context_bar(run)
    st.title("What the weights say", anchor=False)
    chosen = one_of(
        "View",
        list(VIEWS),
        format_func=lambda name: VIEWS[name][0],
        default="vectors",
        key="weights.view",
        persist_state="session",
        label_visibility="collapsed",
        help="Task vectors before merging, what the merge kept of them, or the path between two models.",
    )
    VIEWS[chosen][1](run)


main()
