"""The runs page: lists, opens, cancels, deletes with undo, tells why a run failed."""

from tests.app.test_lab import problems, texts


def names(app):
    return list(app.dataframe[0].value["Run"])


def choose(app, *names_):
    """Choose rows of the table, as a click on them does."""
    key = f"runs.table.{app.session_state['runs.version'] if 'runs.version' in app.session_state else 0}"  # noqa: SIM401
    rows = [names(app).index(name) for name in names_]
    app.session_state[key] = {"selection": {"rows": rows, "columns": [], "cells": []}}
    return app.run()


def test_runs_and_examples_are_listed_with_their_averages(workspace, open_app):
    workspace.example(title="An example")
    workspace.finished("First")
    workspace.failed("Second", "No memory.")
    app = open_app("runs")
    assert not app.exception
    assert not problems(app)
    table = app.dataframe[0].value.set_index("Run")
    assert list(table.index) == ["Second", "First", "An example"]
    assert list(table["State"]) == ["Failed", "Finished", "Example"]
    assert table.loc["First", "Merged"] == 56.0
    assert table.loc["An example", "Repaired"] == 76.0


def test_an_empty_store_says_what_would_be_here(workspace, open_app):
    app = open_app("runs")
    assert not app.exception
    assert not app.dataframe
    assert "No runs yet" in texts(app)


def test_search_and_filter(workspace, open_app):
    workspace.finished("Alpha")
    workspace.failed("Beta", "No memory.")
    app = open_app("runs")
    app.text_input(key="runs.search").set_value("alp").run()
    assert names(app) == ["Alpha"]
    app.text_input(key="runs.search").set_value("nothing like it").run()
    assert "No runs match" in texts(app)
    app.text_input(key="runs.search").set_value("").run()
    app.segmented_control(key="runs.filter").set_value("Failed").run()
    assert names(app) == ["Beta"]


def test_a_failed_run_shows_its_reason(workspace, open_app):
    row = workspace.failed("Broken", "Expert <b>x</b> has NaN.")
    app = choose(open_app("runs"), "Broken")
    assert "\\<b\\>x" in problems(app)[0]
    assert any(row.id in code.value for code in app.code)
    app.button(key="runs.resume").click().run()
    assert workspace.store.runs.get(row.id).state == "queued"


def test_delete_and_undo(workspace, open_app):
    kept, gone = workspace.finished("Kept"), workspace.finished("Gone")
    app = choose(open_app("runs", run=gone.id), "Gone")
    app.button(key="runs.delete").click().run()
    assert names(app) == ["Kept"]
    assert "run" not in app.query_params
    app.button(key="runs.undo.button").click().run()
    assert names(app) == ["Gone", "Kept"]
    assert workspace.store.runs.get(kept.id).deleted is None


def test_open_shows_the_run_in_the_lab(workspace, open_app):
    workspace.example()
    row = workspace.finished("Mine")
    app = choose(open_app("runs"), "Mine")
    app.button(key="runs.open").click().run()
    assert not app.exception
    assert app.query_params["run"] == row.id
    assert app.selectbox(key=f"chrome.run.{row.id}").value == row.id


def test_a_run_at_work_can_be_cancelled(workspace, open_app):
    row = workspace.submitted("Slow", workspace.recipe(), owner=None)
    app = open_app("runs")
    app.button(key=f"runs.cancel.{row.id}").click().run()
    assert workspace.store.runs.get(row.id).state == "cancelled"
    assert not app.exception


def test_a_deleted_result_is_said_to_be_gone(workspace, open_app):
    row = workspace.submitted("Lost", workspace.recipe())
    workspace.store.runs.finish(row.id, "ab" * 32)
    app = open_app("runs")
    assert list(app.dataframe[0].value["State"]) == ["Result gone"]
    app = open_app(run=row.id)
    assert not app.exception
    assert "run" not in app.query_params
