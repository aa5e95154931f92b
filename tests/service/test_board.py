"""Placement of steps on workers, with a cluster that only writes down what it is told."""

from __future__ import annotations

import queue
import time
from dataclasses import replace

import pytest
from toy_steps import ToyInputs, ToyParams, write

from engine.pipeline.graph import Part, Plan
from engine.service.cluster import Event
from engine.service.loop import MAX_JOBS, Loop
from engine.service.worker import Failure
from engine.store import Store
from engine.store.owners import this_process

ELSEWHERE = "worker:elsewhere:1:1"  # a process that this host knows nothing of


class PaperCluster:
    own = True

    def __init__(self, **workers: bool) -> None:
        self.alive = workers
        self.given: dict[str, list[tuple[str, str]]] = {}  # worker → ticket, label of its steps in order
        self.history: list[str] = []
        self.told_to_stop: list[str] = []
        self.killed: list[str] = []

    def workers(self, computing):
        return dict(self.alive)

    def submit(self, step, ticket, worker):
        self.given.setdefault(worker, []).append((ticket, step.label))
        self.history.append(step.label)

    def release(self, ticket):
        left = {worker: [entry for entry in line if entry[0] != ticket] for worker, line in self.given.items()}
        self.given = {worker: line for worker, line in left.items() if line}

    def ask_to_stop(self, ticket, worker):
        self.told_to_stop.append(worker)

    def kill(self, worker, owner):
        self.killed.append(worker)


class Table:
    """A loop over a paper cluster."""

    def __init__(self, store: Store, **workers: bool) -> None:
        self.store, self.inbox, self.cluster = store, queue.SimpleQueue(), PaperCluster(**workers)
        self.owner = this_process("service")
        self.loop = Loop(store, self.owner, self.cluster, self.inbox, lambda kind, request, store: request_plans.pop(0))

    def submit(self, *steps, kind="run", **plan):
        request_plans.append(Plan(steps, steps[-1].key, **plan))
        run = self.store.runs.submit(kind, {})
        self.turn(lambda: run.id not in self.loop.jobs or self.loop.jobs[run.id].plan)
        return run

    def turn(self, condition=lambda: True):
        deadline = time.monotonic() + 5
        self.loop._due.clear()
        self.loop.tick()
        while not condition() and time.monotonic() < deadline:
            self.loop._due.clear()
            self.loop.tick()

    def end(self, worker, **failure):
        """A worker reports that its step is done, or failed."""
        ticket = self.cluster.given[worker][0][0]
        self.inbox.put(Event("failed", ticket, {"failure": Failure(**failure)}) if failure else Event("done", ticket))
        self.turn()
        self.turn()

    def start(self, worker):
        self.inbox.put(Event("started", self.cluster.given[worker][0][0], {"owner": ELSEWHERE}))
        self.turn()

    def die(self, worker):
        """A worker ends with its steps, and another one takes its place."""
        for ticket, _ in self.cluster.given.pop(worker):
            self.inbox.put(Event("lost", ticket, {"reason": "KilledWorker"}))
        self.turn()
        self.turn()

    def labels(self):
        return {worker: line[0][1] for worker, line in self.cluster.given.items()}

    def line(self, worker):
        """Return the labels of the steps that a worker has been given."""
        return [label for _, label in self.cluster.given.get(worker, ())]

    def quick(self, worker="w"):
        """Have a worker compute a step in no time, so that its kind is known to be quick."""
        self.submit(step("before"))
        self.start(worker)
        self.end(worker)


request_plans: list[Plan] = []


@pytest.fixture
def store(tmp_path):
    request_plans.clear()
    return Store(tmp_path, database_url=f"sqlite:///{tmp_path / 'runs.sqlite'}")


def step(label, *needs, gpu=False):
    inputs = ToyInputs(tuple(n.key for n in needs))
    return replace(write, gpu=gpu).plan(ToyParams(label=label), inputs, label=label, gpu=gpu)


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


def test_steps_that_want_a_gpu_wait_for_it(store):
    table = Table(store, cpu=False, gpu=True)
    table.submit(step("plain"), step("encode 1", gpu=True), step("encode 2", gpu=True), step("plain 2"))
    assert table.labels() == {"cpu": "plain", "gpu": "encode 1"}
    table.end("cpu")
    assert table.labels() == {"cpu": "plain 2", "gpu": "encode 1"}
    table.end("gpu")
    assert table.labels()["gpu"] == "encode 2"


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
        request_plans.append(Plan((step(f"s{number}"),), step(f"s{number}").key))
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
    request_plans.append(sweep_of(store, ["a", "b", "c"]))
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
    request_plans.append(sweep_of(store, ["a", "b"]))
    run = store.runs.submit("sweep", {})
    table.turn(lambda: table.labels())
    table.end("w", message="No.", kind="MergeError")
    assert (store.runs.get(run.id).state, store.runs.get(run.id).error) == ("failed", "No.")
    assert table.loop.board._nodes == {}


def test_the_last_part_that_fails_fails_the_run(store):
    table = Table(store, w=False)
    request_plans.append(sweep_of(store, ["a", "b"]))
    run = store.runs.submit("sweep", {})
    table.turn(lambda: table.labels())
    table.end("w")
    for _ in range(2):
        table.end("w", message="No.", kind="MergeError")
    assert store.runs.get(run.id).state == "failed"
    assert store.runs.list(parent=run.id) == []


def test_a_sweep_that_is_cancelled_keeps_what_was_made(store):
    table = Table(store, w=False)
    request_plans.append(sweep_of(store, ["a", "b"]))
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
    assert store.claims.left_behind(step("bad").key, 60) == ""


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
