"""The sweep page: choose, see the cost, start, follow, read the curve, open a run."""

import pytest
import streamlit as st

from engine.report import read_report
from engine.store import Run
from engine.sweeps import SweepPoint, SweepRequest, SweepTable, sweep_title
from engine.sweeps.table import FILE, point_of
from pages.sections.sweep_film import film_request
from tests.made_run import made_report, write_run
from tests.pages.test_lab import problems, texts

SCALING = "merge.params.scaling"
VALUES = [0.1, 0.3, 0.5]


@pytest.fixture
def swept(workspace, monkeypatch):
    """A sweep that is at work, with two of its three runs there, and a way to finish it."""
    monkeypatch.setattr("pages.forms.sweep.estimate_sweep", made_estimate)
    settings = [{"place": SCALING, "values": VALUES}]
    request = SweepRequest.parse({"recipe": workspace.recipe().model_dump(mode="json"), "settings": settings})
    row = workspace.store.runs.submit(
        "sweep", request.model_dump(mode="json"), name=sweep_title(request), owner="test", requested_by="page"
    )
    points = request.points()
    for point in points[:2]:
        write_point(workspace, row, point)
    return row, points


def made_estimate(request, store):
    from engine.pipeline.preflight.sweep import SweepEstimate

    return SweepEstimate(request.count(), 3, 65.0, 10**7, "made numbers")


def write_point(workspace, row: Run, point) -> str:
    key = f"{point.number:02x}" * 32
    with workspace.store.create(key, step="bundle") as folder:
        write_run(folder, made_report(recipe=point.recipe))
    place = {"number": point.number, "values": list(point.values), "title": point.title}
    request = {"recipe": point.recipe.model_dump(mode="json"), "point": place}
    workspace.store.runs.adopt(row.id, key, name=f"Task Arithmetic, {point.title}", request=request)
    return key


def finish(workspace, row: Run, points, failed: str = "Too small.") -> SweepTable:
    """Two points are there, the third failed; the second is best on validation images."""
    made = []
    for point in points[:2]:
        key = f"{point.number:02x}" * 32
        choice = {"merged": 50.0 + point.number, "surgery": 70.0}
        report = read_report(workspace.store.find(key))
        made.append(point_of(point.number, point.values, point.title, key, report, choice))
    last = points[2]
    made.append(SweepPoint(number=last.number, values=last.values, title=last.title, failed=failed))
    table = SweepTable(
        places=(SCALING,),
        titles=("Scaling coefficient λ",),
        points=tuple(made),
        split="validation",
        choice_images=(12, 12),
        evaluation_images=(40, 40),
        protocol="held_out",
        seeds=(0,),
    )
    with workspace.store.create("ee" * 32, step="sweep") as folder:
        (folder / FILE).write_text(table.model_dump_json())
    workspace.store.runs.finish(row.id, "ee" * 32)
    return table


def test_the_form_says_how_many_runs_and_starts_them(workspace, open_app):
    workspace.example()
    app = open_app("sweep")
    assert not app.exception
    assert "No sweep yet" in texts(app)
    options = app.selectbox(key="sweep.form.first").options
    assert "Scaling coefficient λ" in options
    assert "Surgery: Rank" in options
    app.text_input[0].set_value("0.1:0.5:0.2").run()
    assert "3 runs" in texts(app)
    app.button(key="sweep.start").click().run()
    assert not app.exception
    row = workspace.store.runs.list(kinds=["sweep"])[0]
    assert row.state == "queued"
    assert row.request["settings"] == [{"place": SCALING, "values": [0.1, 0.3, 0.5]}]
    assert app.query_params["sweep"] == row.id


def test_bad_values_are_explained_and_cannot_be_started(workspace, open_app):
    workspace.example()
    app = open_app("sweep")
    for text, words in (("0:9:1", "less than or equal to 2"), ("0:1", "no value"), ("", "at least one"), ("a", "0")):
        app.text_input[0].set_value(text).run()
        assert not app.exception
        assert app.button(key="sweep.start").disabled
        assert problems(app), (text, words)


def test_two_places_make_a_grid(workspace, open_app):
    workspace.example()
    app = open_app("sweep")
    app.selectbox(key="sweep.form.second").set_value("merge.method").run()
    app.multiselect[0].set_value(["task_arithmetic", "ties"]).run()
    app.text_input[0].set_value("0.1, 0.2").run()
    assert "4 runs" in texts(app)


def test_a_sweep_at_work_shows_what_is_there_and_can_be_cancelled(workspace, open_app, swept):
    row, _ = swept
    app = open_app("sweep", sweep=row.id)
    assert not app.exception
    assert "2 of 3 runs are there" in texts(app)
    assert "has not finished" in texts(app)
    app.button(key="sweep.cancel").click().run()
    assert workspace.store.runs.get(row.id).state in ("cancelling", "cancelled")


