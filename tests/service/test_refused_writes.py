"""Writes that the run table refuses for a moment: no run waits for ever for what was not heard, no line is lost."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from paper_cluster import Table, step

from engine.errors import DiskFull, StoreError
from engine.pipeline.graph import Part, Plan
from engine.service import main
from engine.service.cluster import Event
from engine.service.worker import Failure

REFUSED = {"full": DiskFull("The disk is full."), "fault": StoreError("The run table cannot be used.")}


class Refusing:
    """A method that raises the first times that it is called."""

    def __init__(self, method: Callable, error: Exception, times: float = 1) -> None:
        self.method, self.error, self.left = method, error, times

    def __call__(self, *arguments, **named):
        if self.left > 0:
            self.left -= 1
            raise self.error
        return self.method(*arguments, **named)


@pytest.fixture
def refuse(monkeypatch):
    """Have a method of the table refuse so many times."""

    def set_up(place, name, error, times=1):
        made = Refusing(getattr(place, name), error, times)
        monkeypatch.setattr(place, name, made)
        return made

    return set_up


def turn(table, condition=lambda: False, seconds=0.6):
    """Turn the loop as the service does, which goes on after most errors."""
    deadline, failures = time.monotonic() + seconds, 0
    while not condition() and time.monotonic() < deadline:
        failures = main._tick(table.loop, failures)


def all_ended(table, *runs):
    turn(table, lambda: not any(table.store.runs.get(run.id).active for run in runs), 10.0)
    return [table.store.runs.get(run.id).state for run in runs]


@pytest.mark.parametrize("error", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("times", [1, 3])
def test_a_refused_row_of_a_part_keeps_nobody_waiting_and_is_added_later(store, refuse, error, times):
    table = Table(store, w=False)
    shared = step("shared")
    part = Part(shared.key, "part", {"recipe": {}})
    sweep, run = table.submit(shared, kind="sweep", parts=(part,)), table.submit(shared)
    refuse(store.runs, "adopt", error, times)
    table.start("w")
    table.inbox.put(done(table))
    assert all_ended(table, sweep, run) == ["finished", "finished"]
    assert [row.name for row in store.runs.list(parent=sweep.id)] == ["part"]
    assert table.cluster.history == ["shared"]


def test_a_part_that_is_refused_for_ever_is_named_and_the_others_are_listed(store, refuse):
    table = Table(store, w=False)
    steps = [step(label) for label in "ab"]
    parts = tuple(Part(one.key, one.label, {"recipe": {}}) for one in steps)
    sweep = table.submit(*steps, kind="sweep", parts=parts)
    refuse(store.runs, "adopt", REFUSED["fault"], 10)
    for label in "ab":
        turn(table, lambda label=label: table.line("w") == [label], 5.0)
        table.inbox.put(done(table))
    assert all_ended(table, sweep) == ["finished"]
    assert [row.name for row in store.runs.list(parent=sweep.id)] == ["b"]
    assert any(line.line.startswith("a: the run is there") for line in store.runs.logs.read(sweep.id))


@pytest.mark.parametrize("error", REFUSED.values(), ids=REFUSED)
def test_an_end_that_is_refused_is_written_later(store, refuse, error):
    table = Table(store, w=False)
    run, other = table.submit(step("shared")), table.submit(step("shared"))
    refuse(store.runs, "finish", error)
    table.start("w")
    table.inbox.put(done(table))
    assert all_ended(table, run, other) == ["finished", "finished"]
    assert table.cluster.history == ["shared"]


@pytest.mark.parametrize("error", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("name", ["append", "fail"])
def test_a_failure_that_is_refused_is_written_later(store, refuse, error, name):
    table = Table(store, w=False)
    run, other = table.submit(step("shared")), table.submit(step("shared"))
    refuse(store.runs.logs if name == "append" else store.runs, name, error)
    table.start("w")
    ticket = table.cluster.given["w"][0][0]
    table.inbox.put(Event("failed", ticket, {"failure": Failure("No.", "MergeError")}))
    assert all_ended(table, run, other) == ["failed", "failed"]
    assert {store.runs.get(one.id).error for one in (run, other)} == {"No."}
    assert table.cluster.history == ["shared"]


@pytest.mark.parametrize("name", ["set_progress", "cancelled"])
def test_a_cancellation_that_is_refused_is_written_later(store, refuse, name):
    table = Table(store, w=False)
    run = table.submit(step("slow"))
    store.runs.request_cancel(run.id)
    time.sleep(0.3)  # what the row says of the run is written four times a second
    refuse(store.runs, name, REFUSED["fault"])
    assert all_ended(table, run) == ["cancelled"]
    assert not table.loop.jobs


@pytest.mark.parametrize("times", [1, 2])
def test_a_run_whose_state_cannot_be_told_is_computed_all_the_same(store, refuse, monkeypatch, times):
    table = Table(store, w=False)
    monkeypatch.setattr("engine.store.reporter.INTERVAL", 0.0)
    refuse(store.runs, "set_progress", REFUSED["fault"], times)
    table.plans.append(Plan((step("a"),), step("a").key))
    run = store.runs.submit("run", {})
    turn(table, lambda: "w" in table.cluster.given, 5.0)
    table.start("w")
    table.inbox.put(done(table))
    assert all_ended(table, run) == ["finished"]


def test_lines_that_were_refused_are_written_later(store, refuse):
    table = Table(store, w=False)
    run = table.submit(step("a"))
    job = table.loop.jobs[run.id]
    refuse(store.runs.logs, "append", REFUSED["fault"])
    job.log("a line")
    with pytest.raises(StoreError):
        job.write(now=True)
    job.write(now=True)
    assert [line.line for line in store.runs.logs.read(run.id)].count("a line") == 1


@pytest.mark.parametrize("holds_out", [True, False])
def test_who_holds_out_waits_for_room_for_parts_and_lines(store, refuse, monkeypatch, holds_out):
    monkeypatch.setattr("engine.store.database.ROOM_WAIT", 0.0)
    run = store.runs.submit("sweep", {})
    writes = (
        lambda: store.runs.adopt(run.id, "ab" * 32, name="a", request={}),
        lambda: store.runs.logs.append(run.id, "a line"),
    )
    monkeypatch.setattr(store.database, "holds_out", lambda: holds_out)
    for write in writes:
        refuse(store.database, "write", REFUSED["full"], 2)
        if holds_out:
            write()
        else:
            with pytest.raises(DiskFull):
                write()
    assert [row.name for row in store.runs.list(parent=run.id)] == (["a"] if holds_out else [])
    assert len(store.runs.logs.read(run.id)) == holds_out


def done(table):
    """The event of a worker's first step that is done."""
    return Event("done", table.cluster.given["w"][0][0])
