"""Salience: accuracy over η is asked for with a button, computed as a sweep, and stands beside its controls."""

import shutil

import pytest

from engine.figures.pruning import pruning_curves, pruning_table
from engine.sweeps import SweepRequest, SweepTable
from engine.sweeps.table import FILE, point_of
from pages.sections.salience_sweep import ETAS, METHODS
from tests.made_run import made_report
from tests.pages.test_lab import texts
from tests.pages.test_sweep import made_estimate


@pytest.fixture
def asked(workspace, open_app, monkeypatch):
    """The page after its button was pressed, and the row that asks for the sweep."""
    monkeypatch.setattr("pages.sections.salience_sweep.estimate_sweep", made_estimate)
    workspace.example()
    app = open_app("salience")
    assert not app.exception
    assert f"{len(METHODS) * len(ETAS)} merges without calibrators" in texts(app)
    app.button(key="salience.sweep.compute").click().run()
    assert not app.exception
    rows = workspace.store.runs.list(kinds=["sweep"])
    assert len(rows) == 1
    return app, rows[0]


def finished_table(request: SweepRequest) -> SweepTable:
    points = [
        point_of(point.number, point.values, point.title, "", made_report(recipe=point.recipe))
        for point in request.points()
    ]
    return SweepTable(
        places=request.places,
        titles=request.titles(),
        points=tuple(points),
        reason="made.",
        seeds=(0,),
        evaluation_images=(40, 40),
        protocol="held_out",
    )


def test_without_its_zoo_a_run_says_why_it_cannot_be_measured(workspace, open_app):
    workspace.example()
    shutil.rmtree(workspace.zoo)
    app = open_app("salience")
    assert not app.exception
    assert "This run cannot be measured over η" in app.info[0].value
    assert not [button for button in app.button if button.key == "salience.sweep.compute"]


def test_the_button_asks_for_lwptv_and_both_controls_at_every_ratio(asked):
    app, row = asked
    request = SweepRequest.parse(row.request)
    assert [setting.values for setting in request.settings] == [METHODS, ETAS]
    points = request.points()
    assert {point.recipe.transforms[0].method for point in points} == set(METHODS)
    assert all(not point.recipe.calibrators and len(point.recipe.seeds) == 1 for point in points)
    assert not [button for button in app.button if button.key == "salience.sweep.compute"]  # it is under way


def test_the_curves_stand_there_when_the_sweep_has_ended(workspace, asked):
    app, row = asked
    table = finished_table(SweepRequest.parse(row.request))
    with workspace.store.create("ee" * 32, step="sweep") as folder:
        (folder / FILE).write_text(table.model_dump_json())
    runs = workspace.store.runs
    runs.finish(runs.submit("sweep", row.request, owner="test").id, "ee" * 32)
    app.run()
    assert not app.exception
    assert "40 evaluation images a task" in texts(app)
    assert not [button for button in app.button if button.key == "salience.sweep.compute"]


def test_a_line_for_each_transform_with_numbers_of_its_points(asked):
    _, row = asked
    table = finished_table(SweepRequest.parse(row.request))
    frame = pruning_table(table)
    assert len(frame) == len(METHODS) * len(ETAS)
    drawing = pruning_curves(table, "in", "light", 0.7)
    assert [len(trace.x) for trace in drawing.figure.data] == [len(ETAS)] * len(METHODS)
    assert drawing.figure.data[0].line.dash == "solid"
    assert {trace.line.dash for trace in drawing.figure.data[1:]}.isdisjoint({"solid"})
    assert list(drawing.figure.data[0].y) == frame[frame["transform"] == frame["transform"][0]]["in"].tolist()
