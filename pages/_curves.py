"""How the training of calibrators goes, while it goes."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import streamlit as st

from pages._chrome import plain

SHOWN = {"accuracy_evaluate": "Accuracy, %", "l1_evaluate": "L1 bias", "loss": "Loss"}


def live_curves(metrics: Mapping[str, Any]) -> None:
    """Draw the curves found in a run's live metrics: accuracy and bias on evaluation images, or the loss alone."""
    for title, columns, rows in curves_in(metrics):
        frame = pd.DataFrame(rows, columns=list(columns)).set_index("step")
        shown = [name for name in SHOWN if name in frame and frame[name].notna().any()][:2]
        if len(frame) < 2 or not shown:
            continue
        if title:
            st.caption(plain(title))
        for column, name in zip(st.columns(len(shown)), shown, strict=True):
            column.caption(f"{SHOWN[name]}, mean over tasks, by training step")
            column.line_chart(frame[[name]].rename(columns={name: SHOWN[name]}), height=130, width="stretch")


def curves_in(metrics: Mapping[str, Any], title: str = "") -> Iterator[tuple[str, list[str], list[list[Any]]]]:
    """Curves in live metrics, which a service may nest under the step that reports them."""
    columns, rows = metrics.get("columns"), metrics.get("curve")
    if isinstance(columns, (list, tuple)) and isinstance(rows, list) and "step" in columns:
        yield str(metrics.get("title") or title), list(columns), [row for row in rows if len(row) == len(columns)]
        return
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from curves_in(value, name)