def test_nothing_that_draws_itself_again_by_time_holds_another_fragment(workspace, open_app, swept, monkeypatch):
    """Both are sent at once then, the inner one without what stands before it, and the browser loses the page."""
    real, ticking, nested = st.fragment, [], []

    def fragment(function, *, run_every=None):
        def draw(*arguments):
            if ticking:
                nested.append(function.__name__)
            if not run_every:
                return real(function)(*arguments)
            ticking.append(function)
            try:
                return function(*arguments)
            finally:
                ticking.pop()

        return draw

    monkeypatch.setattr(st, "fragment", fragment)
    app = open_app("sweep", sweep=swept[0].id)
    assert len(app.get("plotly_chart")) == 1
    assert not nested


def test_a_finished_sweep_marks_the_best_and_names_what_failed(workspace, open_app, swept):
    row, points = swept
    finish(workspace, row, points)
    app = open_app("sweep", sweep=row.id)
    assert not app.exception
    assert not problems(app)
    assert "chosen on 12 labelled validation images" in texts(app).replace("\\", "")
    table = app.dataframe[0].value
    assert list(table["Best of"]) == ["Surgery", "Merged", ""]
    assert list(table["Failed"]) == ["", "", "Too small."]
    assert app.button(key="sweep.open").disabled
    assert "first of 2 equals" in texts(app)


def test_a_sweep_that_came_with_an_example_is_shown_while_there_is_none(workspace, open_app, swept):
    row, points = swept
    folder = workspace.example() / "sweep"
    folder.mkdir()
    (folder / FILE).write_text(finish(workspace, row, points).model_dump_json())
    workspace.store.runs.delete(row.id)
    app = open_app("sweep")
    assert not app.exception
    assert "No sweep yet" in texts(app)
    assert app.subheader[0].value == "Scaling coefficient λ of A made example, a sweep that came with the app"
    assert "on validation images" in texts(app)
    assert len(app.get("plotly_chart")) == 1


def choose(app, row, number):
    app.session_state[f"sweep.points.{row.id}"] = {"selection": {"rows": [number], "columns": [], "cells": []}}
    return app.run()


def test_a_point_opens_as_a_run(workspace, open_app, swept):
    row, points = swept
    finish(workspace, row, points)
    app = choose(open_app("sweep", sweep=row.id), row, 1)
    app.button(key="sweep.open").click().run()
    assert not app.exception
    child = next(run for run in workspace.store.runs.list(parent=row.id) if "0.3" in run.name)
    assert app.query_params["run"] == child.id
    app = choose(open_app("sweep", sweep=row.id), row, 2)
    assert app.button(key="sweep.open").disabled  # it failed


def test_the_settings_of_a_point_go_into_the_lab(workspace, open_app, swept):
    row, points = swept
    workspace.example()
    finish(workspace, row, points)
    app = choose(open_app("sweep", sweep=row.id), row, 2)
    app.button(key="sweep.use").click().run()
    assert not app.exception
    assert app.session_state["form.recipe"]["merge"]["params"]["scaling"] == 0.5
    assert app.slider(key="form.w.merge.task_arithmetic.scaling.slider").value == 0.5
    assert "Not run yet" in texts(app).replace("\\", "")


def test_a_finished_sweep_over_one_place_offers_its_points_as_a_film(workspace, open_app, swept):
    row, points = swept
    finish(workspace, row, points)
    app = open_app("sweep", sweep=row.id)
    app.button(key=f"sweep.film.{row.id}.compute").click().run()
    assert not app.exception
    (film,) = workspace.store.runs.list(kinds=("film",))
    assert (film.request["place"], film.request["values"], film.request["images"]) == (SCALING, VALUES, "all")
    assert film.parent in {child.id for child in workspace.store.runs.list(kinds=("run",), parent=row.id)}


def test_two_places_have_no_film():
    settings = [{"place": SCALING, "values": VALUES}, {"place": "merge.method", "values": ["ties", "task_arithmetic"]}]
    assert film_request(SweepRequest.parse({"recipe": {}, "settings": settings})) is None
    backwards = SweepRequest.parse({"recipe": {}, "settings": [{"place": SCALING, "values": VALUES[::-1]}]})
    assert list(film_request(backwards).values) == VALUES, "a slider goes up"


def test_a_sweep_over_images_has_no_film():
    settings = [{"place": "probe.split_seed", "values": [0, 1]}]
    assert film_request(SweepRequest.parse({"recipe": {}, "settings": settings})) is None


def test_a_failed_sweep_says_why_and_goes_on(workspace, open_app, swept):
    row, _ = swept
    workspace.store.runs.fail(row.id, "No <b>disk</b>.")
    app = open_app("sweep", sweep=row.id)
    assert "\\<b\\>" in problems(app)[0]
    app.button(key="sweep.resume").click().run()
    assert workspace.store.runs.get(row.id).state == "queued"


def test_an_unknown_sweep_in_the_address_is_no_error(workspace, open_app):
    app = open_app("sweep", sweep="nonsense")
    assert not app.exception
    assert "sweep" not in app.query_params


def test_points_of_sweeps_do_not_crowd_the_switcher(workspace, open_app, swept):
    workspace.finished("Mine")
    app = open_app()
    listed = next(box for box in app.selectbox if str(box.key).startswith("chrome.run."))
    assert not any("Scaling coefficient" in option for option in listed.options)
