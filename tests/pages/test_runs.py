"""The runs page: lists, opens, cancels, deletes with undo, tells why a run failed."""

import sqlite3
import threading

from engine.pipeline.kinds import all_kinds
from engine.store import collect
from pages.shared.state import PAGE
from tests.made_run import made_report, write_run
from tests.pages.test_lab import problems, texts


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
    assert "Take words out of the search" in texts(app)
    app.text_input(key="runs.search").set_value("").run()
    app.segmented_control(key="runs.filter").set_value("Failed").run()
    assert names(app) == ["Beta"]


def test_rows_that_are_left_out_hide_no_older_runs(workspace, open_app):
    for number in range(3):
        workspace.finished(f"Run {number}")
    request = {"recipe": workspace.recipe().model_dump(mode="json"), "projection": {"method": "umap"}}
    row = workspace.store.runs.submit("run", request, owner="test", requested_by=PAGE)
    workspace.store.runs.cancelled(row.id)
    app = open_app()
    app.session_state["runs.limit"] = 2
    app.switch_page("pages/runs.py").run()
    assert names(app) == ["Run 2", "Run 1"]
    app.button(key="runs.more").click().run()
    assert names(app) == ["Run 2", "Run 1", "Run 0"]


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


def test_rows_can_be_renamed_tagged_and_noted_and_found_again(workspace, open_app):
    row = workspace.finished("First")
    workspace.finished("Second")
    app = choose(open_app("runs"), "First")
    app.text_input(key=f"runs.name.{row.id}").set_value("  Renamed   run ")
    app.text_area(key=f"runs.notes.{row.id}").set_value("odd <script>")
    app.session_state[f"runs.tags.{row.id}"] = ["paper", " paper ", "x" * 60]
    app.button(key=f"runs.save.{row.id}").click().run()
    assert not app.exception
    kept = workspace.store.runs.get(row.id)
    assert (kept.name, kept.notes, kept.tags) == ("Renamed run", "odd <script>", ["paper", "x" * 40])
    for words, found in (("paper", ["Renamed run"]), ("script", ["Renamed run"]), ("second", ["Second"])):
        app.text_input(key="runs.search").set_value(words).run()
        assert names(app) == found


def test_several_finished_runs_are_compared(workspace, open_app):
    one, two = workspace.finished("One"), workspace.finished("Two")
    workspace.failed("Three", "No.")
    app = choose(open_app("runs"), "One", "Three")
    assert app.button(key="runs.compare").disabled
    app = choose(open_app("runs"), "One", "Two", "Three")
    app.button(key="runs.compare").click().run()
    assert not app.exception
    assert set(app.query_params["runs"].split(",")) == {one.id, two.id}


def test_every_kind_of_work_is_listed_by_its_name(workspace, open_app):
    runs = workspace.store.runs
    workspace.finished("A run")
    for kind in all_kinds():
        if kind != "run":
            row = runs.submit(kind, {"for": kind}, name=f"Some {kind}", owner="test")
            runs.fail(row.id, "No.") if kind == "import" else runs.cancelled(row.id)
    at_work = runs.submit("sweep", {}, name="A slow sweep")
    app = open_app("runs")
    assert not app.exception
    assert {"Some sweep", "Some finetune", "Some import", "A run"} <= set(names(app))
    assert "Some preflight" not in names(app)
    assert app.button(key=f"runs.cancel.{at_work.id}")
    app.selectbox(key="runs.kind").set_value("Everything").run()
    assert set(names(app)) == {"A run", *(f"Some {kind}" for kind in all_kinds() if kind != "run")}
    app.selectbox(key="runs.kind").set_value("Import").run()
    assert names(app) == ["Some import"]
    assert list(app.dataframe[0].value["State"]) == ["Failed"]
    app = choose(app, "Some import")
    assert not app.exception
    assert "Import" in texts(app)


def sweep_with_runs(workspace):
    sweep = workspace.store.runs.submit("sweep", {"recipe": {}, "settings": []}, name="A sweep", owner="test")
    for number in range(2):
        key = f"{number:02x}" * 32
        with workspace.store.create(key, step="bundle") as folder:
            write_run(folder, made_report(recipe=workspace.recipe()))
        request = {"recipe": workspace.recipe().model_dump(mode="json"), "point": {"number": number}}
        workspace.store.runs.adopt(sweep.id, key, name=f"Point {number}", request=request)
    workspace.store.runs.finish(sweep.id, "ee" * 32)
    return workspace.store.runs.get(sweep.id)


