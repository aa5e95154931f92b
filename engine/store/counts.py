"""Counts of the run table for probes, asked without waiting long."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from .database import Database
from .tables import run


@dataclass(frozen=True)
class Counts:
    """Rows of the run table that were not deleted."""

    rows: dict[tuple[str, str], int]  # (kind, state) → how many
    oldest_queued: float | None  # when it was submitted; seconds since the epoch


def count_runs(database: Database, *, patience: float) -> Counts:
    """Count rows by kind and state.

    Args:
        database: of the store.
        patience: seconds to wait for a lock.

    Raises:
        StoreError: the table cannot be read now.
    """
    by_state = sa.select(run.c.kind, run.c.state, sa.func.count()).where(run.c.deleted.is_(None))
    waiting = sa.select(sa.func.min(run.c.created)).where(run.c.state == "queued", run.c.deleted.is_(None))

    def count(connection: sa.Connection) -> Counts:
        found = connection.execute(by_state.group_by(run.c.kind, run.c.state)).all()
        return Counts({(kind, state): count for kind, state, count in found}, connection.execute(waiting).scalar())

    return database.read(count, patience=patience)
