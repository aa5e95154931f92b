"""Connections to the run database: SQLite beside the artefacts, or any SQLAlchemy URL."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from ..errors import StoreError
from .tables import SCHEMA_VERSION, meta, metadata

BUSY_TIMEOUT = 15.0  # seconds to wait for another writer
NETWORK_FILESYSTEMS = ("nfs", "cifs", "smb", "sshfs", "lustre", "gpfs", "beegfs", "ceph", "gluster", "afs", "9p")


_json = partial(json.dumps, ensure_ascii=False)


class Database:
    """Opens itself on first use; safe to share between threads, and to be opened by several processes."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine: sa.Engine | None = None
        self._lock = threading.Lock()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection that sees one consistent state and writes nothing."""
        with _explained(), self.engine().connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that may write: it waits its turn before it reads, so that what it read stays true."""
        with _explained(), self.engine().execution_options(writes=True).begin() as connection:
            yield connection

    def engine(self) -> sa.Engine:
        """The engine, connected and with its tables in place.

        Raises:
            StoreError: the database cannot be opened, or belongs to another version.
        """
        with self._lock:
            if self._engine is None:
                with _explained():
                    engine = _connect(self.url)
                    _prepare(engine)
                self._engine = engine
            return self._engine

    def close(self) -> None:
        """Close all connections; the next use opens new ones."""
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None


def _connect(url: str) -> sa.Engine:
    if not url.startswith("sqlite"):
        return sa.create_engine(url, pool_pre_ping=True, json_serializer=_json)
    engine = sa.create_engine(
        url, connect_args={"timeout": BUSY_TIMEOUT, "check_same_thread": False}, json_serializer=_json
    )
    file = engine.url.database
    journal = "WAL" if file and not _on_network(Path(file)) else "DELETE"

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy's BEGIN below is the only one
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT * 1000)}")
        _set_journal(connection, journal)
        connection.execute(f"PRAGMA synchronous = {'NORMAL' if journal == 'WAL' else 'FULL'}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _set_journal(connection: Any, journal: str) -> None:
    """Set the journal mode of a database, which several processes may open for the first time at once.

    SQLite changes the mode only while nobody else is at the file, and does not wait for that.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != journal:
                connection.execute(f"PRAGMA journal_mode = {journal}")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _prepare(engine: sa.Engine) -> None:
    """Create missing tables, one process at a time."""
    with engine.connect() as connection:
        if sa.inspect(connection).has_table("meta"):
            found = connection.execute(sa.select(meta.c.value).where(meta.c.name == "schema")).scalar()
            if found is not None:
                _check_version(found)
                return
    with engine.execution_options(writes=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7315061)")
        metadata.create_all(connection)
        found = connection.execute(sa.select(meta.c.value).where(meta.c.name == "schema")).scalar()
        if found is None:
            connection.execute(sa.insert(meta).values(name="schema", value=str(SCHEMA_VERSION)))


def _check_version(found: str) -> None:
    if found != str(SCHEMA_VERSION):
        raise StoreError(
            f"The run database has layout {found}; this version reads layout {SCHEMA_VERSION}. "
            "Use the version that made it, or set MERGELENS_STORE to a new folder."
        )


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        raise StoreError(
            f"The run database cannot be used: {error.orig}. Is its folder writable, its disk full?"
        ) from error
    except sa.exc.NoSuchModuleError as error:
        raise StoreError(f"MERGELENS_DATABASE_URL names a database without a driver: {error}.") from error


def _on_network(file: Path) -> bool:
    """Whether a file lies on a network file system, where SQLite's write-ahead log is not safe."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return False
    best, kind = -1, ""
    where = file.resolve()
    for line in mounts.read_text().splitlines():
        fields = line.split()
        point = Path(fields[1].replace("\\040", " "))
        if where.is_relative_to(point) and len(point.parts) > best:
            best, kind = len(point.parts), fields[2]
    return any(name in kind for name in NETWORK_FILESYSTEMS)
