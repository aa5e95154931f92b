"""From a bar, a cell or an image to the diagnosis of what it shows, by one click."""

from collections.abc import Sequence

import streamlit as st

from engine.figures.drawing import plain, task_titles, under_groups
from engine.report import Report
from pages.shared.chrome import Pick
from pages.shared.selection import DIAGNOSE, query
from pages.shared.state import RUN, RunView

CLICK = "Click a bar or a cell to see why."


def diagnose(run: RunView, task: str, label: int | None = None, images: Sequence[int] = ()) -> None:
    """Turn to the diagnosis of a task, one of its classes, or some of its images."""
    st.switch_page(DIAGNOSE, query_params=address(run, task, label, images))


def address(run: RunView, task: str, label: int | None = None, images: Sequence[int] = ()) -> dict[str, str]:
    """Return the address parameters of a diagnosis."""
    return {RUN: run.id, **query(run.report, task, label, images)}


def can_diagnose(report: Report, task: str) -> bool:
    """Return whether a task has an expert and a merged model to compare."""
    scored = (report.accuracy.get(state, {}).get(task) for state in ("expert", "merged"))
    return task in report.tasks_of("in") and all(value is not None for value in scored)


def task_pick(run: RunView) -> Pick:
    """Return what a click on a figure with a task at each place of its horizontal axis does."""
    titles = task_titles(run.report)
    tasks = dict(zip(under_groups(list(titles.values())), titles, strict=True))

    def pick(point: dict) -> bool:
        task = tasks.get(point.get("x"))
        if task is None or not can_diagnose(run.report, task):
            return False
        diagnose(run, task)
        return True

    return pick


def class_pick(run: RunView, task: str, axis: str = "y") -> Pick:
    """Return what a click on a figure with the classes of a task along an axis does."""
    classes = {plain(name): number for number, name in enumerate(run.report.tasks[task].classes)}

    def pick(point: dict) -> bool:
        label = classes.get(point.get(axis))
        if label is None or not can_diagnose(run.report, task):
            return False
        diagnose(run, task, label)
        return True

    return pick
