"""A run that the service works on: its plan, what is left of it, and what people read of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import DiskFull, StoreError
from ..pipeline.executor import PlanProgress
from ..pipeline.graph import Part, Plan
from ..pipeline.kinds import is_urgent
from ..pipeline.steps import Step
from ..store import Reporter, Run, RunTable
from ..store.database import TableLocked
from ..store.reporter import INTERVAL
from .worker import Failure

AHEAD = 1e9  # added to the priority of runs that somebody sits and waits for
MAX_REFUSALS = 10  # times that the table refuses a row of a run inside the plan, until the plan goes on without it


class Job:
    """One run between being taken up and its end."""

    def __init__(self, table: RunTable, run: Run, number: float) -> None:
        """Take a run up.

        Args:
            table: the run table.
            run: its row.
            number: its place among all; lower ones go first.
        """
        self.run, self.number = run, number
        self.urgent = is_urgent(run.kind)
        self.priority = (AHEAD if self.urgent else 0.0) - number
        self.plan: Plan | None = None  # None while it is being planned
        self.left: set[str] = set()  # keys of the steps that are still to be computed
        self.stopping: set[str] = set()  # tickets of steps whose end the run waits for, once it is cancelled
        self.cancelled = False
        self.failure: Failure | None = None  # for which it is to end
        self.resets = 0  # times an input turned out to be missing
        self._table, self._reporter = table, Reporter(table, run.id)
        self._progress: PlanProgress | None = None
        self._place: tuple[str, str] | None = None  # title of the step heard of last, and its message
        self._lines: list[str] = []  # log lines not yet written
        self._unlisted: list[Part] = []  # runs inside the plan that are there, and are to get their rows
        self._refusals = 0  # of the first of them
        self._due = 0.0  # when it is time to write again

    def follow(self, plan: Plan, needed: Iterable[Step], seconds: Mapping[str, float]) -> None:
        """Go by a plan, of which some steps are to be computed; what was done before stays done.

        Args:
            plan: the steps.
            needed: those to be computed.
            seconds: name of a kind of step → how long the last one took, by which progress is weighed.
        """
        keys = {step.key for step in needed}
        done = self._progress.done if self._progress else {}
        again = self.plan is plan and self._progress is not None
        self._progress = PlanProgress(plan, keys | (self._progress.needed if again else set()), seconds)
        self._progress.done |= {key: part for key, part in done.items() if key in self._progress.done}
        self._progress.done |= dict.fromkeys(keys, 0.0)
        self.plan, self.left = plan, self.left.intersection(plan.by_key()) | keys
        for part in plan.parts:
            if part.key not in self.left:
                self._list(part.key)

    def lacks(self, key: str) -> bool:
        """Return whether a step is still to be computed, or was not part of the plan so far."""
        return key in self.left or self._progress is None or key not in self._progress.done

    def say(self, message: str) -> None:
        """Tell people where the run is while none of its steps is at work."""
        self._place = None
        self._reporter.set(message=message, **self._numbers())

    def reached(self, key: str, title: str, fraction: float = 0.0, message: str = "") -> None:
        """Note how far a step is."""
        if self._progress is not None and key in self.left:
            self._progress.done[key] = min(fraction, 0.999)
            self._place = (title, message)

    def made(self, key: str, title: str) -> None:
        """Note that a step is done; a run inside the plan that it was is to get its row."""
        self.left.discard(key)
        if self._progress is not None:
            self._progress.done[key] = 1.0
            self._place = (title, "")
        self._list(key)

    def list_parts(self) -> None:
        """Give runs inside the plan that are there their rows; where that fails, it can be called again.

        Raises:
            StoreError: the table did not take one. A row that is refused again and again is named in the log instead.
        """
        while self._unlisted:
            part = self._unlisted[0]
            values = {"name": part.name, "request": part.request, "step_keys": part.step_keys}
            try:
                self._table.adopt(self.run.id, part.key, **values)
            except (DiskFull, TableLocked):
                raise  # it passes
            except StoreError as error:
                self._refusals += 1
                if self._refusals < MAX_REFUSALS:
                    raise
                self.log(f"{part.name}: the run is there, and could not be listed by itself. {error}")
            del self._unlisted[0]
            self._refusals = 0

    def metrics(self, values: dict[str, Any]) -> None:
        """Take live metrics."""
        self._reporter.metrics(values)

    def log(self, line: str) -> None:
        """Take a line for the log."""
        self._lines.append(line)

    def write(self, *, now: bool = False) -> None:
        """Write into the row and its log what is new, if it is time to or in any case with ``now``."""
        if not now and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + INTERVAL
        if self._lines:
            self._table.logs.append(self.run.id, self._lines)
            self._lines = []
        if self._place is not None:
            (step, message), self._place = self._place, None
            self._reporter.set(step=step, message=message, **self._numbers())
        self._reporter.flush(now=now)

    def _numbers(self) -> dict[str, Any]:
        if self._progress is None:
            return {"fraction": 0.0}
        number, count = self._progress.number, self._progress.count
        return {"fraction": self._progress.fraction, "step_number": number, "step_count": count}

    def _list(self, key: str) -> None:
        self._unlisted += [part for part in (self.plan.parts if self.plan else ()) if part.key == key]
