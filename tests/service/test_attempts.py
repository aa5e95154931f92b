"""Steps that do not start, workers that end with a step, and steps that a quick worker is given ahead."""

from __future__ import annotations

import time

from paper_cluster import ELSEWHERE, Table, step

from engine.service.cluster import Event
from engine.store.owners import this_process


def test_a_step_that_does_not_start_goes_to_another_worker(store):
    table = Table(store, w1=False, w2=False)
    first = table.submit(step("first"))
    assert table.labels() == {"w1": "first"}
    table.submit(step("second"))
    assert table.labels() == {"w1": "first", "w2": "second"}
    table.start("w2")
    attempt = next(iter(table.loop.board._attempts.values()))
    attempt.start_by = 0.0
    table.turn()
    assert table.cluster.told_to_stop == ["w1"]
    assert table.cluster.history == ["first", "second"], "the worker that was given it first gets nothing more"
    table.end("w2")
    assert table.labels()["w2"] == "first"
    table.start("w2")
    table.end("w2")
    assert store.runs.get(first.id).state == "finished"


def test_a_step_that_was_taken_back_and_starts_all_the_same_is_stopped(store):
    table = Table(store, w=False)
    run = table.submit(step("slow"))
    ticket = table.cluster.given["w"][0][0]
    store.runs.request_cancel(run.id)
    table.turn()
    assert store.runs.get(run.id).state == "cancelled"
    table.inbox.put(Event("started", ticket, {"owner": ELSEWHERE}))
    table.turn()
    assert table.cluster.told_to_stop == ["w", "w"]
    assert table.cluster.killed == []
    table.end("w")
    assert table.loop.board._attempts == {}


def test_a_step_that_ends_three_workers_fails_alone(store):
    table = Table(store, w1=False, w2=False)
    bad, good = step("bad"), step("good")
    alone, shared, other = table.submit(bad), table.submit(bad, step("more", bad)), table.submit(good)
    assert table.labels() == {"w1": "bad", "w2": "good"}
    for _ in range(3):
        table.start("w1")
        table.die("w1")
    rows = [store.runs.get(run.id) for run in (alone, shared)]
    assert {(row.state, row.error_kind) for row in rows} == {("failed", "WorkerDied")}
    assert all(row.error.startswith("The worker process ended 3 times while it computed 'bad'.") for row in rows)
    assert f"shared with '{shared.id}'" in "".join(line.line for line in store.runs.logs.read(alone.id))
    assert f"shared with '{alone.id}'" in "".join(line.line for line in store.runs.logs.read(shared.id))
    table.end("w2")
    assert store.runs.get(other.id).state == "finished"


def test_a_worker_that_ends_before_it_starts_a_step_is_not_held_against_the_step(store):
    table = Table(store, w=False)
    run = table.submit(step("unlucky"))
    for _ in range(5):
        table.die("w")
    table.end("w")
    assert store.runs.get(run.id).state == "finished"


def test_a_worker_at_quick_steps_is_given_the_next_ones_ahead(store):
    table = Table(store, w=False)
    steps = [step(label) for label in "abcd"]
    run = table.submit(*steps, step("last", *steps))
    table.turn()
    assert table.line("w") == ["a"], "nobody knows yet that it is quick"
    table.start("w")
    table.end("w")
    table.turn()
    assert table.line("w") == ["b", "c", "d"]
    for _ in range(4):
        table.start("w")
        table.end("w")
    assert store.runs.get(run.id).state == "finished"
    assert table.cluster.history == ["a", "b", "c", "d", "last"]


def test_a_free_worker_comes_before_one_that_soon_is(store):
    table = Table(store, w1=False, w2=False)
    table.quick("w1")
    table.submit(step("a"), step("b"))
    assert (table.line("w1"), table.line("w2")) == (["a"], ["b"])


def test_steps_that_wait_behind_a_longer_one_are_taken_back(store):
    table = Table(store, w=False)
    table.quick()
    run = table.submit(step("a"), step("b"))
    table.start("w")
    first, second = table.loop.board._attempts.values()
    assert table.line("w") == ["a", "b"]
    first.started -= 1.0
    second.start_by -= 1.0
    table.turn()
    assert table.cluster.told_to_stop == ["w"]
    table.turn()
    assert table.line("w") == ["a", "b"], "it is not given to this worker again"
    table.end("w")
    assert table.line("w") == ["b", "b"], "now it is, because its worker is not to blame"
    table.end("w")
    assert store.runs.get(run.id).state == "running", "the worker did not compute what was taken back"
    table.start("w")
    table.end("w")
    assert store.runs.get(run.id).state == "finished"


def test_nothing_waits_behind_a_kind_that_took_long_the_last_time(store):
    table = Table(store, w=False)
    table.quick()
    table.submit(step("a"), step("b"), step("c"))
    table.start("w")
    next(iter(table.loop.board._attempts.values())).started -= 1.0
    table.end("w")
    table.turn()
    assert table.line("w")[:1] == ["b"]
    assert table.loop.board._open(["w"]) == []


def test_a_worker_that_ends_before_it_says_that_it_started_a_step_is_known_by_its_claim(store):
    table = Table(store, w=False)
    run = table.submit(step("bad"))
    ended = this_process("worker").rsplit(":", 1)[0] + ":1"  # this process number, but begun at another time
    for _ in range(3):
        assert store.runs.get(run.id).state == "running"
        assert store.claims.take(step("bad").key, ended)
        table.die("w")
    assert store.runs.get(run.id).error_kind == "WorkerDied"
    assert store.claims.left_behind(step("bad").key, 0.0) == ""


def test_a_claim_counts_also_where_the_database_answers_late(store, monkeypatch):
    read = store.claims._database.read

    def late(*arguments):
        time.sleep(0.05)
        return read(*arguments)

    monkeypatch.setattr(store.claims._database, "read", late)
    key, ended, given = step("bad").key, f"{this_process('worker').rsplit(':', 1)[0]}:1", time.time()
    assert store.claims.take(key, ended)
    assert store.claims.left_behind(key, given) == ended
    assert store.claims.left_behind(key, time.time()) == "", "an older claim is another attempt's"


def test_steps_that_waited_for_a_worker_that_ends_are_not_blamed(store):
    table = Table(store, w=False)
    table.quick()
    bad, waiting = table.submit(step("bad")), table.submit(step("waiting"))
    for _ in range(3):
        table.turn()
        assert table.line("w") == ["bad", "waiting"]
        table.start("w")
        table.die("w")
    assert store.runs.get(bad.id).error_kind == "WorkerDied"
    table.turn()
    table.start("w")
    table.end("w")
    assert store.runs.get(waiting.id).state == "finished"
