"""The table of a sweep: what it left, or what its finished runs say so far."""

from pathlib import Path

import streamlit as st

from engine.recipe import Recipe, parse_recipe
from engine.report import Report, read_report
from engine.store import Run
from engine.sweeps import SweepPoint, SweepRequest, SweepTable, read_table
from engine.sweeps.table import measured_on, point_of
from pages.shared.state import result_folder, store

MOST = 500  # rows of finished runs looked at


def table_of(row: Run) -> SweepTable | None:
    """Return the table of a finished sweep; else the points whose runs are there, in order, none of them best."""
    folder = store().find(row.result, checksums=False) if row.state == "finished" and row.result else None
    if folder is not None:
        return _table(str(folder))
    request = SweepRequest.parse(row.request)
    points, reports = [], []
    for child in store().runs.list(kinds=("run",), parent=row.id, limit=MOST):
        place, made = child.request.get("point"), result_folder(child.result)
        if not isinstance(place, dict) or made is None:
            continue
        report = _report(str(made))
        reports.append(report)
        points.append(point_of(place["number"], tuple(place["values"]), place["title"], child.result, report))
    if not reports:
        return None
    return SweepTable(
        places=request.places,
        titles=request.titles(),
        points=tuple(sorted(points, key=lambda point: point.number)),
        reason="the sweep has not finished.",
        **measured_on(reports),
    )


def run_of_point(row: Run, point: SweepPoint) -> Run | None:
    """Return the row of a point's run, None when it failed or was deleted."""
    children = store().runs.list(kinds=("run",), parent=row.id, limit=MOST) if point.run else []
    return next((child for child in children if child.result == point.run), None)


def recipe_of(row: Run, point: SweepPoint) -> Recipe:
    """Return the recipe of a point."""
    child = run_of_point(row, point)
    if child is not None:
        return parse_recipe(child.request["recipe"])
    return next(found.recipe for found in SweepRequest.parse(row.request).points() if found.number == point.number)


@st.cache_resource(max_entries=16, show_spinner=False)
def _table(folder: str) -> SweepTable:
    return read_table(Path(folder))


@st.cache_resource(max_entries=512, show_spinner=False)
def _report(folder: str) -> Report:
    return read_report(Path(folder))