def test_the_runs_of_a_sweep_are_listed_under_it_and_go_with_it(workspace, open_app):
    sweep = sweep_with_runs(workspace)
    app = open_app("runs")
    assert names(app) == ["A sweep"]
    app = choose(app, "A sweep")
    assert list(app.dataframe[1].value["Run"]) == ["Point 0", "Point 1"]
    app.session_state[f"runs.inside.{sweep.id}"] = {"selection": {"rows": [1], "columns": [], "cells": []}}
    app.run()
    app.button(key="runs.delete").click().run()
    assert workspace.store.runs.list(parent=sweep.id) == []
    app.button(key="runs.undo.button").click().run()
    assert len(workspace.store.runs.list(parent=sweep.id)) == 2
    app = choose(app, "A sweep")
    app.session_state[f"runs.inside.{sweep.id}"] = {"selection": {"rows": [1], "columns": [], "cells": []}}
    app.run()
    app.button(key="runs.inside.open").click().run()
    assert not app.exception
    opened = workspace.store.runs.get(app.query_params["run"])
    assert (opened.name, opened.parent) == ("Point 1", sweep.id)


def test_storage_is_told_for_each_run(workspace, open_app):
    sweep_with_runs(workspace)
    app = choose(open_app("runs"), "A sweep")
    assert "not shared with other runs" in texts(app).replace("\\", "")


def test_a_page_that_waits_for_a_locked_table_says_so(workspace, open_app):
    app = open_app("runs")
    app.session_state["runs.storage"] = True
    app.run()
    other = sqlite3.connect(workspace.store.root / "runs.sqlite", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(5, other.rollback).start()
    app.button(key="runs.gc.preview").click().run()
    assert not app.exception
    assert any("The run table is locked by another program" in toast.value for toast in app.toast)
    assert workspace.store.runs.list(kinds=["gc"])


def test_a_clean_up_is_previewed_before_it_is_done(workspace, open_app):
    store = workspace.store
    store.runs.list()  # the table is older than what it is to collect
    with store.create("cd" * 32, step="features") as folder:
        (folder / "x").write_bytes(b"0" * 2_000_000)
    app = open_app("runs")
    app.session_state["runs.storage"] = True
    app.run()
    app.button(key="runs.gc.preview").click().run()
    assert not app.exception
    row = store.runs.list(kinds=["gc"])[0]
    assert (row.state, row.request["dry"], row.request["days"]) == ("queued", True, 7)
    found = collect(store, grace=0, dry=True)
    with store.create("ab" * 32, step="collect") as folder:
        found.write(folder)
    store.runs.claim_next("test", kinds=["gc"])
    store.runs.finish(row.id, "ab" * 32)
    app.run()
    assert "2.0 MB would be freed: 1 artefacts" in texts(app).replace("\\", "")
    assert store.find("cd" * 32) is not None
    app.button(key="runs.gc.go").click().run()
    assert store.runs.list(kinds=["gc"])[0].request["dry"] is False


def test_the_device_panel_says_what_computes_and_how_full_it_is(workspace, open_app):
    from engine.service.devices import describe_devices
    from engine.store.owners import this_process

    app = open_app("runs")
    app.session_state["devices"] = True
    app.run()
    assert "The engine is not running" in texts(app).replace("\\", "")
    owner = this_process("service")
    workspace.store.lease.acquire(owner, "any")
    gpu = {"name": "cuda:0", "title": "A GPU", "dtype": "bfloat16", "used": 2 * 2**30, "total": 8 * 2**30}
    workspace.store.lease.renew(owner, state="ready", workers=3, busy=1, devices=[*describe_devices(()), gpu])
    app.run()
    assert not app.exception
    said = texts(app).replace("\\", "")
    assert "At work on 1 run." in said
    bars = " ".join(bar.proto.text for bar in app.get("progress")).replace("\\", "")
    assert "A GPU · encoders in bfloat16 · 2.0 GiB of 8.0 GiB used" in bars
    assert "by MergeLens" in bars
