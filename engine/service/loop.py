"""The service's loop: takes rows up, has them planned and computed, and writes what comes back."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..errors import EngineError, StoreError
from ..pipeline.executor import kept_metrics, needed_steps
from ..pipeline.graph import Plan
from ..pipeline.kinds import passing_kinds
from ..pipeline.steps import Step
from ..store import Run, Store
from ..store.passing import forget_passing
from .board import Attempt, Board, Node
from .cluster import Cluster, Event, Inbox
from .jobs import Job
from .meter import Meter
from .worker import Failure

Planner = Callable[[str, Mapping[str, Any], Store], Plan]

TICK = 0.05  # seconds to wait for an event
IDLE_TICK = 0.15  # when nothing is going on
POLL = 0.15  # seconds between two looks at the run table
REFRESH = 1.0  # seconds between two looks at the workers
IDLE_REFRESH = 5.0
HOUSEKEEPING = 5.0
ATTENDED = 60.0  # seconds since a page was open in which somebody may be there
FORGETTING = 60.0  # seconds between two looks at what passes
MAX_JOBS = 8  # runs worked on at the same time; the others stay queued
MAX_DEATHS = 3  # workers that a step may end
MAX_RESETS = 3  # times that a run makes missing artefacts again

logger = logging.getLogger(__name__)


class Loop:
    """One thread that owns the jobs and the board; everything else talks to it through the inbox.

    An event is heard once, so whoever takes one changes what is in memory first; rows of jobs that are over are written
    at the end of every tick, as often as it takes.
    """

    def __init__(self, store: Store, owner: str, cluster: Cluster, inbox: Inbox, planner: Planner) -> None:
        self.store, self.owner, self.cluster, self.inbox = store, owner, cluster, inbox
        self.board = Board(cluster)
        self.meter = Meter()
        self.jobs: dict[str, Job] = {}
        self.workers: dict[str, bool] = {}  # address → whether it has a GPU
        self.last_active = time.time()
        self._planner = planner
        self._planning = ThreadPoolExecutor(2, thread_name_prefix="planning")
        self._suspects = threading.Lock()  # held while a run is planned that may have ended a service
        self._due: dict[str, float] = {}
        self._taken = 0
        self._places: dict[str, int] = {}  # the last place that each person was given

    def tick(self) -> None:
        """Take what has arrived, and look at the table and at the workers."""
        self._take_events()
        if self._time_for("poll", POLL):
            self._take_up()
            self._cancel_requested()
        if self._time_for("housekeeping", HOUSEKEEPING):
            self.store.runs.requeue_orphans(service=self.owner)
            self.store.runs.release(self.owner, keep=self.jobs)
        if self._time_for("forgetting", FORGETTING):
            forget_passing(self.store, passing_kinds())
        if self._time_for("workers", REFRESH if self.jobs else IDLE_REFRESH):
            self.refresh_workers()
            self.board.attended = time.time() - self.store.lease.last_page() < ATTENDED
        for attempt in self.board.overdue():
            self._over(attempt)
            self.store.claims.release_all(attempt.owner)
        self.board.hand_out(self.workers)
        for job in self.jobs.values():
            job.write()
        self._settle()

    def refresh_workers(self) -> None:
        """See which workers live, which steps have lost theirs, and end workers that do not answer."""
        self.workers = self.cluster.workers(self.board.computing())
        for ticket in self.board.abandoned(self.workers):
            self._lost(Event("lost", ticket, {"reason": "it is no longer in the cluster"}))

    def close(self) -> None:
        """Stop everything; the rows go back to the queue."""
        self._planning.shutdown(wait=False, cancel_futures=True)
        if not self.cluster.own:
            self.board.kill_all()
        for job in self.jobs.values():
            job.write(now=True)
        self.store.runs.release(self.owner)

    def _take_events(self) -> None:
        handlers: dict[str, Callable[[Event], None]] = {
            "planned": self._planned,
            "started": self._started,
            "progress": self._progressed,
            "metrics": self._measured,
            "log": self._logged,
            "done": self._done,
            "failed": self._failed,
            "lost": self._lost,
        }
        try:
            event = self.inbox.get(timeout=TICK if self.jobs else IDLE_TICK)
            while True:
                handlers[event.type](event)
                event = self.inbox.get_nowait()
        except queue.Empty:
            pass

    def _time_for(self, what: str, interval: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + interval
        return True

    # Rows of the run table

    def _take_up(self) -> None:
        if not self.jobs:
            self._due.pop("workers", None)  # it may be a while since they were looked at
        while len(self.jobs) < MAX_JOBS and (run := self.store.runs.claim_next(self.owner)):
            job = self.jobs[run.id] = Job(self.store.runs, run, self._place_of(run))
            logger.info("Run %s is taken up.", run.id, extra={"run": run.id})
            self._planning.submit(self._plan, run, None)
            job.say("Planning")

    def _place_of(self, run: Run) -> float:
        """Return a run's place: people take turns, each one's runs go in their order."""
        self._taken += 1
        reached = min((int(job.number) for job in self.jobs.values()), default=0)
        self._places[run.person] = place = max(self._places.get(run.person, 0), reached) + 1
        return place + self._taken * 1e-7

    def _plan(self, run: Run, plan: Plan | None) -> None:
        """Make a plan, unless there is one, and see what of it is missing; runs in a planning thread."""
        try:
            if plan is None:
                with self._suspects if run.plannings else contextlib.nullcontext():
                    self.store.runs.planning(run.id)
                    plan = self._planner(run.kind, run.request, self.store)
                    self.store.runs.set_step_keys(run.id, (step.key for step in plan.steps))
            values: dict[str, Any] = {
                "plan": plan,
                "needed": needed_steps(plan, self.store),
                "told": kept_metrics(plan, self.store),
            }
        except Exception as error:
            if not isinstance(error, EngineError):
                logger.exception("Run %s could not be planned.", run.id, extra={"run": run.id})
            values = {"error": error}
        self.inbox.put(Event("planned", run.id, values))

    def _planned(self, event: Event) -> None:
        job = self.jobs.get(event.ticket)
        if job is None or job.cancelled or job.failure:
            return
        if error := event.values.get("error"):
            kind = type(error).__name__
            text = str(error) if isinstance(error, EngineError) else f"Unexpected error while planning: {kind}: {error}"
            self._fail(job, Failure(text, kind, "".join(traceback.format_exception(error))))
            return
        plan, needed = event.values["plan"], event.values["needed"]
        self.meter.planned(len(plan.steps), len(needed))
        job.follow(plan, needed, self.board.seconds)
        self._want(job, needed)
        if told := event.values["told"]:
            job.metrics(told)
        job.say("Waiting for a worker")

    def _want(self, job: Job, needed: list[Step]) -> None:
        self.board.want(job.run.id, needed, job.priority, urgent=job.urgent)

    def _cancel_requested(self) -> None:
        for run in self.store.runs.cancelling(self.owner) if self.jobs else ():
            job = self.jobs.get(run)
            if job is None:
                self.store.runs.cancelled(run, owner=self.owner)
            elif not job.cancelled:
                job.cancelled = True
                job.stopping = self.board.leave(run)
                job.say("Stopping")

    def _fail(self, job: Job, failure: Failure) -> None:
        """Have a run end with a reason that people can read."""
        job.failure = failure
        self.board.leave(job.run.id)

    def _settle(self) -> None:
        """List runs inside plans, and end jobs that are over; what fails of one leaves the others alone.

        Raises:
            StoreError: the first that the table did not take; it is tried again after a moment.
        """
        if not self._time_for("settling", 0.0):
            return
        errors = []
        for job in list(self.jobs.values()):
            try:
                job.list_parts()
                self._end_if_over(job)
            except StoreError as error:
                errors.append(error)
        if errors:
            self._due["settling"] = time.monotonic() + POLL
            raise errors[0]

    def _end_if_over(self, job: Job) -> None:
        """End a run that has failed, was cancelled and has stopped, or is complete; it is left once that is written."""
        complete = job.plan is not None and not job.left
        if job.failure is None and (job.stopping if job.cancelled else not complete):
            return
        job.write(now=True)
        if not self._write_end(job):
            self.store.runs.cancelled(job.run.id, owner=self.owner)
        del self.jobs[job.run.id]
        self.board.leave(job.run.id)
        self.last_active = time.time()

    def _write_end(self, job: Job) -> bool:
        """Write how a run has ended; returns False where it was cancelled, or its row is no longer held."""
        run, runs, failure = job.run.id, self.store.runs, job.failure
        about = {"run": run}
        if failure is not None:
            logger.warning("Run %s failed: %s", run, failure.message, extra=about)
            runs.logs.append(run, failure.message, "error")
            if failure.trace:
                runs.logs.append(run, failure.trace.rstrip().splitlines(), "trace")
            return runs.fail(run, failure.message, failure.kind, owner=self.owner)
        if job.cancelled:
            return False
        logger.info("Run %s has finished.", run, extra=about)
        return runs.finish(run, job.plan.result, owner=self.owner)

    # Steps

    def _jobs_of(self, node: Node | None) -> list[Job]:
        return [self.jobs[run] for run in sorted(node.runs) if run in self.jobs] if node else []

    def _started(self, event: Event) -> None:
        self.meter.started(event.ticket)
        node = self.board.started(event.ticket, event.values["owner"])
        for job in self._jobs_of(node):
            job.reached(node.step.key, node.title)

    def _progressed(self, event: Event) -> None:
        node = self.board.at_work(event.ticket)
        for job in self._jobs_of(node):
            job.reached(node.step.key, node.title, event.values["fraction"], event.values["message"])

    def _measured(self, event: Event) -> None:
        for job in self._jobs_of(self.board.at_work(event.ticket)):
            job.metrics(event.values["values"])

    def _logged(self, event: Event) -> None:
        for job in self._jobs_of(self.board.at_work(event.ticket)):
            job.log(event.values["line"])

    def _done(self, event: Event) -> None:
        attempt = self.board.ended(event.ticket)
        if attempt is None:
            return
        self._over(attempt)
        node = attempt.node
        self.meter.ended(event.ticket, node.step.name, "done")
        if attempt.stop_by is None:
            self.board.remove(node)
            for job in self._jobs_of(node):
                job.made(node.step.key, node.title)

    def _failed(self, event: Event) -> None:
        attempt = self.board.ended(event.ticket)
        if attempt is None:
            return
        self._over(attempt)
        failure: Failure = event.values["failure"]
        self.meter.ended(event.ticket, attempt.node.step.name, "failed")
        if failure.missing:
            self._make_missing(attempt.node, failure)
        else:
            self._give_up(attempt.node, failure)

    def _lost(self, event: Event) -> None:
        """A worker has ended with a step, or before it started it."""
        attempt = self.board.lost(event.ticket)
        if attempt is None:
            return
        self._over(attempt)
        node = attempt.node
        self.meter.ended(event.ticket, node.step.name, "lost")
        about = {"run": ",".join(sorted(node.runs)), "step": node.step.key}
        logger.warning("Step '%s' has lost its worker: %s", node.title, event.values["reason"], extra=about)
        self.workers.pop(attempt.worker, None)
        # A worker that ends as soon as it starts a step may not have said so; it has claimed the step.
        owner = attempt.owner or self.store.claims.left_behind(node.step.key, attempt.since)
        self.store.claims.release_all(owner)
        if owner and attempt.stop_by is None:
            node.deaths += 1
        if node.deaths >= MAX_DEATHS:
            text = f"The worker process ended {node.deaths} times while it computed '{node.title}'. "
            text += "It may have run out of memory; try fewer images or experts."
            self._give_up(node, Failure(text, "WorkerDied"))
        for job in self._jobs_of(node):
            job.log(f"{node.title}: the worker process ended; the step is tried again.")

    def _make_missing(self, node: Node, failure: Failure) -> None:
        """An artefact that a step reads was damaged or collected since the plan was made: make it again."""
        self.board.hold(node, failure.missing)
        for job in self._jobs_of(node):
            job.resets += 1
            if job.resets > MAX_RESETS or failure.missing not in job.plan.by_key():
                self._fail(job, failure)
            else:
                self._planning.submit(self._plan, job.run, job.plan)

    def _give_up(self, node: Node, failure: Failure) -> None:
        """A step cannot be computed: its runs go on with the plan that is left without it, or end."""
        jobs = self._jobs_of(node)
        for job in jobs:
            others = ", ".join(f"'{other.run.name or other.run.id}'" for other in jobs if other is not job)
            if others:
                job.log(f"{node.title}: the step is shared with {others}.")
            rest = job.plan.without_failed(node.step.key, failure.message)
            if rest is None:
                self._fail(job, failure)
                continue
            job.log(f"{node.title}: {failure.message} The rest goes on without it.")
            keys = rest.by_key()
            self.store.runs.set_step_keys(job.run.id, keys)  # where it fails, the step is tried again
            self.board.leave(job.run.id, keep=keys)
            needed = [step for key, step in keys.items() if job.lacks(key)]
            job.follow(rest, needed, self.board.seconds)
            self._want(job, needed)

    def _over(self, attempt: Attempt) -> None:
        """An attempt has ended; cancelled runs that waited for that can end."""
        for job in self.jobs.values():
            job.stopping.discard(attempt.ticket)
