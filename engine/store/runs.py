"""The run table: the only channel between pages, command line and service."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from ..errors import StoreError
from .database import Database
from .history import History
from .logs import Logs
from .orphans import LOST, fate_of, is_orphan
from .owners import is_alive
from .queries import ANY_WAITS, matching, next_in_turn
from .run import ACTIVE, ENDED, HELD, RECORDED, Run, ended, new_id, run_of
from .tables import log as log_table
from .tables import run as run_table

MOST_KIND = run_table.c.error_kind.type.length
EDITABLE = ("name", "notes", "tags")


class RunTable:
    """Reads and writes rows; every method is one transaction, safe with several processes.

    Pages and command lines submit, look and edit; services and command lines also take up, report and end.
    """

    def __init__(self, database: Database, history: History) -> None:
        self._database, self._history = database, history
        self.logs = Logs(database)

    def submit(
        self,
        kind: str,
        request: Mapping[str, Any],
        *,
        name: str = "",
        parent: str | None = None,
        tags: Sequence[str] = (),
        notes: str = "",
        requested_by: str = "",
        person: str = "",
        owner: str | None = None,
    ) -> Run:
        """Add a row for the service to take up.

        Args:
            kind: see :mod:`engine.pipeline.kinds`.
            request: what is asked for, JSON values.
            name: what people call it.
            parent: id of the run that this belongs to.
            tags: for finding it again.
            notes: free text.
            requested_by: the page or command that asked.
            person: id of whom it belongs to.
            owner: a process that carries it out itself; no service takes it up then.
        """
        now = time.time()
        row = {
            "id": new_id(now),
            "kind": kind,
            "parent": parent,
            "name": name,
            "request": dict(request),
            "state": "running" if owner else "queued",
            "owner": owner,
            "heartbeat": now if owner else None,
            "created": now,
            "started": now if owner else None,
            "attempts": 1 if owner else 0,
            "metrics": {},
            "step_keys": [],
            "tags": list(tags),
            "notes": notes,
            "requested_by": requested_by,
            "person": person,
        }
        self._database.write(lambda connection: connection.execute(sa.insert(run_table).values(**row)))
        return self._kept(row["id"])

    def adopt(
        self, parent: str, result: str, *, name: str, request: Mapping[str, Any], step_keys: Iterable[str] = ()
    ) -> None:
        """Add a finished run that another row's work has made along the way, once.

        Args:
            parent: the row that made it.
            result: key of the artefact that it left.
            name: what people call it.
            request: what a row of its own would have asked for.
            step_keys: artefacts that it refers to.
        """
        now = time.time()
        values = {
            "id": new_id(now),
            "kind": "run",
            "parent": parent,
            "name": name,
            "request": dict(request),
            "state": "finished",
            "result": result,
            "fraction": 1.0,
            "created": now,
            "finished": now,
            "metrics": {},
            "step_keys": list(dict.fromkeys((*step_keys, result))),
            "tags": [],
            "requested_by": "parent",
            "person": self.get(parent).person,
        }
        there = sa.select(run_table.c.id).where(run_table.c.parent == parent, run_table.c.result == result)

        def add(connection: sa.Connection) -> bool:
            new = connection.execute(there).first() is None
            if new:
                connection.execute(sa.insert(run_table).values(**values))
            return new

        if self._database.when_there_is_room(lambda: self._database.write(add)):
            self._kept(values["id"])

    def add_recorded(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Add rows that the store has on record and the table has lost; see rebuild.py.

        Args:
            rows: ``RECORDED`` columns of each. A run that was active fails: what carried it out has ended.

        Returns:
            How many were added; rows that the table has stay as they are.
        """
        found = list(rows)

        def add(connection: sa.Connection) -> list[dict[str, Any]]:
            known, added = set(connection.execute(sa.select(run_table.c.id)).scalars()), []
            for row in found:
                if row["id"] not in known:
                    values = {**row, "metrics": {}, "fraction": float(row["state"] == "finished")}
                    added.append(values | (LOST if row["state"] in ACTIVE else {}))
            for values in added:
                connection.execute(sa.insert(run_table).values(**values))
            return added

        added = self._database.write(add)
        for values in added:
            self._kept(values["id"])
        return len(added)

    def count(self) -> int:
        """Return how many rows there are, deleted ones included."""
        query = sa.select(sa.func.count()).select_from(run_table)
        return self._database.read(lambda connection: connection.execute(query).scalar()) or 0

    def find(self, run: str) -> Run | None:
        """Return a row, None when there is none."""
        query = sa.select(run_table).where(run_table.c.id == run)
        row = self._database.read(lambda connection: connection.execute(query).mappings().first())
        return run_of(row) if row else None

    def get(self, run: str) -> Run:
        """Return a row.

        Raises:
            StoreError: there is none.
        """
        found = self.find(run)
        if found is None:
            raise StoreError(f"There is no run '{run[:40]}' in this store.")
        return found

    def list(self, *, limit: int = 100, **filters: Any) -> list[Run]:
        """Return rows, newest first.

        Args:
            limit: at most so many.
            filters: those of :func:`engine.store.queries.matching`.
        """
        return self._rows(matching(**filters).limit(limit))

    def edit(self, run: str, **changes: Any) -> Run:
        """Change name, notes or tags.

        Raises:
            StoreError: there is no such run, or the field is not to be edited.
        """
        if refused := set(changes) - set(EDITABLE):
            raise StoreError(f"{', '.join(sorted(refused))} of a run cannot be edited; {', '.join(EDITABLE)} can.")
        self._update(run_table.c.id == run, **changes)
        return self.get(run)

    def request_cancel(self, run: str) -> Run:
        """Ask for a run to stop; one that nobody works on is cancelled at once."""
        row = self.get(run)
        self._update((run_table.c.id == run) & (run_table.c.state == "queued"), **ended("cancelled"))
        held = (run_table.c.id == run) & run_table.c.state.in_(HELD)
        if row.owner and not is_alive(row.owner, row.heartbeat):
            self._update(held & (run_table.c.owner == row.owner), **ended("cancelled"))
        self._update(held, state="cancelling")
        return self.get(run)

    def resume(self, run: str) -> Run:
        """Put a cancelled or failed run back into the queue; its finished steps are not computed again.

        Raises:
            StoreError: it is neither, or deleted.
        """
        there = (run_table.c.id == run) & run_table.c.deleted.is_(None)
        where = there & run_table.c.state.in_(("cancelled", "failed"))
        values = {"state": "queued", "owner": None, "error": "", "error_kind": "", "finished": None}
        values |= {"attempts": 0, "plannings": 0, "fraction": 0.0, "message": "", "step": "", "metrics": {}}
        if not self._update(where, **values):
            row = self.get(run)
            how = "deleted" if row.deleted else row.state
            raise StoreError(f"Run '{run}' is {how}; only a cancelled or failed run that is there can be resumed.")
        return self.get(run)

    def delete(self, run: str) -> None:
        """Hide an ended run and what belongs to it; ``undelete`` brings it back until garbage collection purges it.

        Raises:
            StoreError: the run is still active.
        """
        if self.get(run).active:
            raise StoreError(f"Run '{run}' is still active; cancel it first.")
        ended_here = run_table.c.state.in_(ENDED) & run_table.c.deleted.is_(None)
        self._update(((run_table.c.id == run) | (run_table.c.parent == run)) & ended_here, deleted=time.time())

    def undelete(self, run: str) -> Run:
        """Bring a deleted run back, with those that went with it."""
        row = self.get(run)
        inside = (run_table.c.parent == run) & (run_table.c.deleted == row.deleted)
        self._update((run_table.c.id == run) | inside, deleted=None)
        return self.get(run)

    def purge(self, before: float) -> list[str]:
        """Remove the rows and logs of runs that were deleted before a time."""
        return self.forget(run_table.c.deleted < before)

    def forget(self, where: sa.ColumnElement[bool]) -> list[str]:
        """Remove the rows and logs of runs that a condition holds for; returns their ids."""

        def remove(connection: sa.Connection) -> list[str]:
            ids = list(connection.execute(sa.select(run_table.c.id).where(where)).scalars())
            for part in (ids[start : start + 500] for start in range(0, len(ids), 500)):
                connection.execute(sa.delete(log_table).where(log_table.c.run.in_(part)))
                connection.execute(sa.delete(run_table).where(run_table.c.id.in_(part)))
            return ids

        ids = self._database.write(remove)
        self._history.forget(ids)
        return ids

    def references(self, *, without: Collection[str] = ()) -> set[str]:
        """Return the keys of all artefacts that some run refers to, deleted runs that were not purged included.

        Args:
            without: ids of runs that do not count.
        """
        query = sa.select(run_table.c.id, run_table.c.step_keys, run_table.c.result)
        found = self._database.read(lambda connection: connection.execute(query).all())
        rows = [(keys, result) for ident, keys, result in found if ident not in without]
        return {key for keys, result in rows for key in (*keys, result) if key}

    def wait(self, run: str, timeout: float | None = None, interval: float = 0.1) -> Run:
        """Wait until a run has ended, or the time is up, and return the row either way."""
        deadline = None if timeout is None else time.monotonic() + timeout
        row = self.get(run)
        while row.active and (deadline is None or time.monotonic() < deadline):
            time.sleep(interval)
            row = self.get(run)
        return row

    def claim_next(self, owner: str, kinds: Iterable[str] | None = None) -> Run | None:
        """Take up the oldest queued row of who has the fewest at work; two processes never take the same one."""
        if self._database.read(lambda connection: connection.execute(ANY_WAITS).scalar()) is None:
            return None
        waiting, more = next_in_turn(None if kinds is None else tuple(kinds)), run_table.c.attempts + 1

        def take(connection: sa.Connection) -> str | None:
            found, now = connection.execute(waiting).scalar(), time.time()
            values = {"state": "running", "owner": owner, "heartbeat": now, "started": now, "attempts": more}
            where = (run_table.c.id == found) & (run_table.c.state == "queued")
            return found if connection.execute(sa.update(run_table).where(where).values(**values)).rowcount else None

        found = self._database.write(take)
        return self.get(found) if found else None

    def heartbeat(self, owner: str) -> None:
        """Say that a process still works on its rows."""
        self._update((run_table.c.owner == owner) & run_table.c.state.in_(HELD), heartbeat=time.time())

    def set_progress(self, run: str, **changes: Any) -> None:
        """Set fraction, message, step, step_number, step_count or metrics; :class:`Reporter` throttles."""
        self._update((run_table.c.id == run) & run_table.c.state.in_(HELD), heartbeat=time.time(), **changes)

    def planning(self, run: str) -> None:
        """Say that a run is being planned; what ends the process meanwhile may be the run."""
        where, more = run_table.c.id == run, run_table.c.plannings + 1
        self._database.when_there_is_room(lambda: self._update(where, plannings=more))

    def set_step_keys(self, run: str, keys: Iterable[str]) -> None:
        """Record the artefacts that a planned run refers to, so that garbage collection keeps them."""
        self._update(run_table.c.id == run, step_keys=list(dict.fromkeys(keys)), plannings=0)

    def cancelling(self, owner: str) -> list[str]:
        """Return the ids of a process's rows that somebody asked to stop."""
        query = sa.select(run_table.c.id).where(run_table.c.owner == owner, run_table.c.state == "cancelling")
        return self._database.read(lambda connection: list(connection.execute(query).scalars()))

    def finish(self, run: str, result: str, *, owner: str | None = None) -> bool:
        """End a run that is done.

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
        """End a run that cannot be carried out, with a reason that people can read."""
        where = (run_table.c.id == run) & run_table.c.state.in_(ACTIVE)
        return self._end(where, owner, error=message, error_kind=kind[:MOST_KIND], **ended("failed"))

    def cancelled(self, run: str, *, owner: str | None = None) -> bool:
        """End a run that has stopped because somebody asked for it."""
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
        values = {"state": "queued", "owner": None, "attempts": run_table.c.attempts - 1, "plannings": 0, "message": ""}
        return self._update(held & (run_table.c.state == "running"), **values)

    def requeue_orphans(self, *, service: str | None = None) -> list[str]:
        """Give rows whose process has died back to the queue, or end them; see :mod:`engine.store.orphans`.

        Args:
            service: the service that has the lease, if that is who asks; rows of any other service are orphans then.

        Returns:
            Ids of the rows that are queued again.
        """
        rows = self._rows(sa.select(run_table).where(run_table.c.state.in_(HELD)))
        return [row.id for row in rows if is_orphan(row, service) and self._take_away(row)]

    def _take_away(self, row: Run) -> bool:
        """Take a row from a dead process, unless somebody has; return whether it is queued again."""
        fate = fate_of(row)
        held = (run_table.c.id == row.id) & (run_table.c.owner == row.owner) & run_table.c.state.in_(HELD)
        if not self._update(held, **fate.values) or not fate.queued:
            return False
        self.logs.append(row.id, fate.line)
        return True

    def _kept(self, run: str) -> Run:
        row = self.get(run)
        self._history.keep([row])
        return row

    def _end(self, where: Any, owner: str | None, **values: Any) -> bool:
        return self._update(where & (run_table.c.owner == owner) if owner else where, **values) > 0

    def _update(self, where: Any, **values: Any) -> int:
        """Change rows, and put on record what a rebuilt table would need."""
        change = sa.update(run_table).where(where).values(**values)
        if not set(values) & set(RECORDED):
            return self._database.write(lambda connection: connection.execute(change).rowcount)
        changed = self._database.when_there_is_room(lambda: self._changed(change))
        self._history.keep(changed)
        return len(changed)

    def _changed(self, change: sa.Update) -> list[Run]:
        returning = change.returning(run_table)
        return [run_of(row) for row in self._database.write(lambda connection: _records(connection, returning))]

    def _rows(self, query: sa.Select) -> list[Run]:
        return [run_of(row) for row in self._database.read(lambda connection: _records(connection, query))]


def _records(connection: sa.Connection, statement: Any) -> list[Any]:
    return list(connection.execute(statement).mappings())
