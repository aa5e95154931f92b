"""The service's loop: takes rows up, has them planned, hands out their steps, and writes what comes back."""

from __future__ import annotations

import logging
import queue
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..errors import EngineError
from ..pipeline.executor import PlanProgress, needed_steps
from ..pipeline.graph import Plan
from ..pipeline.steps import Step
from ..store import Reporter, Run, Store
from .attempts import Attempts
from .board import Job, Node
from .cluster import Cluster, Event, Inbox

Planner = Callable[[str, Mapping[str, Any], Store], Plan]

TICK = 0.05  # seconds to wait for an event
IDLE_TICK = 0.15  # when nothing is going on
POLL = 0.15  # seconds between two looks at the run table
REFRESH = 1.0  # seconds between two looks at the workers
IDLE_REFRESH = 5.0
HOUSEKEEPING = 5.0
MAX_JOBS = 8  # runs worked on at the same time; the others stay queued

logger = logging.getLogger(__name__)


class Loop(Attempts):
    """One thread that owns the board; everything else talks to it through the inbox."""

    def __init__(self, store: Store, owner: str, cluster: Cluster, inbox: Inbox, planner: Planner) -> None:
        super().__init__(store, owner, cluster)
        self.inbox = inbox
        self.last_active = time.time()
        self._planner = planner
        self._planning = ThreadPoolExecutor(2, thread_name_prefix="planning")
        self._due: dict[str, float] = {}
        self._events: deque[Event] = deque()

    def tick(self) -> None:
        """Take what has arrived, look at the table, and hand out what can be computed."""
        self._collect_events()
        while self._events:
            event = self._events.popleft()
            if event.type == "planned":
                self._planned(event)
            else:
                self.handle(event)
        if self._time_for("poll", POLL):
            self._take_up()
            self._cancel_requested()
        if self._time_for("housekeeping", HOUSEKEEPING):
            self.store.runs.requeue_orphans(service=self.owner)
            self.store.runs.release(self.owner, keep=self.board.jobs)
        if self._time_for("workers", REFRESH if self.board.jobs else IDLE_REFRESH):
            self.refresh_workers()
        self.end_the_deaf()
        self.hand_out()
        for job in self.board.jobs.values():
            self._write_log(job)
            job.flush()

    def close(self) -> None:
        """Stop everything; the rows go back to the queue."""
        self._planning.shutdown(wait=False, cancel_futures=True)
        for node in self.board.at_work() if not self.cluster.own else ():
            self.cluster.kill(node.worker, node.owner)
        for job in self.board.jobs.values():
            self._write_log(job)
            job.flush(now=True)
        self.store.runs.release(self.owner)

    def _collect_events(self) -> None:
        try:
            self._events.append(self.inbox.get(timeout=TICK if self.board.jobs else IDLE_TICK))
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
            kind = type(error).__name__
            text = str(error) if isinstance(error, EngineError) else f"Unexpected error while planning: {kind}: {error}"
            self.fail(job, text, kind, "".join(traceback.format_exception(error)))
            return
        needed: list[Step] = event.values["needed"]
        job.plan = event.values["plan"]
        job.progress = PlanProgress(event.values["plan"], {step.key for step in needed})
        self.board.add(job, needed)
        for step in needed:
            if self.board.nodes[step.key].state == "done":
                job.progress.done[step.key] = 1.0
        for part in job.plan.parts:
            if job.progress.done[part.key] >= 1:
                self.step_made(job, part.key)
        done, count = job.progress.fraction, job.progress.count
        job.reporter.set(fraction=done, step_count=count, message="Waiting for a worker")
        self.finish_if_complete(job)

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
                job.stopping = {node.step.key for node in self.detach(job)}
                self.cancelled_if_stopped(job)

    def cancelled_if_stopped(self, job: Job) -> None:
        """A cancelled run ends when nothing of it is at work any more."""
        if job.cancelled and not job.stopping:
            self._leave(job)
            self.store.runs.cancelled(job.run.id, owner=self.owner)

    def finish_if_complete(self, job: Job) -> None:
        """The run ends when all its steps are done."""
        if job.cancelled or not self.board.complete(job):
            return
        self._leave(job)
        if job.plan is not None and not self.store.runs.finish(job.run.id, job.plan.result, owner=self.owner):
            self.store.runs.cancelled(job.run.id, owner=self.owner)

    def step_made(self, job: Job, key: str) -> None:
        """A whole run inside the job's plan gets its row as soon as it is there."""
        for part in job.plan.parts if job.plan else ():
            if part.key == key:
                values = {"name": part.name, "request": part.request, "step_keys": part.step_keys}
                self.store.runs.adopt(job.run.id, key, **values)

    def step_failed(self, job: Job, node: Node, message: str, kind: str, trace: str = "") -> None:
        """The run goes on with the plan that is left without the step, else it ends."""
        rest = job.plan.without_failed(node.step.key, message) if job.plan and not job.cancelled else None
        if rest is None or job.progress is None:
            self.fail(job, message, kind, trace)
            return
        job.lines.append(f"{node.title}: {message} The rest goes on without it.")
        keys, done = rest.by_key(), job.progress.done
        self.detach(job, keep=keys)
        needed = [step for key, step in keys.items() if key in job.progress.needed or key not in done]
        job.plan, job.progress = rest, PlanProgress(rest, {step.key for step in needed})
        job.progress.done |= {key: done[key] for key in keys if key in done}
        self.board.add(job, needed)
        self.store.runs.set_step_keys(job.run.id, keys)
        self.finish_if_complete(job)

    def fail(self, job: Job, message: str, kind: str, trace: str = "") -> None:
        """The run ends with a reason that people can read."""
        self.detach(job)
        self._leave(job)
        self.store.runs.logs.append(job.run.id, message, "error")
        if trace:
            self.store.runs.logs.append(job.run.id, trace.rstrip().splitlines(), "trace")
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
            self.store.runs.logs.append(job.run.id, lines)
