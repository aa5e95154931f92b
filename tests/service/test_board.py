"""Placement of steps on workers, with a cluster that only writes down what it is told."""

from __future__ import annotations

import time
from functools import partial

import pytest
from paper_cluster import Table, step

from engine.pipeline.executor import PlanProgress
from engine.pipeline.graph import Part, Plan
from engine.service.loop import MAX_JOBS
from engine.store import FIRST_NUMBERS
from engine.store.passing import forget_passing


def test_inputs_come_first_and_workers_take_one_step_each(store):
    table = Table(store, w1=False, w2=False)
    first, second, third = step("first"), step("second"), step("third")
    run = table.submit(first, second, third, step("last", first, third))
    assert table.labels() == {"w1": "first", "w2": "second"}
    table.end("w1")
    assert table.labels() == {"w1": "third", "w2": "second"}
    table.end("w2")
    assert table.labels() == {"w1": "third"}
    table.end("w1")
    assert list(table.labels().values()) == ["last"]
    table.end(*table.labels())
    assert store.runs.get(run.id).state == "finished"
    assert table.loop.board._nodes == {}


def test_first_numbers_that_are_kept_are_told_when_a_run_begins(store):
    first = step("first", retold=(FIRST_NUMBERS, "first.json"))
    with store.create(first.key, step=first.name) as folder:
        (folder / "first.json").write_text('{"means": {}}')
    table = Table(store, w=False)
    run = table.submit(first, step("last"))
    table.turn(lambda: store.runs.get(run.id).metrics)
    assert store.runs.get(run.id).metrics == {FIRST_NUMBERS: {"means": {}}}


def test_steps_that_want_a_gpu_wait_for_it(store):
    table = Table(store, cpu=False, gpu=True)
    table.submit(step("plain"), step("encode 1", gpu=True), step("encode 2", gpu=True), step("plain 2"))
    assert table.labels() == {"cpu": "plain", "gpu": "encode 1"}
    table.end("cpu")
    assert table.labels() == {"cpu": "plain 2", "gpu": "encode 1"}
    table.end("gpu")
    assert table.labels()["gpu"] == "encode 2"


def kept(label):
    """A step of a kind that keeps something in its worker's memory."""
    return step(label, name="kept", resident=True)


def test_a_step_that_keeps_something_in_memory_is_given_the_worker_of_the_last_one(store):
    table = Table(store, w1=False, w2=False)
    table.submit(step("long"))
    table.submit(kept("first"), kind="preview")
    assert table.labels() == {"w1": "long", "w2": "first"}
    table.end("w2")
    table.end("w1")
    table.submit(kept("second"), kind="preview")
    assert table.labels() == {"w2": "second"}
    table.end("w2")
    table.submit(step("a"), step("b"))
    table.submit(kept("third"), kind="preview")
    table.end("w1")
    assert table.labels() == {"w1": "third", "w2": "b"}, "a worker that is busy with something else is not waited for"
    table.end("w1")
    table.end("w2")
    table.submit(kept("fourth"), kind="preview")
    assert table.labels() == {"w1": "fourth"}
    del table.cluster.alive["w1"]
    table.die("w1")
    assert table.labels() == {"w2": "fourth"}, "nor is one that has gone"


def lasting(table, seconds):
    """Have steps of the toy kind be known to take so long."""
    table.loop.board.seconds["write"] = seconds


def test_long_steps_leave_a_worker_to_what_is_short_or_waited_for(store):
    store.lease.page_seen()
    table = Table(store, w1=False, w2=False)
    lasting(table, 60.0)
    table.submit(step("a"), step("b"), step("c"))
    assert table.labels() == {"w1": "a"}
    table.submit(step("brief", name="brief"))
    assert table.labels() == {"w1": "a", "w2": "brief"}
    table.end("w2")
    table.submit(step("shown"), kind="projection")
    assert table.labels() == {"w1": "a", "w2": "shown"}, "somebody waits for it, however long it takes"
    table.end("w2")
    lasting(table, 60.0)
    table.end("w1")
    lasting(table, 60.0)
    table.turn()
    assert sorted(table.labels().values()) == ["b"]


