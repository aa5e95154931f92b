"""The run table, also with several processes at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from engine.errors import StoreError
from engine.store import Reporter, Store
from engine.store.logs import MAX_LOG_LINES
from engine.store.owners import is_alive, this_process

ROOT = Path(__file__).parents[2]
DEAD = this_process("service").rsplit(":", 1)[0] + ":1"  # this process number, but begun at another time


@pytest.fixture
def store(tmp_path, database_url):
    found = Store(tmp_path, database_url=database_url)
    yield found
    found.database.close()


@pytest.fixture
def runs(store):
    return store.runs


def python(code: str, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_run_from_submission_to_end(runs):
    run = runs.submit("run", {"recipe": {"zoo": "mini8"}}, name="First", tags=["demo"], requested_by="somebody")
    assert (run.state, run.active, run.request["recipe"]) == ("queued", True, {"zoo": "mini8"})
    assert runs.claim_next("me").id == run.id
    assert runs.claim_next("me") is None
    runs.set_progress(run.id, fraction=0.5, message="half", step="Merging", step_number=1, step_count=2)
    runs.set_step_keys(run.id, ["k1", "k2", "k1"])
    assert not runs.finish(run.id, "k2", owner="somebody else")
    assert runs.finish(run.id, "k2", owner="me")
    row = runs.get(run.id)
    assert (row.state, row.fraction, row.result, row.step_keys) == ("finished", 1.0, "k2", ["k1", "k2"])
    assert row.created <= row.started <= row.finished
    assert row.elapsed < 60
    runs.set_progress(run.id, fraction=0.1)
    assert runs.get(run.id).fraction == 1.0
    assert runs.references() == {"k1", "k2"}


def test_unknown_runs(runs):
    with pytest.raises(StoreError, match="There is no run 'nothing'"):
        runs.get("nothing")


def test_ids_sort_by_time(runs):
    ids = []
    for _ in range(5):
        ids.append(runs.submit("run", {}).id)
        time.sleep(0.002)
    assert ids == sorted(ids)
    assert [run.id for run in runs.list()] == ids[::-1]
    assert [runs.claim_next("me").id for _ in ids] == ids


def test_filters_and_search(runs):
    first = runs.submit("run", {"merge": "ties"}, name="Évaluation", tags=["paper", "x_y"])
    second = runs.submit("projection", {"method": "umap"}, parent=first.id, notes="100% of it")
    third = runs.submit("run", {}, tags=["pap"])

    def ids(**filters):
        return {run.id for run in runs.list(**filters)}

    assert ids(kinds=["projection"]) == ids(parent=first.id) == ids(search="umap") == ids(search="100%") == {second.id}
    assert ids(tag="paper") == ids(search="évaluation") | ids(search="Évaluation ties") == {first.id}
    assert ids(tag="pap") == {third.id}
    assert ids(search="x_y") == {first.id}
    assert ids(search="xzy") == set()
    assert ids(states=["finished"]) == set()
    assert len(runs.list(limit=2)) == 2
    runs.edit(third.id, name="New", tags=["new"])
    assert ids(tag="new", search="new") == {third.id}
    with pytest.raises(StoreError, match="state of a run cannot be edited"):
        runs.edit(third.id, state="finished")


def test_cancelling(runs):
    queued = runs.submit("run", {})
    assert runs.request_cancel(queued.id).state == "cancelled"
    held = runs.submit("run", {})
    me = this_process("service")
    runs.claim_next(me)
    assert runs.request_cancel(held.id).state == "cancelling"
    assert runs.cancelling(me) == [held.id]
    assert not runs.finish(held.id, "k")
    assert runs.cancelled(held.id, owner=me)
    assert runs.request_cancel(held.id).state == "cancelled"
    assert runs.resume(held.id).state == "queued"
    with pytest.raises(StoreError, match="is queued; only"):
        runs.resume(held.id)


def test_cancelling_what_a_dead_process_held(runs):
    run = runs.submit("run", {})
    runs.claim_next(DEAD)
    assert runs.request_cancel(run.id).state == "cancelled"


def test_the_end_of_a_service_is_no_failure_of_its_runs(runs):
    run, inline = runs.submit("run", {}), runs.submit("run", {}, owner=DEAD.replace("service", "inline"))
    mine = runs.submit("run", {}, owner=this_process("inline"))
    for _ in range(5):
        runs.claim_next(DEAD)
        assert runs.requeue_orphans() == [run.id]
    assert runs.get(run.id).state == "queued"
    assert [line.line for line in runs.logs.read(run.id)][-1] == (
        "The engine ended for the 5. time while it worked on this run, which is taken up again."
    )
    assert runs.get(inline.id).state == "failed"
    assert runs.get(mine.id).state == "running"


def test_a_run_that_ends_its_service_while_it_is_planned_is_not_taken_up_for_ever(runs):
    run = runs.submit("run", {})
    for _ in range(3):
        runs.claim_next(DEAD)
        runs.planning(run.id)
        taken = runs.requeue_orphans()
    assert taken == []
    assert (runs.get(run.id).state, runs.get(run.id).error_kind) == ("failed", "planning")
    assert "ended 3 times while it planned this run" in runs.get(run.id).error
    assert runs.resume(run.id).plannings == 0


def test_a_deleted_run_is_brought_back_before_it_is_resumed(runs):
    """Nobody takes a deleted row up, so it would wait for ever."""
    run = runs.submit("run", {})
    runs.request_cancel(run.id)
    runs.delete(run.id)
    with pytest.raises(StoreError, match="is deleted; only"):
        runs.resume(run.id)
    assert runs.get(run.id).state == "cancelled"
    runs.undelete(run.id)
    assert runs.resume(run.id).state == "queued"


def test_plannings_that_come_to_an_end_or_are_given_back_do_not_count(runs):
    run = runs.submit("run", {})
    for number in range(4):
        runs.claim_next(DEAD)
        runs.planning(run.id)
        if number % 2:
            runs.set_step_keys(run.id, ["aa" * 32])
            assert runs.requeue_orphans() == [run.id]
        else:
            assert runs.release(DEAD) == 1
    assert (runs.get(run.id).state, runs.get(run.id).plannings) == ("queued", 0)


def test_the_service_with_the_lease_takes_from_any_other_service(runs):
    run = runs.submit("run", {})
    runs.claim_next(this_process("service"))
    assert runs.requeue_orphans() == []
    assert runs.requeue_orphans(service="service:of:another:process") == [run.id]


def test_release_gives_back(runs):
    first, second, third = (runs.submit("run", {}) for _ in range(3))
    for _ in range(3):
        runs.claim_next("me")
    runs.request_cancel(second.id)
    runs._update(runs_table().c.id == second.id, state="cancelling", owner="me")
    assert runs.release("me", keep=[third.id]) == 1
    states = [runs.get(run.id).state for run in (first, second, third)]
    assert states == ["queued", "cancelled", "running"]


def runs_table():
    from engine.store.tables import run

    return run


def test_deleting_hides_and_can_be_undone(runs):
    run = runs.submit("run", {})
    with pytest.raises(StoreError, match="still active"):
        runs.delete(run.id)
    runs.request_cancel(run.id)
    runs.delete(run.id)
    assert runs.list() == []
    assert [row.id for row in runs.list(deleted=True)] == [run.id]
    runs.undelete(run.id)
    assert [row.id for row in runs.list()] == [run.id]


def test_the_log_is_bounded_and_read_in_parts(runs):
    run, other = runs.submit("run", {}), runs.submit("run", {})
    runs.logs.append(run.id, ["one", "two"])
    runs.logs.append(run.id, "Traceback", "trace")
    runs.logs.append(other.id, "other")
    seen = runs.logs.read(run.id)
    assert [line.line for line in seen] == ["one", "two"]
    assert [line.line for line in runs.logs.read(run.id, after=seen[0].seq, trace=True)] == ["two", "Traceback"]
    runs.logs.append(run.id, (str(number) for number in range(MAX_LOG_LINES + 10)))
    kept = runs.logs.read(run.id)
    assert len(kept) == MAX_LOG_LINES
    assert kept[-1].line == str(MAX_LOG_LINES + 9)
    assert len(runs.logs.read(other.id)) == 1


def test_progress_is_throttled(runs, monkeypatch):
    run = runs.submit("run", {}, owner="me")
    written = []
    monkeypatch.setattr(runs, "set_progress", lambda run, **values: written.append(values))
    reporter = Reporter(runs, run.id)
    for number in range(100):
        reporter.set(fraction=number / 100)
    reporter.metrics({"loss": [1.0]})
    assert written == [{"fraction": 0.0}]
    reporter.flush(now=True)
    assert written[1] == {"fraction": 0.99, "metrics": {"loss": [1.0]}}
    reporter.flush(now=True)
    assert len(written) == 2
    reporter.metrics({"much": "x" * 300_000})
    reporter.flush(now=True)
    assert len(written) == 2


def test_wait_returns_when_the_time_is_up(runs):
    run = runs.submit("run", {})
    assert runs.wait(run.id, timeout=0.05, interval=0.01).state == "queued"
    runs.request_cancel(run.id)
    assert runs.wait(run.id).state == "cancelled"


@pytest.mark.processes
def test_many_processes_claim_each_run_once(store):
    """Eight runs, four processes that open the new database at the same moment."""
    code = """
        import sys
        from engine.store import Store
        runs = Store(sys.argv[1], database_url=sys.argv[3]).runs
        if sys.argv[2] in "01":
            for _ in range(4):
                runs.submit("run", {})
        import time
        until, idle = time.time() + 10, 0
        while idle < 30 and time.time() < until:
            run = runs.claim_next(sys.argv[2])
            idle = 0 if run else idle + 1
            if run:
                print(run.id)
            time.sleep(0.02)
    """
    processes = [python(code, str(store.root), str(number), store.database_url) for number in range(4)]
    claimed = [line for process in processes for line in process.communicate(timeout=30)[0].split()]
    assert all(process.returncode == 0 for process in processes)
    assert len(claimed) == len(set(claimed)) == 8
    assert {run.state for run in store.runs.list()} == {"running"}


def test_one_service_a_store(store):
    me, other = this_process("service"), this_process("service").replace("service", "another")
    lease = store.lease
    assert lease.status() is None
    assert lease.acquire(me, "v1")
    assert lease.status().state == "starting"
    assert not lease.acquire(other, "v1")
    assert lease.renew(me, state="ready", devices=["cuda:0"], workers=2).ready
    assert lease.request_stop()
    assert lease.renew(me).stop
    assert lease.renew(other) is None
    lease.release(me)
    assert lease.acquire(other, "v2")


def test_the_lease_of_the_dead_can_be_taken(store):
    assert store.lease.acquire(DEAD, "v1")
    assert not store.lease.status().alive
    assert store.lease.acquire(this_process("service"), "v2")
    assert store.lease.renew(DEAD) is None


def test_claims_of_steps(store):
    me, neighbour = this_process("worker"), f"step:{this_process().split(':')[1]}:{os.getppid()}:0"
    assert store.claims.take("k", me)
    assert store.claims.take("k", me)
    assert not store.claims.take("k", "worker:elsewhere:1:1")
    assert store.claims.active() == {"k": me}
    store.claims.release("k", "worker:elsewhere:1:1")
    assert store.claims.active() == {"k": me}
    store.claims.release_all(me)
    assert store.claims.take("k", neighbour)
    assert store.claims.active() == {}
    assert store.claims.take("k", me)


def test_pages_heartbeat(store):
    assert store.lease.last_page() == 0
    store.lease.page_seen()
    store.lease.page_seen()
    assert time.time() - store.lease.last_page() < 5


@pytest.mark.processes
def test_a_killed_process_is_known_to_be_dead():
    code = """
        import time
        from engine.store.owners import this_process
        print(this_process(), flush=True)
        time.sleep(60)
    """
    process = python(code)
    owner = process.stdout.readline().strip()
    assert is_alive(owner)
    process.send_signal(signal.SIGKILL)
    deadline = time.time() + 5
    while is_alive(owner) and time.time() < deadline:
        time.sleep(0.01)
    assert not is_alive(owner, time.time())  # a zombie, not waited for yet
    process.communicate()
    assert not is_alive(owner, time.time())
    assert is_alive("step:another-host:1:1", time.time())
    assert not is_alive("step:another-host:1:1", time.time() - 60)
