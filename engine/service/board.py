"""What is to be computed for whom: the steps of all active runs, each step once. Knows nothing of dask."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from ..pipeline.executor import PlanProgress
from ..pipeline.graph import Plan
from ..pipeline.kinds import is_urgent
from ..pipeline.steps import Step
from ..store import Reporter, Run


@dataclass
class Node:
    """A step that some run waits for."""

    step: Step
    runs: set[str] = field(default_factory=set)
    state: Literal["waiting", "running", "stopping", "done"] = "waiting"
    deaths: int = 0  # attempts that ended with the death of the worker
    resets: int = 0  # times an input turned out to be missing
    number: int = 0  # of the attempt
    ticket: str = ""  # names the attempt
    worker: str = ""  # address
    owner: str = ""  # the process, known once it has started
    kill_at: float = 0.0  # when patience ends, if it is to stop

    @property
    def title(self) -> str:
        """What people call it."""
        return self.step.label


@dataclass
class Job:
    """A run that the service works on."""

    run: Run
    reporter: Reporter
    plan: Plan | None = None  # None while it is being planned
    progress: PlanProgress | None = None
    order: dict[str, int] = field(default_factory=dict)  # places of the steps in the plan
    lines: list[str] = field(default_factory=list)  # log lines not yet written
    stopping: set[str] = field(default_factory=set)  # steps whose end a cancelled run waits for
    cancelled: bool = False

    def report(self, node: Node, message: str = "") -> None:
        """Write where the run is, as seen from one of its steps."""
        if self.progress is not None:
            place = {"step_number": self.progress.number, "step_count": self.progress.count}
            self.reporter.set(fraction=self.progress.fraction, message=message, step=node.title, **place)

    def flush(self, *, now: bool = False) -> None:
        """Write progress if it is time to."""
        self.reporter.flush(now=now)


class Board:
    """Jobs and nodes; equal steps of several runs are one node."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.nodes: dict[str, Node] = {}

    def add(self, job: Job, needed: Iterable[Step]) -> None:
        """A job has been planned: its needed steps join the board."""
        job.order = {step.key: place for place, step in enumerate(job.plan.steps)} if job.plan else {}
        for step in needed:
            node = self.nodes.setdefault(step.key, Node(step))
            node.runs.add(job.run.id)

    def again(self, job: Job, step: Step) -> None:
        """A step whose artefact has gone is needed again."""
        node = self.nodes.setdefault(step.key, Node(step))
        node.runs.add(job.run.id)
        if node.state == "done":
            node.state = "waiting"

    def waiting(self) -> list[Node]:
        """Nodes whose inputs are there, in the order in which they are to be computed."""
        ready = [node for node in self.nodes.values() if node.state == "waiting" and self._fed(node)]
        return sorted(ready, key=self._rank)

    def of_ticket(self, ticket: str) -> Node | None:
        """The node whose present attempt has this ticket."""
        return next((node for node in self.nodes.values() if node.ticket == ticket), None) if ticket else None

    def at_work(self) -> list[Node]:
        """Nodes that occupy a worker."""
        return [node for node in self.nodes.values() if node.state in ("running", "stopping")]

    def jobs_of(self, node: Node) -> Iterator[Job]:
        """Jobs that wait for a node."""
        for run in sorted(node.runs):
            if run in self.jobs:
                yield self.jobs[run]

    def detach(self, run: str, keep: Collection[str] = ()) -> list[Node]:
        """A run wants nothing any more, except the steps with the keys to keep.

        Returns:
            Nodes at work that nobody else wants: they are to stop.
        """
        orphans = []
        for key, node in list(self.nodes.items()):
            if key in keep:
                continue
            node.runs.discard(run)
            if node.runs:
                continue
            if node.state == "running":
                orphans.append(node)
            elif node.state in ("waiting", "done"):
                del self.nodes[key]
        return orphans

    def idle(self, node: Node) -> None:
        """An attempt has ended without a result: the node waits again, or goes when nobody wants it."""
        node.state, node.ticket, node.worker, node.owner = "waiting", "", "", ""
        if not node.runs:
            self.nodes.pop(node.step.key, None)

    def complete(self, job: Job) -> bool:
        """Whether all that a job needs is done."""
        if job.plan is None or job.progress is None:
            return False
        return all(key not in self.nodes or self.nodes[key].state == "done" for key in job.progress.needed)

    def _fed(self, node: Node) -> bool:
        return all(key not in self.nodes or self.nodes[key].state == "done" for key in node.step.needs)

    def _rank(self, node: Node) -> tuple[bool, str, int]:
        ranks = [
            (not is_urgent(job.run.kind), job.run.id, job.order.get(node.step.key, 0)) for job in self.jobs_of(node)
        ]
        return min(ranks, default=(True, "~", 0))
