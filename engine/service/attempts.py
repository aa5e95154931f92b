"""Attempts at steps: who gets which worker, and what comes back from it."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..store import Store
from ..store.owners import is_alive, is_neighbour
from .board import Board, Job, Node
from .cluster import Cluster, Event
from .worker import Outcome

PATIENCE = 1.0  # seconds a step has to stop by itself
MAX_DEATHS = 2  # a step whose worker dies is tried again so often
MAX_RESETS = 3

logger = logging.getLogger(__name__)


class Attempts(ABC):
    """The side of the loop that looks at workers; :class:`.loop.Loop` adds the side that looks at rows."""

    def __init__(self, store: Store, owner: str, cluster: Cluster) -> None:
        self.store, self.owner, self.cluster = store, owner, cluster
        self.board = Board()
        self.workers: dict[str, bool] = {}  # address → whether it has a GPU
        self._kinds: set[bool] = set()  # kinds of workers that there are, with and without a GPU
        self._gone: set[str] = set()  # addresses of dead workers that dask may still list

    @abstractmethod
    def finish_if_complete(self, job: Job) -> None:
        """A step of the job is done; perhaps it was the last."""

    @abstractmethod
    def cancelled_if_stopped(self, job: Job) -> None:
        """A step that a cancelled job waited for has ended; perhaps it was the last."""

    @abstractmethod
    def fail(self, job: Job, message: str, kind: str, trace: str = "") -> None:
        """The job cannot be carried out."""

    @abstractmethod
    def step_failed(self, job: Job, node: Node, message: str, kind: str, trace: str = "") -> None:
        """A step of the job cannot be carried out; perhaps the job goes on without it."""

    @abstractmethod
    def step_made(self, job: Job, key: str) -> None:
        """A step of the job is done; perhaps it was the last one of a part."""

    def refresh_workers(self) -> None:
        """See which workers live, and which steps have lost theirs."""
        self.workers = {place: gpu for place, gpu in self.cluster.workers().items() if place not in self._gone}
        self._kinds.update(self.workers.values())
        for node in self.board.at_work():
            if node.owner and is_neighbour(node.owner) and not is_alive(node.owner):
                self._lost(node, "its process is gone")

    def detach(self, job: Job, keep: Collection[str] = ()) -> list[Node]:
        """The job wants nothing any more except some steps; steps that nobody else wants are asked to stop.

        Returns:
            Those.
        """
        orphans = self.board.detach(job.run.id, keep)
        for node in orphans:
            node.state, node.kill_at = "stopping", time.monotonic() + PATIENCE
            self.cluster.ask_to_stop(node.ticket, node.worker)
        return orphans

    def handle(self, event: Event) -> None:
        """Take what a worker or dask reports."""
        if event.type == "hello":
            self._gone.discard(event.values["worker"])
            self.refresh_workers()
            return
        node = self.board.of_ticket(event.ticket)
        if node is None:
            self._stray(event)
            return
        handlers: dict[str, Callable[[Node, Mapping[str, Any]], None]] = {
            "started": self._started,
            "progress": self._progressed,
            "metrics": self._measured,
            "log": self._logged,
            "done": self._done,
            "lost": lambda lost, values: self._lost(lost, values["reason"]),
        }
        handlers[event.type](node, event.values)

    def hand_out(self) -> None:
        """Give the first waiting steps to free workers."""
        busy = {node.worker for node in self.board.at_work()}
        free = [address for address in self.workers if address not in busy]
        for node in self.board.waiting() if free else ():
            wants = (node.step.gpu and True in self._kinds) or False not in self._kinds
            fitting = next((address for address in free if self.workers[address] == wants), None)
            if fitting is not None:
                free.remove(fitting)
                self._submit(node, fitting)

    def _submit(self, node: Node, worker: str) -> None:
        node.number += 1
        node.state, node.worker, node.owner = "running", worker, ""
        node.ticket = f"{node.step.name}-{node.step.key[:16]}-{self.owner.rpartition(':')[2]}-{time.monotonic_ns():x}"
        self.cluster.submit(node.step, node.ticket, worker)

    def _stray(self, event: Event) -> None:
        """A step that was given up starts all the same: its worker was slow to hear of it."""
        if event.type == "started":
            self.cluster.kill(event.values["worker"], event.values["owner"])

    def _started(self, node: Node, values: Mapping[str, Any]) -> None:
        node.owner = values["owner"]
        for job in self.board.jobs_of(node):
            job.report(node)

    def _progressed(self, node: Node, values: Mapping[str, Any]) -> None:
        for job in self.board.jobs_of(node):
            if job.progress is not None:
                job.progress.done[node.step.key] = min(values["fraction"], 0.999)
                job.report(node, values["message"])

    def _measured(self, node: Node, values: Mapping[str, Any]) -> None:
        for job in self.board.jobs_of(node):
            job.reporter.metrics(values["values"])

    def _logged(self, node: Node, values: Mapping[str, Any]) -> None:
        for job in self.board.jobs_of(node):
            job.lines.append(values["line"])

    def _done(self, node: Node, values: Mapping[str, Any]) -> None:
        outcome: Outcome = values["outcome"]
        self.cluster.forget(node.ticket)
        if outcome.state == "finished":
            self._step_finished(node, outcome)
        elif outcome.state == "cancelled":
            self._stopped(node)
        elif outcome.state == "missing":
            self._input_missing(node, outcome)
        else:
            jobs = list(self.board.jobs_of(node))
            self._stopped(node)
            for job in jobs:
                self.step_failed(job, node, outcome.message, outcome.kind, outcome.trace)

    def _step_finished(self, node: Node, outcome: Outcome) -> None:
        node.state, node.ticket, node.worker, node.owner = "done", "", "", ""
        for job in list(self.board.jobs_of(node)):
            job.lines.append(f"{node.title}: {outcome.seconds:.1f} s")
            if job.progress is not None:
                job.progress.done[node.step.key] = 1.0
                job.report(node)
            self.step_made(job, node.step.key)
            self.finish_if_complete(job)
        if not node.runs:
            self.board.idle(node)
        self._let_go(node)

    def _input_missing(self, node: Node, outcome: Outcome) -> None:
        """An artefact was damaged or collected since the plan was made: compute it again."""
        node.resets += 1
        jobs = list(self.board.jobs_of(node))
        self._stopped(node)
        for job in jobs:
            step = job.plan.by_key().get(outcome.key) if job.plan else None
            if step is None or node.resets > MAX_RESETS:
                self.fail(job, outcome.message, "MissingInput")
                continue
            self.board.again(job, step)
            if job.progress is not None:
                job.progress.needed.add(step.key)
                job.progress.done[step.key] = 0.0

    def _lost(self, node: Node, reason: str) -> None:
        """The worker of a step has died, or dask has given the step up."""
        self.cluster.forget(node.ticket)
        self.workers.pop(node.worker, None)
        if node.owner:
            self._gone.add(node.worker)
            self.store.claims.release_all(node.owner)
            node.deaths += node.state == "running"
        jobs = list(self.board.jobs_of(node))
        logger.warning("Step %s lost its worker: %s", node.title, reason)
        self._stopped(node)
        for job in jobs:
            if node.deaths > MAX_DEATHS:
                text = f"The worker process ended {node.deaths} times while it computed '{node.title}'. "
                text += "It may have run out of memory; try fewer images or experts."
                self.step_failed(job, node, text, "WorkerDied")
            else:
                job.lines.append(f"{node.title}: the worker process ended; the step is tried again.")

    def _stopped(self, node: Node) -> None:
        """An attempt is over; whoever waited for its end can go on."""
        self.board.idle(node)
        self._let_go(node)

    def _let_go(self, node: Node) -> None:
        for job in list(self.board.jobs.values()):
            job.stopping.discard(node.step.key)
            self.cancelled_if_stopped(job)

    def end_the_deaf(self) -> None:
        """End the workers of steps that did not stop when they were asked to."""
        now = time.monotonic()
        for node in self.board.at_work():
            if node.state != "stopping" or now < node.kill_at:
                continue
            if not node.owner or (is_neighbour(node.owner) and not is_alive(node.owner)):
                self._lost(node, "it was stopped")
                continue
            self.cluster.kill(node.worker, node.owner)
            node.kill_at = now if is_neighbour(node.owner) else now + PATIENCE
