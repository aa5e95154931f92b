"""Connections to the run database: SQLite beside the artefacts, or any SQLAlchemy URL."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa

from ..errors import DiskFull, StoreError
from . import postgresql, schema, sqlite
from .tables import LAYOUT

PATIENCE = 90.0  # seconds to wait for a lock that another process holds
ROOM_WAIT = 1.0  # seconds between two tries to write to a full disk
SAY_AFTER = 2.0  # seconds of waiting after which it is said
LOCKED = (
    "Another program has held the run table {place} for {waited:.0f} seconds. Nothing is lost; close that program (a "
    "database browser, a copy at work) and try again."
)
AWAY = "The server of the run table {place} has not answered for {waited:.0f} seconds. Nothing is lost; start it."
BRIEFLY = {LOCKED: "The run table is locked by another program", AWAY: "The server of the run table is away"}
IS_IT_THERE = "Is its folder there and writable"

AGAIN = 0.02  # seconds between two tries

T = TypeVar("T")
logger = logging.getLogger(__name__)


class TableDamaged(StoreError):
    """The run table cannot be read any more, or has been emptied."""


class TableLocked(StoreError):
    """Another program has held the run table, or its server has been away, for longer than anybody waits."""


@dataclass
class _Doubt:
    """Result of a transaction, and its number from the moment that it is committed until the server has said so."""

    result: Any = None
    number: int | None = None


class Database:
    """Opens itself on first use; safe to share between threads, and to be opened by several processes."""

    patience = PATIENCE

    def __init__(self, url: str, *, recorded: Callable[[], int] = int, backup: Callable[[str], None] | None = None):
        """Name the database.

        Args:
            url: any SQLAlchemy URL.
            recorded: tells how many runs the store has on record; a new table for them is refused, see rebuild.py.
            backup: called with a reason before the layout of the tables changes.
        """
        self.url = url
        self.file = sqlite.file_of(url)
        self._is_server = postgresql.is_postgresql(url)
        self.on_wait: Callable[[str], None] | None = None  # told once, in words, when somebody waits for long
        # Whether this process cannot do without the table, and waits for room, locks and servers as long as it takes.
        self.holds_out: Callable[[], bool] = lambda: False
        self._recorded, self._backup = recorded, backup
        self._engine: sa.Engine | None = None
        self._opened: tuple[int, ...] = ()  # which file the connections are to
        self._lock = threading.RLock()

    @property
    def read_only(self) -> bool:
        """Return whether the file or its folder cannot be written to: rows can be looked at, and nothing else."""
        return self.file is not None and sqlite.is_read_only(self.file)

    def read(self, work: Callable[[sa.Connection], T], *, patience: float | None = None) -> T:
        """Carry out work that sees one consistent state and writes nothing; it is repeated as :meth:`write` says."""
        with self._explained():
            return self._carried_out(work, patience, **(postgresql.READS if self._is_server else {}))

    def write(self, work: Callable[[sa.Connection], T], *, patience: float | None = None) -> T:
        """Carry out a transaction that may write: it waits its turn before it reads, so what it read stays true.

        A lock that another process holds, and a server that cuts the connection, are waited for, and the work is then
        repeated from its start. What it wrote counts once all the same: where the connection is lost while the
        transaction is committed, the server is asked afterwards whether it was.

        Args:
            work: called with the connection, perhaps several times; it changes nothing but the database.
            patience: seconds to wait for another process's lock, or a server that restarts; by default the database's.

        Returns:
            What the work returned.

        Raises:
            TableLocked: somebody holds the table, or its server is away, for longer.
            StoreError: the store can only be read, its disk is full, its table is damaged.
        """
        with self._explained():
            if self.read_only:
                self._connected()
                raise StoreError(
                    f"The store {self._place()} can only be read: runs can be looked at and exported. "
                    "To run anything, set MERGELENS_STORE to a folder you may write to."
                )
            return self._carried_out(work, patience, writes=True)

    def when_there_is_room(self, change: Callable[[], T]) -> T:
        """Carry a change out; in a process that holds out, as often as it takes.

        Args:
            change: makes its own transaction with :meth:`write`.

        Raises:
            DiskFull: the disk is full, and this process does not wait.
        """
        said = False
        while True:
            try:
                return change()
            except DiskFull:
                if not self.holds_out():
                    raise
                if not said:
                    logger.warning("The disk is full; rows are written when there is room.")
                said = True
                time.sleep(ROOM_WAIT)

    def engine(self) -> sa.Engine:
        """Return the engine, connected and with its tables in place.

        Raises:
            StoreError: the database cannot be opened, is damaged, or belongs to another version.
        """
        with self._explained():
            return self._connected()

    def create(self) -> None:
        """Make a new table although the store has runs on record; :func:`rebuild` fills it from them."""
        with self._lock:
            recorded, self._recorded = self._recorded, int
            try:
                self.engine()
            finally:
                self._recorded = recorded

    def close(self) -> None:
        """Close all connections; the next use opens new ones."""
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    def _open(self) -> sa.Engine:
        if self.file is not None and (fault := sqlite.fault_of_file(self.file)):
            raise self._damaged(fault)
        if self.file is not None and self.read_only and not self.file.exists():
            raise StoreError(f"The store {self._place()} holds no runs, and it can only be read.")
        if self.url.startswith("sqlite"):
            engine = sqlite.connect(self.url, self.file, read_only=self.read_only)
        else:
            engine = postgresql.connect(self.url) if self._is_server else sa.create_engine(self.url, pool_pre_ping=True)
        self._prepare(engine)
        self._opened = self._identity()
        return engine

    def _prepare(self, engine: sa.Engine) -> None:
        """Create missing tables, or bring those of an earlier version to the present layout."""
        found = schema.layout_of(engine)
        if found == LAYOUT:
            return
        if self.read_only:
            raise StoreError(
                f"The run table of {self._place()} has an earlier layout and can only be read. "
                "Copy the store to a folder you may write to and open it there."
            )
        if found is None:
            if count := self._recorded():
                raise self._damaged(f"it is empty, and the store has {count:,} runs on record")
            schema.create(engine)
            return
        if self._backup is not None and self.file is not None:  # a server undoes a change that breaks off
            self._backup(f"layout-{found}")
        schema.upgrade(engine)

    def _connected(self) -> sa.Engine:
        with self._lock:
            if self._engine is not None and self._identity() != self._opened:
                self.close()  # another file has taken its place: a backup was restored
            if self._engine is None:
                self._engine = self._open()
            return self._engine

    def _carried_out(self, work: Callable[[sa.Connection], T], patience: float | None, **options: Any) -> T:
        """Carry work out in a transaction; wait while another process holds the lock or a server restarts."""
        patience = self.patience if patience is None else patience
        began, said, doubt = time.monotonic(), False, _Doubt()
        while True:
            waited, is_open = time.monotonic() - began, self._engine is not None
            try:
                fate = postgresql.ABORTED if doubt.number is None else self._fate_of(doubt.number)
                if fate == postgresql.ABORTED:
                    left = postgresql.LOOK if self.holds_out() else max(0.0, patience - waited)
                    self._once(work, doubt, left, options)
                if fate != postgresql.OPEN:
                    return doubt.result
                reason, cause = AWAY, None
            except sa.exc.DBAPIError as error:
                reason = self._passing(error)
                if not reason or (reason == AWAY and not is_open and not self.holds_out()):
                    raise  # a server that never answered may be named wrongly
                cause = error
            if waited >= patience and not self.holds_out():
                raise TableLocked(reason.format(place=self._place(), waited=waited)) from cause
            if not said and waited >= min(SAY_AFTER, patience / 2):
                said = True
                logger.warning("%s; it is waited for.", BRIEFLY[reason])
                if self.on_wait is not None:
                    self.on_wait(BRIEFLY[reason])
            time.sleep(AGAIN)

    def _once(self, work: Callable[[sa.Connection], Any], doubt: _Doubt, patience: float, options: Any) -> None:
        """Carry work out and commit it; leaves its result, and until that is sure the transaction's number."""
        numbered = self._is_server and "writes" in options
        with self._connected().connect() as connection:
            with connection.execution_options(**options).begin():
                if numbered:
                    postgresql.take_turn(connection, patience)
                doubt.number = None
                doubt.result = work(connection)
                if numbered:
                    doubt.number = postgresql.number_of(connection)
            doubt.number = None

    def _fate_of(self, number: int) -> str:
        """Return what became of a transaction whose connection was lost while it was committed."""
        with self._connected().connect() as connection:
            return postgresql.fate_of(connection, number)

    def _passing(self, error: sa.exc.DBAPIError) -> str:
        """Return what to say of an error that passes by itself; empty for others."""
        if _of(error, sqlite.is_locked) or _of(error, postgresql.is_locked):
            return LOCKED
        return AWAY if self._is_server and _of(error, postgresql.is_away) else ""

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the database's errors into sentences that say what to do."""
        try:
            yield
        except sa.exc.NoSuchModuleError as error:
            raise StoreError(f"MERGELENS_DATABASE_URL names a database without a driver: {error}.") from error
        except sa.exc.DatabaseError as error:
            if _of(error, sqlite.is_damage):
                raise self._damaged(str(error.orig)) from error
            if _of(error, sqlite.is_full) or _of(error, postgresql.is_full):
                raise DiskFull(
                    f"The disk of the run table {self._place()} is full. Make room; work goes on then."
                ) from error
            if not isinstance(error, sa.exc.OperationalError):
                raise
            question = "Does its server run, and may this account use it" if self._is_server else IS_IT_THERE
            raise StoreError(f"The run table {self._place()} cannot be used: {error.orig}. {question}?") from error

    def _damaged(self, fault: str) -> TableDamaged:
        if self._is_server:
            return TableDamaged(
                f"The run table {self._place()} is damaged: {fault}. The artefacts are not touched. `pg_restore` puts "
                "a dump in its place; then, or without one, `python -m engine runs rebuild` adds the runs that the "
                "store has on record."
            )
        return TableDamaged(
            f"The run table {self._place()} is damaged: {fault}. The artefacts are not touched. "
            "`python -m engine runs restore` puts the latest backup in its place and adds the runs that the store has "
            "on record since; without a backup, `python -m engine runs rebuild` makes it from the store alone."
        )

    def _place(self) -> str:
        return str(self.file) if self.file is not None else sa.make_url(self.url).render_as_string()

    def _identity(self) -> tuple[int, ...]:
        """Return what tells the open file from another one under its name."""
        try:
            return () if self.file is None else (self.file.stat().st_dev, self.file.stat().st_ino)
        except OSError:
            return (0,)


def _of(error: sa.exc.DBAPIError, test: Callable[[BaseException], bool]) -> bool:
    return error.orig is not None and test(error.orig)
