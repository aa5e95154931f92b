"""The run table: the only channel between pages, command line and service."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from ..errors import StoreError
from .database import Database
from .logs import Logs
from .owners import is_alive
from .records import ENDED, HELD, KINDS, Run, ended, new_id, run_of
from .tables import log as log_table
from .tables import run as run_table
from .work import Work

EDITABLE = ("name", "notes", "tags")


class RunTable(Work, Logs):
    """Reads and writes rows; every method is one transaction, safe with several processes."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
        owner: str | None = None,
    ) -> Run:
        """Add a row for the service to take up.

        Args:
            kind: one of ``KINDS``.
            request: what is asked for, JSON values.
            name: what people call it.
            parent: id of the run that this belongs to.
            tags: for finding it again.
            notes: free text.
            requested_by: who asked.
            owner: a process that carries it out itself; no service takes it up then.

        Raises:
            StoreError: there is no such kind.
        """
        if kind not in KINDS:
            raise StoreError(f"There is no kind of run '{kind}'. Kinds: {', '.join(KINDS)}.")
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
        }
        with self._database.write() as connection:
            connection.execute(sa.insert(run_table).values(**row))
        return self.get(row["id"])

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
        }
        there = sa.select(run_table.c.id).where(run_table.c.parent == parent, run_table.c.result == result)
        with self._database.write() as connection:
            if connection.execute(there).first() is None:
                connection.execute(sa.insert(run_table).values(**values))

    def find(self, run: str) -> Run | None:
        """A row, None when there is none."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(run_table).where(run_table.c.id == run)).mappings().first()
        return run_of(row) if row else None

    def get(self, run: str) -> Run:
        """A row.

        Raises:
            StoreError: there is none.
        """
        found = self.find(run)
        if found is None:
            raise StoreError(f"There is no run '{run[:40]}' in this store.")
        return found

    def list(
        self,
        *,
        kinds: Iterable[str] | None = None,
        states: Iterable[str] | None = None,
        parent: str | None = None,
        children: bool = True,
        tag: str | None = None,
        search: str = "",
        deleted: bool = False,
        limit: int = 100,
    ) -> list[Run]:
        """Rows, newest first.

        Args:
            kinds: only these.
            states: only these.
            parent: only children of this run.
            children: False leaves out rows that belong to another one.
            tag: only with this tag.
            search: only with this text in id, name, notes, tags or request.
            deleted: the deleted ones instead of the others.
            limit: at most so many.
        """
        where = [run_table.c.deleted.is_not(None) if deleted else run_table.c.deleted.is_(None)]
        where += [run_table.c.kind.in_(tuple(kinds))] if kinds is not None else []
        where += [run_table.c.state.in_(tuple(states))] if states is not None else []
        where += [run_table.c.parent == parent] if parent is not None else []
        where += [] if children else [run_table.c.parent.is_(None)]
        where += [_contains(run_table.c.tags, f'"{tag}"')] if tag is not None else []
        if search.strip():
            columns = (run_table.c.id, run_table.c.name, run_table.c.notes, run_table.c.tags, run_table.c.request)
            where += [sa.or_(*(_contains(column, word) for column in columns)) for word in search.split()]
        query = sa.select(run_table).where(*where).order_by(run_table.c.created.desc(), run_table.c.id.desc())
        with self._database.read() as connection:
            return [run_of(row) for row in connection.execute(query.limit(limit)).mappings()]

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
            StoreError: it is neither.
        """
        where = (run_table.c.id == run) & run_table.c.state.in_(("cancelled", "failed"))
        values = {"state": "queued", "owner": None, "error": "", "error_kind": "", "finished": None, "attempts": 0}
        if not self._update(where, **values, fraction=0.0, message="", step="", metrics={}):
            raise StoreError(f"Run '{run}' is {self.get(run).state}; only a cancelled or failed run can be resumed.")
        return self.get(run)

    def delete(self, run: str) -> None:
        """Hide an ended run and what belongs to it; ``undelete`` brings it back until garbage collection purges it.

        Raises:
            StoreError: the run is still active.
        """
        if self.get(run).active:
            raise StoreError(f"Run '{run}' is still active; cancel it first.")
        inside = (run_table.c.parent == run) & run_table.c.state.in_(ENDED)
        self._update(((run_table.c.id == run) | inside) & run_table.c.deleted.is_(None), deleted=time.time())

    def undelete(self, run: str) -> Run:
        """Bring a deleted run back, with those that went with it."""
        row = self.get(run)
        inside = (run_table.c.parent == run) & (run_table.c.deleted == row.deleted)
        self._update((run_table.c.id == run) | inside, deleted=None)
        return self.get(run)

    def purge(self, before: float) -> list[str]:
        """Remove the rows and logs of runs that were deleted before a time."""
        with self._database.write() as connection:
            query = sa.select(run_table.c.id).where(run_table.c.deleted < before)
            ids = list(connection.execute(query).scalars())
            for part in (ids[start : start + 500] for start in range(0, len(ids), 500)):
                connection.execute(sa.delete(log_table).where(log_table.c.run.in_(part)))
                connection.execute(sa.delete(run_table).where(run_table.c.id.in_(part)))
        return ids

    def references(self, *, without: Collection[str] = ()) -> set[str]:
        """Keys of all artefacts that some run refers to, deleted runs that were not purged included.

        Args:
            without: ids of runs that do not count.
        """
        with self._database.read() as connection:
            found = connection.execute(sa.select(run_table.c.id, run_table.c.step_keys, run_table.c.result)).all()
        rows = [(keys, result) for ident, keys, result in found if ident not in without]
        return {key for keys, result in rows for key in (*keys, result) if key}

    def wait(self, run: str, timeout: float | None = None, interval: float = 0.1) -> Run:
        """Wait until a run has ended, or the time is up; returns the row either way."""
        deadline = None if timeout is None else time.monotonic() + timeout
        row = self.get(run)
        while row.active and (deadline is None or time.monotonic() < deadline):
            time.sleep(interval)
            row = self.get(run)
        return row


def _contains(column: Any, text: str) -> Any:
    return sa.cast(column, sa.Text).icontains(text, autoescape=True)
