"""Accuracies that a zoo's authors published, beside those that a run measured."""

import pandas as pd
import streamlit as st

from engine.errors import EngineError
from engine.manifest import Manifest
from engine.report import Report
from engine.rounding import rounded
from engine.zoo.described.published import Compared, compare, in_words
from pages.shared.chrome import percent, plain
from pages.shared.state import RunView
from pages.shared.tables import draw_table
from pages.shared.zoos import zoo_manifest

STATES = {"pretrained": "Pretrained", "expert": "Expert"}


def draw_published(run: RunView) -> None:
    """Draw published and measured accuracies of a run's zoo; nothing where its authors published none."""
    try:
        manifest = zoo_manifest(run.report.recipe.zoo)
    except (EngineError, OSError):
        return  # the zoo was moved since
    rows = compare(manifest, run.report)
    if not rows or manifest.published is None:
        return
    st.subheader("Beside the published accuracies", anchor=False)
    st.write(plain(in_words(rows)))
    columns = {
        "Task": [row.label for row in rows],
        "State": [STATES[row.state] for row in rows],
        "Published (%)": [row.published for row in rows],
        "Measured (%)": [row.measured for row in rows],
        "Difference": [row.difference for row in rows],
        "Explained (±)": [row.margin for row in rows],
        "Images": [f"{row.images:,} of {row.available:,}" for row in rows],
    }
    formats = {"Difference": "%+.2f"} | dict.fromkeys([*list(columns)[2:4], "Explained (±)"], "%.2f")
    draw_table(
        pd.DataFrame(columns),
        hide_index=True,
        width="stretch",
        key="accuracy.published",
        column_config={name: st.column_config.NumberColumn(format=form) for name, form in formats.items()},
    )
    st.caption(
        f"{_source(manifest)} Explained: half a point, by which programs differ, and the error of the sample at 95 %; "
        "more says that something of the import is not as its authors had it: preprocessing, prompts, or another split."
    )


def expert_line(task: str, manifest: Manifest, report: Report | None) -> str:
    """Return an expert's published accuracy on its task, and the difference measured, as Markdown; '' for none."""
    published = manifest.published
    value = published.accuracy.get("expert", {}).get(task) if published is not None else None
    if value is None:
        return ""
    row = _of(task, compare(manifest, report)) if report is not None else None
    measured = f", measured {rounded(row.difference, signed=True)} points" if row is not None else ""
    return f":small[Published {percent(value)}{plain(measured)}]"


def source_caption(manifest: Manifest) -> None:
    """Say where published accuracies are from."""
    if manifest.published is not None:
        st.caption(_source(manifest))


def _of(task: str, rows: list[Compared]) -> Compared | None:
    return next((row for row in rows if row.state == "expert" and row.task == task), None)


def _source(manifest: Manifest) -> str:
    found = manifest.published
    if found is None:
        return ""
    return f"Published accuracies: {plain(found.source)}{plain(f', {found.url}') if found.url else ''}."
