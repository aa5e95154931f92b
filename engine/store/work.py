"""The run table as those who carry runs out use it: take up, report, end."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from .database import Database
from .owners import is_alive
from .records import ACTIVE, HELD, Run, ended, run_of
from .tables import run as run_table

MAX_ATTEMPTS = 3  # times a run is taken up by a service before it counts as what kills them


class Work(ABC):
    """The side of the run table that services and command lines write."""

    _database: Database

    @abstractmethod
    def get(self, run: str) -> Run:
        """A row."""

    def claim_next(self, owner: str, kinds: Iterable[str] | None = None) -> Run | None:
        """Take up the oldest queued row; two processes never take the same one."""
        where = [run_table.c.state == "queued", run_table.c.deleted.is_(None)]
        where += [run_table.c.kind.in_(tuple(kinds))] if kinds is not None else []
        oldest = sa.select(run_table.c.id).where(*where).order_by(run_table.c.created, run_table.c.id).limit(1)
        now = time.time()
        with self._database.read() as connection:
            if connection.execute(oldest).scalar() is None:
                return None
        with self._database.write() as connection:
            found = connection.execute(oldest).scalar()
            taken = found and connection.execute(
                sa.update(run_table)
                .where(run_table.c.id == found, run_table.c.state == "queued")
                .values(state="running", owner=owner, heartbeat=now, started=now, attempts=run_table.c.attempts + 1)
            )
        return self.get(found) if taken and taken.rowcount else None

    def heartbeat(self, owner: str) -> None:
        """Say that a process still works on its rows."""
        self._update((run_table.c.owner == owner) & run_table.c.state.in_(HELD), heartbeat=time.time())

    def set_progress(self, run: str, **changes: Any) -> None:
        """Set fraction, message, step, step_number, step_count or metrics; :class:`Reporter` throttles."""
        self._update((run_table.c.id == run) & run_table.c.state.in_(HELD), heartbeat=time.time(), **changes)

    def set_step_keys(self, run: str, keys: Iterable[str]) -> None:
        """Record the artefacts that a run refers to, so that garbage collection keeps them."""
        self._update(run_table.c.id == run, step_keys=list(dict.fromkeys(keys)))

    def cancelling(self, owner: str) -> list[str]:
        """Ids of a process's rows that somebody asked to stop."""
        query = sa.select(run_table.c.id).where(run_table.c.owner == owner, run_table.c.state == "cancelling")
        with self._database.read() as connection:
            return list(connection.execute(query).scalars())

    def finish(self, run: str, result: str, *, owner: str | None = None) -> bool:
        """A run is done.

        Args:
            run: its id.
            result: artefact key or folder.
            owner: only when this process still has it.

        Returns:
            False when the row was no longer running (cancelled, or taken by another).
        """
        where = (run_table.c.id == run) & (run_table.c.state == "running")
        return self._end(where, owner, result=result, fraction=1.0, message="", **ended("finished"))

    def fail(self, run: str, message: str, kind: str = "error", *, owner: str | None = None) -> bool:
        """A run cannot be carried out, for a reason that people can read."""
        where = (run_table.c.id == run) & run_table.c.state.in_(ACTIVE)
        return self._end(where, owner, error=message, error_kind=kind, **ended("failed"))

    def cancelled(self, run: str, *, owner: str | None = None) -> bool:
        """A run has stopped because somebody asked for it."""
        where = (run_table.c.id == run) & run_table.c.state.in_(ACTIVE)
        return self._end(where, owner, **ended("cancelled"))

    def release(self, owner: str, *, keep: Iterable[str] = ()) -> int:
        """Give the rows of a process back to the queue (it leaves in order); those to be cancelled are.

        Args:
            owner: the process.
            keep: ids of rows that it still works on.
        """
        held = (run_table.c.owner == owner) & run_table.c.id.not_in(tuple(keep))
        self._update(held & (run_table.c.state == "cancelling"), **ended("cancelled"))
        values = {"state": "queued", "owner": None, "attempts": run_table.c.attempts - 1, "message": ""}
        return self._update(held & (run_table.c.state == "running"), **values)

    def requeue_orphans(self, *, service: str | None = None) -> list[str]:
        """Give rows whose process has died back to the queue.

        A row that has been taken up too often fails (it may be what kills the service), and so does one that a
        command line was carrying out.

        Args:
            service: the service that has the lease, if that is who asks; rows of any other service are orphans then.

        Returns:
            Ids of the rows that are queued again.
        """
        query = sa.select(run_table).where(run_table.c.state.in_(HELD))
        with self._database.read() as connection:
            rows = [run_of(row) for row in connection.execute(query).mappings()]
        return [row.id for row in rows if _orphan(row, service) and self._take_away(row)]

    def _take_away(self, row: Run) -> bool:
        """Take a row from a dead process; True when it is queued again."""
        where = (run_table.c.id == row.id) & (run_table.c.owner == row.owner) & run_table.c.state.in_(HELD)
        if row.state == "cancelling":
            self._update(where, **ended("cancelled"))
        elif (row.owner or "").startswith("inline:"):
            text = "The process that carried this run out has ended. Resume the run to have the service finish it."
            self._update(where, error=text, error_kind="interrupted", **ended("failed"))
        elif row.attempts >= MAX_ATTEMPTS:
            text = f"The engine service ended {row.attempts} times while it worked on this run; it is not tried again."
            self._update(where, error=text, error_kind="interrupted", **ended("failed"))
        else:
            return self._update(where, state="queued", owner=None, message="Taken up again") > 0
        return False

    def _end(self, where: Any, owner: str | None, **values: Any) -> bool:
        return self._update(where & (run_table.c.owner == owner) if owner else where, **values) > 0

    def _update(self, where: Any, **values: Any) -> int:
        with self._database.write() as connection:
            return connection.execute(sa.update(run_table).where(where).values(**values)).rowcount


def _orphan(row: Run, service: str | None) -> bool:
    owner = row.owner or ""
    if service is not None and owner.startswith("service:"):
        return owner != service
    return not is_alive(owner, row.heartbeat)
