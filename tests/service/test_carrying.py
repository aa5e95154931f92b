"""Requests of the command line that a real engine carries out."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import sqlalchemy as sa

from engine.errors import Cancelled, EngineError
from engine.pipeline import local
from engine.pipeline.local import in_this_process, run_recipe
from engine.recipe import parse_recipe
from engine.report import read_report
from engine.service.carrying import by_service
from engine.store import Store
from engine.store.owners import is_fresh
from engine.store.tables import run as run_table
from tests.tiny_zoo import make_zoo


def recipe_of(zoo, **parts):
    return parse_recipe({"zoo": zoo, **parts})


def test_a_quiet_command_is_heard_of(tmp_path, monkeypatch):
    """An engine on another host takes rows away of which nobody has heard for some seconds."""
    store = Store(tmp_path / "store")
    heard = []

    def quiet(plan, store, listener, made):
        row = store.runs.list()[0]
        long_ago = sa.update(run_table).values(heartbeat=time.time() - 100)
        for _ in range(2):  # again and again
            store.database.write(lambda connection: connection.execute(long_ago))
            ends = time.monotonic() + 20
            while not is_fresh(store.runs.get(row.id).heartbeat) and time.monotonic() < ends:
                time.sleep(0.01)
            heard.append(is_fresh(store.runs.get(row.id).heartbeat))
        return store.root

    monkeypatch.setattr(local, "HEARTBEAT", 0.05)
    monkeypatch.setattr(local, "run_inline", quiet)
    assert in_this_process(store, "gc", {"asked": 1.0, "dry": True}, "Quiet", None) == store.root
    assert heard == [True, True]
    assert store.runs.list()[0].state == "finished"
    ends = time.monotonic() + 5
    while "signs of life" in {thread.name for thread in threading.enumerate()}:
        assert time.monotonic() < ends


@pytest.mark.slow
def test_the_engine_gives_what_this_process_gives(own_service, tmp_path, monkeypatch):
    """The zoo is named from the present folder, which is not the engine's; Ctrl-C and refusals end the row."""
    make_zoo(tmp_path / "zoo", experts=("alpha", "beta"))
    own_service.script = "run_traced_service.py"
    monkeypatch.setenv("TRACED_STEPS", str(tmp_path / "trace"))
    own_service.start()
    monkeypatch.chdir(tmp_path)
    store, told = own_service.store, []

    def listen(fraction, message):
        told.append(fraction)

    report = run_recipe(
        recipe_of("zoo"), store, view={"method": "pca"}, out=tmp_path / "out", progress=listen, carry=by_service
    )
    row = store.runs.list()[0]
    assert (row.kind, row.state, row.requested_by) == ("run", "finished", "command line")
    assert row.request["recipe"]["zoo"] == str(tmp_path / "zoo")
    assert store.lease.last_page() == 0, "a command is nobody for whom a worker is kept free"
    assert (tmp_path / "trace").read_text(), "workers were at work"
    assert told == sorted(told)
    assert told[-1] == 1
    assert (tmp_path / "out" / "projections" / "pca").is_dir()
    here = run_recipe(recipe_of(str(tmp_path / "zoo")), Store(tmp_path / "other"), carry=in_this_process)
    assert report.accuracy == here.accuracy
    assert read_report(tmp_path / "out").accuracy == here.accuracy

    def stop(fraction, message):
        raise KeyboardInterrupt

    longer = recipe_of("zoo", calibrators=[{"method": "surgery", "params": {"rank": 2, "steps": 100_000}}])
    with pytest.raises(KeyboardInterrupt):
        run_recipe(longer, store, progress=stop, carry=by_service)
    assert own_service.ended(store.runs.list()[0]).state == "cancelled"

    def cancel(fraction, message):
        store.runs.request_cancel(store.runs.list()[0].id)

    with pytest.raises(Cancelled, match="`runs resume "):
        run_recipe(longer, store, progress=cancel, carry=by_service)
    with pytest.raises(EngineError, match="no expert 'gamma'"):
        run_recipe(recipe_of("zoo", experts=["alpha", "gamma"]), store, carry=by_service)
    assert store.runs.list()[0].state == "failed"


def test_where_the_engine_is_apart_and_absent_nothing_is_queued(store, tmp_path, monkeypatch):
    monkeypatch.setenv("MERGELENS_ENGINE", "apart")
    make_zoo(tmp_path / "zoo", experts=("alpha", "beta"))
    with pytest.raises(EngineError, match="who runs this app starts it"):
        run_recipe(recipe_of(str(tmp_path / "zoo")), store, carry=by_service)
    assert not store.runs.list()


def test_an_engine_that_does_not_start_is_not_waited_for(store, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "engine.service.client.start_command", lambda: [sys.executable, "-c", "raise SystemExit('no memory')"]
    )
    make_zoo(tmp_path / "zoo", experts=("alpha", "beta"))
    with pytest.raises(EngineError, match=r"ended while it started\. .*no memory"):
        run_recipe(recipe_of(str(tmp_path / "zoo")), store, carry=by_service)
    assert [row.state for row in store.runs.list()] == ["cancelled"]
