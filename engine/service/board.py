"""The steps that active runs wait for, each computed once, whoever wants it, on whichever worker is free."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

from ..pipeline.steps import Step
from ..store.owners import is_alive, is_neighbour
from .cluster import Cluster

PATIENCE = 1.0  # seconds a step has to stop by itself
START = 5.0  # seconds in which a worker has to start a step that it is given
LATE = 15.0  # seconds after which a step that was taken back does not start any more
QUICK = 0.1  # seconds; a worker at a step whose kind took less the last time is given the next steps ahead
AHEAD = 2  # steps that wait on such a worker
SOON = 0.5  # seconds in which a step that was given ahead has to start
LONG = 5.0  # seconds; steps whose kind took as long the last time leave a worker to whoever has a page open


@dataclass(eq=False)
class Node:
    """A step that runs wait for."""

    step: Step
    runs: set[str] = field(default_factory=set)  # their ids
    rank: tuple[float, int] = (inf, 0)  # lower ones are computed first
    lacks: set[str] = field(default_factory=set)  # keys of steps that have to be done before
    attempt: Attempt | None = None  # at work
    deaths: int = 0  # workers that ended while they computed it
    urgent: bool = False  # somebody sits and waits for it

    @property
    def title(self) -> str:
        """Return the name for people."""
        return self.step.label


@dataclass(eq=False)
class Attempt:
    """A step that a worker was given."""

    node: Node
    ticket: str  # its name in the cluster
    worker: str  # address
    given: float  # when
    start_by: float
    since: float = field(default_factory=time.time)  # when it was given, by the clock that claims are written with
    owner: str = ""  # the worker's process; empty until the step has started
    started: float | None = None  # when
    stop_by: float | None = None  # when patience ends, once it is to stop
    late: bool = False  # it was not started in time, and is computed elsewhere


class Board:
    """Gives the steps to workers in order, and ends those that nobody waits for any more."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._mark = secrets.token_hex(3)  # tells the tickets of this service from those of an earlier one
        self._numbers = count(1)
        self._nodes: dict[str, Node] = {}  # by key of the step
        self._readers: dict[str, set[str]] = {}  # key of a step → those that lack it
        self._ready: list[tuple[tuple[float, int], int, Node]] = []  # a heap; what is outdated is left out when taken
        self._attempts: dict[str, Attempt] = {}  # by ticket, with those that are to stop
        self.seconds: dict[str, float] = {}  # name of a kind of step → how long the last one took
        self.attended = True  # whether somebody has a page open, for whom a worker is kept free of long steps
        self._kinds: set[bool] = set()  # kinds of workers that there have been, with and without a GPU
        self._homes: dict[
            str, str
        ] = {}  # name of a kind of step that keeps something in memory → the last one's worker

    def want(self, run: str, steps: Iterable[Step], priority: float, *, urgent: bool = False) -> None:
        """Have steps computed for a run; those that others wait for already are shared.

        Args:
            run: its id.
            steps: in topological order; what they read is among them, on the board or in the store.
            priority: higher ones come first.
            urgent: somebody sits and waits for it.
        """
        for place, step in enumerate(steps):
            node = self._nodes.setdefault(step.key, Node(step))
            node.runs.add(run)
            node.urgent |= urgent
            node.rank = min(node.rank, (-priority, place))
            node.lacks = {key for key in step.needs if key in self._nodes}
            for key in node.lacks:
                self._readers.setdefault(key, set()).add(step.key)
            self._queue(node)

    def leave(self, run: str, keep: Collection[str] = ()) -> set[str]:
        """End a run's interest in its steps; those that nobody else waits for are taken back or asked to stop.

        Args:
            run: its id.
            keep: keys of steps that it still wants.

        Returns:
            Tickets of those that were asked to stop.
        """
        stopped = set()
        for key, node in list(self._nodes.items()):
            if run not in node.runs or key in keep:
                continue
            node.runs.discard(run)
            if not node.runs:
                self.remove(node)
                if node.attempt is not None and self._stop(node.attempt):
                    stopped.add(node.attempt.ticket)
        return stopped

    def remove(self, node: Node) -> None:
        """Take a step off the board, because it is done or nobody wants it; what reads it need not wait for it."""
        if self._nodes.get(node.step.key) is node:
            del self._nodes[node.step.key]
        for key in self._readers.pop(node.step.key, ()):
            if reader := self._nodes.get(key):
                reader.lacks.discard(node.step.key)
                self._queue(reader)

    def hold(self, node: Node, key: str) -> None:
        """Have a step wait until another one is done, or it is wanted anew."""
        node.lacks.add(key)
        self._readers.setdefault(key, set()).add(node.step.key)

    def hand_out(self, workers: Mapping[str, bool]) -> None:
        """Give the first steps that lack nothing to free workers, then to those that will soon be free.

        Args:
            workers: address of every living worker → whether it has a GPU.
        """
        self._kinds.update(workers.values())
        free = self._open(workers) if self._ready else []
        passed = []
        while free and self._ready:
            entry = heappop(self._ready)
            node = entry[-1]
            if self._nodes.get(node.step.key) is not node or node.attempt or node.lacks or entry[0] != node.rank:
                continue
            wants = (node.step.gpu and True in self._kinds) or False not in self._kinds
            alike = [address for address, gpu in workers.items() if gpu == wants]
            if self._leaves_room(node, alike):
                worker = self._worker_for(node, [address for address in free if workers[address] == wants])
            else:
                worker = None
            if worker is None:
                passed.append(entry)
                continue
            free.remove(worker)
            ticket = f"{node.step.name}-{node.step.key[:16]}-{self._mark}-{next(self._numbers)}"
            now = time.monotonic()
            start_by = now + (SOON if self._line(worker) else START)
            node.attempt = self._attempts[ticket] = Attempt(node, ticket, worker, now, start_by)
            self._cluster.submit(node.step, ticket, worker)
        for entry in passed:
            heappush(self._ready, entry)

    def started(self, ticket: str, owner: str) -> Node | None:
        """Note which process computes a step.

        Returns:
            The step; None when nobody waits for this attempt any more.
        """
        attempt = self._attempts.get(ticket)
        if attempt is None:
            return None
        attempt.owner, attempt.started = owner, time.monotonic()
        if attempt.stop_by is not None:
            self._stop(attempt)
        return self.at_work(ticket)

    def at_work(self, ticket: str) -> Node | None:
        """Return the step of an attempt, None when nobody waits for this attempt any more."""
        attempt = self._attempts.get(ticket)
        return attempt.node if attempt is not None and attempt.stop_by is None else None

    def ended(self, ticket: str) -> Attempt | None:
        """Note that an attempt is over; its step waits for another one unless it is taken off the board.

        Returns:
            The attempt; None when that was known.
        """
        attempt = self._attempts.pop(ticket, None)
        if attempt is not None:
            self._cluster.release(ticket)
            self._free(attempt)
            self._move_up(attempt)
        return attempt

    def lost(self, ticket: str) -> Attempt | None:
        """Note that the cluster has given an attempt up; its step waits for another one.

        Returns:
            The attempt; None when that was known, or it was taken back before it started.
        """
        attempt = self._attempts.get(ticket)
        return self.ended(ticket) if attempt and (attempt.owner or attempt.stop_by is None) else None

    def computing(self) -> set[str]:
        """Return the addresses of workers that have started a step, which need not answer meanwhile."""
        return {attempt.worker for attempt in self._attempts.values() if attempt.owner}

    def abandoned(self, workers: Collection[str]) -> list[str]:
        """Return the tickets of attempts that had started on workers that are no longer there.

        Args:
            workers: addresses of those that live.
        """
        return [ticket for ticket, attempt in self._attempts.items() if attempt.owner and attempt.worker not in workers]

    def overdue(self) -> Iterator[Attempt]:
        """Give steps that did not start in time to others, and end workers of steps that did not stop in time.

        Yields:
            Attempts that are over because their worker's process, on this host, has ended.
        """
        now = time.monotonic()
        for attempt in list(self._attempts.values()):
            if attempt.stop_by is None and not attempt.owner and now >= attempt.start_by:
                attempt.late = self._line(attempt.worker)[:1] == [attempt]  # else the step before it takes longer
                self._stop(attempt)
                self._free(attempt)
            if attempt.stop_by is None or now < attempt.stop_by:
                continue
            neighbour = is_neighbour(attempt.owner)
            if not attempt.owner:
                self.ended(attempt.ticket)
            elif neighbour and not is_alive(attempt.owner):
                self.ended(attempt.ticket)
                yield attempt
            else:
                self._cluster.kill(attempt.worker, attempt.owner)
                attempt.stop_by = now if neighbour else now + PATIENCE

    def kill_all(self) -> None:
        """End whatever is at work."""
        for attempt in self._attempts.values():
            self._cluster.kill(attempt.worker, attempt.owner)

    def _line(self, worker: str) -> list[Attempt]:
        """Return the attempts that a worker computes, is to start or did not start, in the order they were given."""
        found = [attempt for attempt in self._attempts.values() if attempt.worker == worker]
        return [attempt for attempt in found if attempt.owner or attempt.stop_by is None or attempt.late]

    def _open(self, workers: Iterable[str]) -> list[str]:
        """Return the addresses of workers that can be given a step: free ones, then those that soon are.

        A step takes longer to reach a worker than many a step takes to be computed.
        """
        lines = {worker: self._line(worker) for worker in workers}
        soon = [worker for worker, line in lines.items() if 0 < len(line) <= AHEAD and all(map(self._soon_over, line))]
        return [worker for worker, line in lines.items() if not line] + soon

    def _leaves_room(self, node: Node, workers: Collection[str]) -> bool:
        """Tell whether a step is short or waited for, or another worker than its own stays free of long ones.

        Where nobody has a page open, nobody needs one.
        """
        if len(workers) < 2 or not self.attended or not self._is_long(node):
            return True
        held = sum(any(self._is_long(attempt.node, attempt) for attempt in self._line(worker)) for worker in workers)
        return held < len(workers) - 1

    def _is_long(self, node: Node, attempt: Attempt | None = None) -> bool:
        """Tell whether a step that nobody sits and waits for takes long, as the last of its kind or by now."""
        taken = time.monotonic() - attempt.started if attempt is not None and attempt.started is not None else 0.0
        return not node.urgent and max(self.seconds.get(node.step.name, 0.0), taken) >= LONG

    def _worker_for(self, node: Node, fitting: list[str]) -> str | None:
        """Return the free worker that a step is given, None where it waits for one.

        A step that finds something in the memory of its worker is given the one that computed the last of its kind,
        also where that one is still about to stop an earlier step of this kind.
        """
        name = node.step.name
        if not node.step.kind.resident:
            return next(iter(fitting), None)
        home = self._homes.get(name, "")
        line = self._line(home) if home not in fitting else []
        if line and all(attempt.node.step.name == name and not attempt.late for attempt in line):
            return None
        if fitting:
            self._homes[name] = home if home in fitting else fitting[0]
        return self._homes[name] if fitting else None

    def _soon_over(self, attempt: Attempt) -> bool:
        quick = self.seconds.get(attempt.node.step.name, inf) < QUICK
        return quick and attempt.stop_by is None and time.monotonic() < (attempt.started or attempt.given) + SOON

    def _move_up(self, ended: Attempt) -> None:
        """Note how long an attempt took; the next one on its worker has to start now."""
        now = time.monotonic()
        if ended.started is not None:
            self.seconds[ended.node.step.name] = now - ended.started
        for place, attempt in enumerate(self._line(ended.worker)):
            if not attempt.owner and attempt.stop_by is None:
                attempt.start_by = now + (SOON if place else START)

    def _queue(self, node: Node) -> None:
        if not node.lacks and node.attempt is None:
            heappush(self._ready, (node.rank, next(self._numbers), node))

    def _free(self, attempt: Attempt) -> None:
        """Have the step of an attempt wait for another one, if it is still wanted."""
        if attempt.node.attempt is attempt:
            attempt.node.attempt = None
            if self._nodes.get(attempt.node.step.key) is attempt.node:
                self._queue(attempt.node)

    def _stop(self, attempt: Attempt) -> bool:
        """Ask an attempt to stop, or not to start if it has not; returns whether it had.

        Its end is heard of either way: it may have started, or ended, since the worker was heard of.
        """
        attempt.stop_by = time.monotonic() + (PATIENCE if attempt.owner else LATE)
        self._cluster.ask_to_stop(attempt.ticket, attempt.worker)
        return bool(attempt.owner)