def test_long_steps_take_the_only_worker_and_all_but_one_of_many(store):
    store.lease.page_seen()
    alone = Table(store, w=False)
    lasting(alone, 60.0)
    alone.submit(step("a"))
    assert alone.labels() == {"w": "a"}
    alone.end("w")
    many = Table(store, w1=False, w2=False, w3=False)
    lasting(many, 60.0)
    many.submit(*(step(name) for name in "defg"))
    assert sorted(many.labels().values()) == ["d", "e"]


def test_long_steps_take_every_worker_while_nobody_has_a_page_open(store):
    table = Table(store, w1=False, w2=False)
    lasting(table, 60.0)
    table.submit(step("a"), step("b"), step("c"))
    assert table.labels() == {"w1": "a", "w2": "b"}
    store.lease.page_seen()
    table.turn()
    table.end("w1")
    lasting(table, 60.0)
    table.turn()
    assert table.labels() == {"w2": "b"}, "the first worker that is free is kept so"


def test_a_step_of_an_unknown_kind_counts_as_long_once_it_has_taken_long(store, monkeypatch):
    store.lease.page_seen()
    table = Table(store, w1=False, w2=False)
    table.submit(step("a", name="unknown"))
    table.start("w1")
    (attempt,) = table.loop.board._attempts.values()
    attempt.started -= 60
    lasting(table, 60.0)
    table.submit(step("b"))
    assert table.labels() == {"w1": "a"}, "two long ones would hold both workers"
    table.end("w1")
    table.turn()
    assert list(table.labels().values()) == ["b"]


def test_progress_is_weighed_by_the_seconds_of_each_kind():
    brief, training = step("brief", name="brief"), step("training", name="training")
    plan = Plan((brief, training), training.key)
    needed = {brief.key, training.key}
    for seconds, expected in (({}, 0.5), ({"brief": 1.0, "training": 9.0}, 0.1), ({"training": 3.0}, 0.5)):
        progress = PlanProgress(plan, needed, seconds)
        progress.done[brief.key] = 1.0
        assert progress.fraction == pytest.approx(expected)
    found = PlanProgress(plan, {training.key}, {"training": 3.0})
    assert found.fraction == 0.0, "what was there before is not counted"


def test_a_superseded_preview_is_stopped_and_the_next_one_waits_for_its_worker(store):
    table = Table(store, w1=False, w2=False)
    first = table.submit(kept("first"), kind="preview")
    table.start("w1")
    store.runs.request_cancel(first.id)
    table.turn()
    table.submit(kept("second"), kind="preview")
    assert table.cluster.told_to_stop == ["w1"]
    assert table.labels() == {"w1": "first"}, "its memory is there"
    table.end("w1")
    assert table.labels() == {"w1": "second"}
    assert store.runs.get(first.id).state == "cancelled"


def test_what_passes_is_forgotten_while_the_service_runs(store, monkeypatch):
    table = Table(store, w=False)
    row = table.submit(kept("first"), kind="preview")
    table.end("w")
    assert store.runs.get(row.id).state == "finished"
    table.turn()
    assert store.runs.find(row.id), "it stays for minutes"
    monkeypatch.setattr("engine.service.loop.forget_passing", partial(forget_passing, kept=-1))
    other = table.submit(step("a run"))
    table.end("w")
    table.turn()
    assert store.runs.find(row.id) is None
    assert store.runs.get(other.id).state == "finished"


@pytest.mark.parametrize("gpu", [False, True])
def test_one_kind_of_worker_takes_everything(store, gpu):
    table = Table(store, only=gpu)
    table.submit(step("plain"), step("encode", gpu=True))
    table.end("only")
    assert table.cluster.history == ["plain", "encode"]


