"""The service's loop: takes rows up, has them planned, hands out their steps, and writes what comes back."""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..errors import EngineError
from ..pipeline.executor import PlanProgress, needed_steps
from ..pipeline.steps import Plan, Step
from ..store import Reporter, Run, Store
from ..store.owners import is_alive, is_neighbour
from .board import Board, Job, Node
from .cluster import Cluster, Event, Inbox
from .worker import Outcome

Planner = Callable[[str, Mapping[str, Any], Store], Plan]

TICK = 0.05  # seconds to wait for an event
POLL = 0.15  # seconds between two looks at the run table
PATIENCE = 1.0  # seconds a step has to stop by itself
REFRESH = 1.0  # seconds between two looks at the workers
HOUSEKEEPING = 5.0
MAX_JOBS = 8  # runs worked on at the same time; the others stay queued
MAX_DEATHS = 2  # a step whose worker dies is tried again so often
MAX_RESETS = 3

logger = logging.getLogger(__name__)


class Loop:
    """One thread that owns the board; everything else talks to it through the inbox."""

    def __init__(self, store: Store, owner: str, cluster: Cluster, inbox: Inbox, planner: Planner) -> None:
        self.store, self.owner, self.cluster, self.inbox = store, owner, cluster, inbox
        self.board = Board()
        self.last_active = time.time()
        self.workers: dict[str, bool] = {}
        self._planner = planner
        self._planning = ThreadPoolExecutor(2, thread_name_prefix="planning")
        self._due: dict[str, float] = {}
        self._events: deque[Event] = deque()
        self._gone: set[str] = set()  # addresses of dead workers that dask may still list

    def tick(self) -> None:
        """Take what has arrived, look at the table, and hand out what can be computed."""
        self._collect_events()
        while self._events:
            self._handle(self._events.popleft())
        if self._time_for("poll", POLL):
            self._take_up()
            self._cancel_requested()
        if self._time_for("housekeeping", HOUSEKEEPING):
            self.store.runs.requeue_orphans(service=self.owner)
            self.store.runs.release(self.owner, keep=self.board.jobs)
        if self._time_for("workers", REFRESH):
            self.refresh_workers()
        self._end_the_deaf()
        self._hand_out()
        for job in self.board.jobs.values():
            self._write_log(job)
            job.flush()

    def refresh_workers(self) -> None:
        """See which workers live, and which steps have lost theirs."""
        self.workers = {place: gpu for place, gpu in self.cluster.workers().items() if place not in self._gone}
        for node in self.board.at_work():
            if node.owner and is_neighbour(node.owner) and not is_alive(node.owner):
                self._lost(node, "its process is gone")

    def close(self) -> None:
        """Stop everything; the rows go back to the queue."""
        self._planning.shutdown(wait=False, cancel_futures=True)
        for node in self.board.at_work():
            self.cluster.kill(node.worker, node.owner)
        for job in self.board.jobs.values():
            self._write_log(job)
            job.flush(now=True)
        self.store.runs.release(self.owner)

    def _collect_events(self) -> None:
        try:
            self._events.append(self.inbox.get(timeout=TICK))
            while True:
                self._events.append(self.inbox.get_nowait())
        except queue.Empty:
            pass

    def _time_for(self, what: str, interval: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + interval
        return True

    # -- rows

    def _take_up(self) -> None:
        while len(self.board.jobs) < MAX_JOBS and (run := self.store.runs.claim_next(self.owner)):
            job = Job(run, Reporter(self.store.runs, run.id))
            self.board.jobs[run.id] = job
            job.reporter.set(message="Planning", fraction=0.0)
            self._planning.submit(self._plan, run)

    def _plan(self, run: Run) -> None:
        """Runs in a planning thread."""
        try:
            plan = self._planner(run.kind, run.request, self.store)
            self.store.runs.set_step_keys(run.id, (step.key for step in plan.steps))
            values: dict[str, Any] = {"plan": plan, "needed": needed_steps(plan, self.store)}
        except Exception as error:
            if not isinstance(error, EngineError):
                logger.exception("Run %s could not be planned.", run.id)
            values = {"error": error}
        self.inbox.put(Event("planned", run.id, values))

    def _planned(self, event: Event) -> None:
        job = self.board.jobs.get(event.ticket)
        if job is None or job.cancelled:
            return
        if error := event.values.get("error"):
            text = (
                str(error) if isinstance(error, EngineError) else f"Unexpected error: {type(error).__name__}: {error}"
            )
            self._fail(job, text, type(error).__name__)
            return
        needed: list[Step] = event.values["needed"]
        job.plan = event.values["plan"]
        job.progress = PlanProgress(event.values["plan"], {step.key for step in needed})
        self.board.add(job, needed)
        for step in needed:
            if self.board.nodes[step.key].state == "done":
                job.progress.done[step.key] = 1.0
        values = {
            "fraction": job.progress.fraction,
            "step_count": job.progress.count,
            "message": "Waiting for a worker",
        }
        job.reporter.set(**values)
        self._finish_if_complete(job)

    def _cancel_requested(self) -> None:
        if not self.board.jobs:
            return
        for run in self.store.runs.cancelling(self.owner):
            job = self.board.jobs.get(run)
            if job is None:
                self.store.runs.cancelled(run, owner=self.owner)
            elif not job.cancelled:
                job.cancelled = True
                job.reporter.set(message="Stopping")
                job.stopping = {node.step.key for node in self._detach(job)}
                self._cancelled_if_stopped(job)

    def _detach(self, job: Job) -> list[Node]:
        orphans = self.board.detach(job.run.id)
        for node in orphans:
            node.state, node.kill_at = "stopping", time.monotonic() + PATIENCE
            self.cluster.ask_to_stop(node.ticket, node.worker)
        return orphans

    def _cancelled_if_stopped(self, job: Job) -> None:
        if job.cancelled and not job.stopping:
            self._leave(job)
            self.store.runs.cancelled(job.run.id, owner=self.owner)

    def _finish_if_complete(self, job: Job) -> None:
        if job.cancelled or not self.board.complete(job):
            return
        self._leave(job)
        if job.plan is not None and not self.store.runs.finish(job.run.id, job.plan.result, owner=self.owner):
            self.store.runs.cancelled(job.run.id, owner=self.owner)

    def _fail(self, job: Job, message: str, kind: str, trace: str = "") -> None:
        self._detach(job)
        self._leave(job)
        self.store.runs.append_log(job.run.id, message, "error")
        if trace:
            self.store.runs.append_log(job.run.id, trace.rstrip().splitlines(), "trace")
        if not self.store.runs.fail(job.run.id, message, kind, owner=self.owner):
            self.store.runs.cancelled(job.run.id, owner=self.owner)

    def _leave(self, job: Job) -> None:
        """The job is no longer ours to work on; what it wrote last is written."""
        self._write_log(job)
        job.flush(now=True)
        self.board.jobs.pop(job.run.id, None)
        self.board.detach(job.run.id)
        self.last_active = time.time()

    def _write_log(self, job: Job) -> None:
        if job.lines:
            lines, job.lines = job.lines, []
            self.store.runs.append_log(job.run.id, lines)

    # -- steps

    def _hand_out(self) -> None:
        waiting = self.board.waiting()
        if not waiting:
            return
        busy = {node.worker for node in self.board.at_work()}
        free = [address for address in self.workers if address not in busy]
        gpus = any(self.workers.values())
        only_gpus = all(self.workers.values())
        for node in waiting:
            wants = (node.step.gpu and gpus) or only_gpus
            fitting = next((address for address in free if self.workers[address] == wants), None)
            if fitting is not None:
                free.remove(fitting)
                self._submit(node, fitting)

    def _submit(self, node: Node, worker: str) -> None:
        node.number += 1
        node.state, node.worker, node.owner = "running", worker, ""
        node.ticket = f"{node.step.name}-{node.step.key[:16]}-{self.owner.rpartition(':')[2]}-{time.monotonic_ns():x}"
        self.cluster.submit(node.step, node.ticket, worker)

    def _handle(self, event: Event) -> None:
        if event.type == "planned":
            self._planned(event)
            return
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
                self._fail(job, outcome.message, outcome.kind, outcome.trace)

    def _step_finished(self, node: Node, outcome: Outcome) -> None:
        node.state, node.ticket, node.worker, node.owner = "done", "", "", ""
        for job in list(self.board.jobs_of(node)):
            job.lines.append(f"{node.title}: {outcome.seconds:.1f} s")
            if job.progress is not None:
                job.progress.done[node.step.key] = 1.0
                job.report(node)
            self._finish_if_complete(job)
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
                self._fail(job, outcome.message, "MissingInput")
                continue
            self.board.nodes.pop(step.key, None)
            self.board.add(job, [step])
            if job.progress is not None:
                job.progress.needed.add(step.key)
                job.progress.done[step.key] = 0.0

    def _lost(self, node: Node, reason: str) -> None:
        """The worker of a step has died, or dask has given the step up."""
        self.cluster.forget(node.ticket)
        self._due["workers"] = 0.0
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
                self._fail(job, text + "It may have run out of memory; try fewer images or experts.", "WorkerDied")
            else:
                job.lines.append(f"{node.title}: the worker process ended; the step is tried again.")

    def _stopped(self, node: Node) -> None:
        """An attempt is over; whoever waited for its end can go on."""
        self.board.idle(node)
        self._let_go(node)

    def _let_go(self, node: Node) -> None:
        for job in list(self.board.jobs.values()):
            job.stopping.discard(node.step.key)
            self._cancelled_if_stopped(job)

    def _end_the_deaf(self) -> None:
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
