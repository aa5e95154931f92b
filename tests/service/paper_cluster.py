"""The service's loop over a cluster that only writes down what it is told."""

from __future__ import annotations

import queue
import time
from dataclasses import replace

from toy_steps import ToyInputs, ToyParams, write

from engine.pipeline.graph import Plan
from engine.service.cluster import Event
from engine.service.loop import Loop
from engine.service.worker import Failure
from engine.store import Store
from engine.store.owners import this_process

ELSEWHERE = "worker:elsewhere:1:1"  # a process that this host knows nothing of


class PaperCluster:
    """A cluster that writes down what it is given."""

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
        self.plans: list[Plan] = []  # of the rows to be taken up, in order
        self.loop = Loop(store, self.owner, self.cluster, self.inbox, lambda kind, request, store: self.plans.pop(0))

    def submit(self, *steps, kind="run", **plan):
        self.plans.append(Plan(steps, steps[-1].key, **plan))
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


def step(label, *needs, gpu=False, **kind):
    inputs = ToyInputs(tuple(n.key for n in needs))
    return replace(write, gpu=gpu, **kind).plan(ToyParams(label=label), inputs, label=label, gpu=gpu)