def test_older_runs_first_but_somebody_who_waits_before_all(store):
    table = Table(store, w=False)
    table.submit(step("a1"), step("a2"))
    table.submit(step("b1"))
    table.submit(step("view"), kind="projection")
    for _ in range(4):
        table.end("w")
    assert table.cluster.history == ["a1", "view", "a2", "b1"]


def test_only_so_many_runs_at_once(store):
    table = Table(store, w=False)
    for number in range(MAX_JOBS + 2):
        table.plans.append(Plan((step(f"s{number}"),), step(f"s{number}").key))
        store.runs.submit("run", {})
    table.turn(lambda: len(table.loop.board._nodes) == MAX_JOBS)
    table.turn()
    assert len(store.runs.list(states=["running"])) == MAX_JOBS
    table.end("w")
    assert len(store.runs.list(states=["queued"])) == 1


def test_a_step_that_two_want_goes_on_when_one_leaves(store):
    table = Table(store, w=False)
    shared = step("shared")
    one, two = table.submit(shared), table.submit(shared, step("more", shared))
    table.start("w")
    store.runs.request_cancel(one.id)
    table.turn()
    assert store.runs.get(one.id).state == "cancelled"
    assert table.cluster.told_to_stop == []
    store.runs.request_cancel(two.id)
    table.turn()
    assert store.runs.get(two.id).state == "cancelling"
    assert table.cluster.told_to_stop == ["w"]
    table.end("w")
    assert store.runs.get(two.id).state == "cancelled"
    assert table.loop.board._nodes == {}


def test_a_step_that_is_wanted_again_while_it_stops_is_computed_again(store):
    table = Table(store, w=False)
    shared = step("shared")
    one = table.submit(shared)
    table.start("w")
    store.runs.request_cancel(one.id)
    table.turn()
    two = table.submit(shared)
    table.end("w")
    assert store.runs.get(one.id).state == "cancelled"
    assert table.cluster.history == ["shared", "shared"]
    table.end("w")
    assert store.runs.get(two.id).state == "finished"


def test_a_step_that_ends_although_it_was_to_stop_sets_the_run_free(store):
    table = Table(store, w=False)
    shared = step("shared")
    one = table.submit(shared)
    table.start("w")
    store.runs.request_cancel(one.id)
    table.turn()
    two = table.submit(shared)
    table.end("w")
    assert store.runs.get(one.id).state == "cancelled"
    table.end("w")  # its artefact is there already
    assert store.runs.get(two.id).state == "finished"


def test_all_who_want_a_failing_step_fail(store):
    table = Table(store, w1=False, w2=False)
    bad, other = step("bad"), step("other")
    one, two = table.submit(bad, other), table.submit(bad)
    table.start("w2")
    table.end("w1", message="No.", kind="MergeError")
    assert [store.runs.get(run.id).error for run in (one, two)] == ["No.", "No."]
    assert table.cluster.told_to_stop == ["w2"]
    table.end("w2")
    assert table.loop.board._nodes == {}


def test_a_missing_input_is_made_again(store):
    table = Table(store, w=False)
    source = step("source")
    reader = step("reader", source)
    with store.create(source.key, step="toy"):
        pass
    run = table.submit(source, reader)
    assert table.labels() == {"w": "reader"}
    store.delete(source.key)
    table.end("w", message="Gone.", kind="MissingInput", missing=source.key)
    table.turn(table.labels)
    assert table.labels() == {"w": "source"}
    table.end("w")
    assert table.labels() == {"w": "reader"}
    table.end("w", message="Gone.", kind="MissingInput", missing="f" * 64)
    assert store.runs.get(run.id).error == "Gone."


def test_rows_without_a_job_go_back_to_the_queue(store):
    table = Table(store, w=False)
    run = store.runs.submit("run", {})
    store.runs.claim_next(table.owner)
    table.loop._due["poll"] = time.monotonic() + 60
    table.loop.tick()
    assert store.runs.get(run.id).state == "queued"


