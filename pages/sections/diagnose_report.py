"""The diagnosis as one file."""

from collections.abc import Callable, Sequence

import streamlit as st

from engine.figures.diagnosis.answer import Answer, Scope
from engine.figures.diagnosis.document import diagnosis_document
from engine.figures.palette import Theme
from pages.shared.state import RunView


def report_section(run: RunView, scope: Scope, answers: Callable[[Theme], Sequence[Answer]], whole: int) -> None:
    """Draw the download of all answers that are there as one self-contained HTML file.

    Args:
        run: the run shown.
        scope: what is diagnosed.
        answers: the answers for a theme.
        whole: how many there are at most.
    """
    st.download_button(
        "Save this diagnosis",
        lambda: diagnosis_document(run.report, run.id, scope, {theme: answers(theme) for theme in ("light", "dark")}),
        file_name=f"{run.id}-{scope.task}-diagnosis.html",
        mime="text/html",
        key=f"diagnose.save.{scope.task}",
        icon=":material/download:",
        on_click="ignore",
        help=f"One HTML file that needs nothing else: up to {whole} answers with figures, tables, numbers and recipe.",
    )
