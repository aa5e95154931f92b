"""Log lines of runs: appended, bounded."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from .database import Database
from .tables import log as log_table

MAX_LOG_LINES = 2000
MAX_LINE = 4000


@dataclass(frozen=True)
class LogLine:
    """A line of a run's log."""

    seq: int
    time: float
    level: str  # info, warning, error, trace
    line: str


class Logs:
    """Lines of all runs, in the order in which they were written."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, run: str, lines: str | Iterable[str], level: str = "info") -> None:
        """Append to a run's log; only the last ``MAX_LOG_LINES`` are kept."""
        texts = [lines] if isinstance(lines, str) else list(lines)
        rows = [{"run": run, "time": time.time(), "level": level, "line": text[:MAX_LINE]} for text in texts]
        if not rows:
            return
        kept = sa.select(log_table.c.seq).where(log_table.c.run == run).order_by(log_table.c.seq.desc())

        def append(connection: sa.Connection) -> None:
            connection.execute(sa.insert(log_table), rows)
            oldest = connection.execute(kept.offset(MAX_LOG_LINES - 1).limit(1)).scalar()
            if oldest is not None:
                connection.execute(sa.delete(log_table).where(log_table.c.run == run, log_table.c.seq < oldest))

        self._database.when_there_is_room(lambda: self._database.write(append))

    def read(self, run: str, *, after: int = 0, limit: int = MAX_LOG_LINES, trace: bool = False) -> list[LogLine]:
        """Return the lines of a run's log in order.

        Args:
            run: its id.
            after: only lines with a larger ``seq`` (give the last one seen when polling).
            limit: at most so many.
            trace: also the lines for developers (tracebacks).
        """
        where = [log_table.c.run == run, log_table.c.seq > after, *([] if trace else [log_table.c.level != "trace"])]
        columns = (log_table.c.seq, log_table.c.time, log_table.c.level, log_table.c.line)
        query = sa.select(*columns).where(*where).order_by(log_table.c.seq).limit(limit)
        return self._database.read(lambda connection: [LogLine(*row) for row in connection.execute(query)])