def test_closing_gives_rows_back(store):
    table = Table(store, w=False)
    run = table.submit(step("a"))
    table.loop.close()
    assert store.runs.get(run.id).state == "queued"


def sweep_of(store, points):
    """A plan of points that share a step, with a table; it goes on without points that fail."""
    shared = step("shared")
    runs = {name: step(name, shared) for name in points}

    def plan(alive):
        table = step("table of " + ",".join(alive), *(runs[name] for name in alive))

        def without(key, reason):
            rest = [name for name in alive if runs[name].key != key]
            return plan(rest) if rest and len(rest) < len(alive) else None

        parts = tuple(Part(runs[name].key, name, {"recipe": {}}, (shared.key,)) for name in alive)
        return Plan((shared, *(runs[name] for name in alive), table), table.key, parts=parts, without=without)

    return plan(points)


def test_a_part_that_fails_leaves_the_others(store):
    table = Table(store, w1=False, w2=False)
    table.plans.append(sweep_of(store, ["a", "b", "c"]))
    run = store.runs.submit("sweep", {})
    table.turn(lambda: table.labels())
    table.end("w1")
    assert table.labels() == {"w1": "a", "w2": "b"}
    table.end("w1", message="No.", kind="MergeError")
    assert store.runs.get(run.id).state == "running"
    assert table.labels() == {"w1": "c", "w2": "b"}
    table.end("w2")
    assert [row.name for row in store.runs.list(parent=run.id)] == ["b"]
    table.end("w1")
    assert list(table.labels().values()) == ["table of b,c"]
    table.end(*table.labels())
    row = store.runs.get(run.id)
    assert (row.state, row.error, len(row.step_keys)) == ("finished", "", 4)
    assert {child.name for child in store.runs.list(parent=run.id)} == {"b", "c"}
    assert any("goes on without it" in line.line for line in store.runs.logs.read(run.id))
    assert table.loop.board._nodes == {}


def test_a_shared_step_that_fails_fails_all(store):
    table = Table(store, w=False)
    table.plans.append(sweep_of(store, ["a", "b"]))
    run = store.runs.submit("sweep", {})
    table.turn(lambda: table.labels())
    table.end("w", message="No.", kind="MergeError")
    assert (store.runs.get(run.id).state, store.runs.get(run.id).error) == ("failed", "No.")
    assert table.loop.board._nodes == {}


def test_the_last_part_that_fails_fails_the_run(store):
    table = Table(store, w=False)
    table.plans.append(sweep_of(store, ["a", "b"]))
    run = store.runs.submit("sweep", {})
    table.turn(lambda: table.labels())
    table.end("w")
    for _ in range(2):
        table.end("w", message="No.", kind="MergeError")
    assert store.runs.get(run.id).state == "failed"
    assert store.runs.list(parent=run.id) == []


def test_a_sweep_that_is_cancelled_keeps_what_was_made(store):
    table = Table(store, w=False)
    table.plans.append(sweep_of(store, ["a", "b"]))
    run = store.runs.submit("sweep", {})
    table.turn(lambda: table.labels())
    table.end("w")
    table.end("w")
    store.runs.request_cancel(run.id)
    table.turn()
    assert store.runs.get(run.id).state == "cancelled"
    assert [row.name for row in store.runs.list(parent=run.id)] == ["a"]
    assert table.loop.board._nodes == {}


def test_a_run_is_adopted_once(store):
    parent = store.runs.submit("sweep", {})
    for _ in range(2):
        store.runs.adopt(parent.id, "ab" * 32, name="a", request={"recipe": {}}, step_keys=["cd" * 32])
    row = store.runs.list(parent=parent.id)[0]
    assert (row.state, row.result, row.step_keys, row.elapsed) == ("finished", "ab" * 32, ["cd" * 32, "ab" * 32], 0.0)
    store.runs.delete(row.id)
    store.runs.adopt(parent.id, "ab" * 32, name="a", request={})
    assert store.runs.list(parent=parent.id) == []
