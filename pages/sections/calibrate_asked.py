"""What the calibrate page's sections share that are computed when somebody asks: the view itself, and whose images."""

from typing import Any

import streamlit as st

from engine.figures.drawing import task_titles
from engine.pipeline.viewing.base import View
from engine.pipeline.viewing.by_task import ImagesRequest
from pages.shared.on_demand import on_demand
from pages.shared.state import RunView

ALL = "all"


def view_of(
    run: RunView, view: View, request: ImagesRequest, *, label: str, icon: str, takes: str
) -> dict[str, Any] | None:
    """What a view left, or nothing while it is only offered.

    Args:
        run: the run shown.
        view: as it is declared.
        request: names everything that it depends on.
        label: of the button.
        icon: of the button.
        takes: said below the button: what is done with how many images.
    """
    folder = on_demand(
        run,
        view.name,
        request.model_dump(mode="json"),
        key=f"calibrate.{view.name}",
        name=view.title,
        label=label,
        icon=icon,
    )
    if folder is None:
        st.caption(takes)
        return None
    return view.read(folder)


def choose_tasks(run: RunView, document: dict[str, Any], view: str, hint: str) -> list[str]:
    """One of the tasks that a view has, or all of them."""
    titles = {ALL: "All tasks", **task_titles(run.report, document["tasks"])}
    task = st.selectbox(
        "Task",
        list(titles),
        format_func=titles.get,
        width=260,
        key=f"calibrate.{view}.task",
        bind="query-params",
        help=hint,
    )
    return list(document["tasks"]) if task == ALL else [task]
