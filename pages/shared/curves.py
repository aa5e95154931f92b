"""Curves of calibrators that are being trained."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import streamlit as st

from engine.catalog.titles import method_title
from pages.shared.chrome import plain

SHOWN = {
    "accuracy_evaluate": ("Accuracy", "{:.1f}\u00a0%"),
    "l1_evaluate": ("L1 bias", "{:.3f}"),
    "loss": ("Loss", "{:.4f}"),
    "validation_accuracy": ("Accuracy", "{:.1f}\u00a0%"),
}


OF_CALIBRATORS = "means over tasks, accuracy and bias on evaluation images"


def live_curves(metrics: Mapping[str, Any], said: str) -> None:
    """Draw what is found in a run's live metrics: where each quantity is, and its curve so far.

    Args:
        metrics: of the run.
        said: what the curves are of, for people.
    """
    for title, columns, rows in curves_in(metrics):
        frame = pd.DataFrame(rows, columns=list(columns))
        shown = [name for name in SHOWN if name in frame and frame[name].notna().any()]
        if len(frame) < 2 or not shown:
            continue
        of = f"{plain(method_title(title))}, training" if title else "Training"
        st.caption(f"{of} step {frame['step'].iloc[-1]:,.0f}; {said}")
        with st.grid(len(shown), gap="small"):
            for name in shown:
                label, form = SHOWN[name]
                values = frame[name].dropna()
                st.metric(label, form.format(values.iloc[-1]), chart_data=values.tolist(), chart_type="line")


def curves_in(metrics: Mapping[str, Any], title: str = "") -> Iterator[tuple[str, list[str], list[list[Any]]]]:
    """Return curves in live metrics, which a service may nest under the step that reports them."""
    columns, rows = metrics.get("columns"), metrics.get("curve")
    if isinstance(columns, (list, tuple)) and isinstance(rows, list) and "step" in columns:
        yield str(metrics.get("title") or title), list(columns), [row for row in rows if len(row) == len(columns)]
        return
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from curves_in(value, name)
