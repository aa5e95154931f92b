"""The run table as a SQLite file: opened for writing or only for reading, checked, never left to a lost lock."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

BUSY_TIMEOUT = 2.0  # seconds that SQLite itself waits for a lock; whoever waits longer says so, see database.py
JOURNAL_TIMEOUT = 90.0
CHECKED_BYTES = 64_000_000  # larger tables are read through by the daily backup only
MAGIC = b"SQLite format 3\0"
NETWORK_FILESYSTEMS = ("nfs", "cifs", "smb", "sshfs", "lustre", "gpfs", "beegfs", "ceph", "gluster", "afs", "9p")

json_text = partial(json.dumps, ensure_ascii=False)


def file_of(url: str) -> Path | None:
    """Return the file that a database URL names; None for other databases and those in memory."""
    if not url.startswith("sqlite"):
        return None
    name = sa.make_url(url).database
    return Path(name) if name and name != ":memory:" else None


def connect(url: str, file: Path | None, *, read_only: bool = False) -> sa.Engine:
    """Connect to a SQLite database: own transactions, a journal that fits the file system, a short wait for locks."""
    arguments: dict[str, Any] = {"timeout": BUSY_TIMEOUT, "check_same_thread": False}
    if file is not None and read_only:
        # Without a log to read, nothing changes the file; with one, its readers' index has to be there already.
        unchanging = "" if _has_log(file) else "&immutable=1"
        url = f"sqlite:///file:{file.absolute().as_posix()}?mode=ro{unchanging}&uri=true"
    elif file is not None:
        create_private(file)
    engine = sa.create_engine(url, connect_args=arguments, json_serializer=json_text)
    journal = "WAL" if file and not on_network(file) else "DELETE"

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy's BEGIN below is the only one
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT * 1000)}")
        if not read_only:
            _set_journal(connection, journal)
            connection.execute(f"PRAGMA synchronous = {'NORMAL' if journal == 'WAL' else 'FULL'}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        if connection.get_execution_options().get("writes"):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            return
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1")  # takes the lock here, where one can wait

    return engine


def create_private(file: Path) -> None:
    """Create an empty file that its owner alone may read, and the group where it may enter the folder."""
    shared = file.parent.is_dir() and file.parent.stat().st_mode & 0o060 == 0o060
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o660 if shared else 0o600))
    except OSError:
        return  # it is there, or connecting says why it cannot be made


def is_read_only(file: Path) -> bool:
    """Return whether a database file, or the folder in which SQLite keeps its log, cannot be written to."""
    there = file if file.exists() else file.parent
    return there.exists() and not (os.access(there, os.W_OK) and os.access(file.parent, os.W_OK))


def fault_of_file(file: Path) -> str:
    """Look for damage in a database file: head, length and, where it is not very large, every page.

    Returns:
        A few words on what is wrong; empty for a sound, an empty or a missing file.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(100)
    except OSError:
        return ""
    if not size:
        return ""
    if len(head) < 100 or head[:16] != MAGIC:
        return "it does not begin as a SQLite database does"
    page, count = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    page = 65_536 if page == 1 else page
    if head[24:28] == head[92:96] and size < page * count:
        return f"it has {size:,} bytes where {page * count:,} were written"
    return fault_of_pages(file) if size <= CHECKED_BYTES else ""


def fault_of_pages(file: Path) -> str:
    """Read a database file through and return SQLite's first complaint; empty when there is none."""
    mode = "ro&immutable=1" if is_read_only(file) and not _has_log(file) else "ro"
    try:
        connection = sqlite3.connect(f"file:{file.absolute().as_posix()}?mode={mode}", uri=True, timeout=BUSY_TIMEOUT)
    except sqlite3.DatabaseError:
        return ""  # whoever opens it for use says why that is not possible
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        return "" if found == "ok" else " ".join(str(found).split())
    except sqlite3.DatabaseError as error:
        return str(error) if is_damage(error) else ""
    finally:
        connection.close()


def is_damage(error: BaseException) -> bool:
    """Return whether SQLite says that a file is damaged or no database."""
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_locked(error: BaseException) -> bool:
    """Return whether SQLite says that another process holds the lock."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_full(error: BaseException) -> bool:
    """Return whether SQLite says that the disk is full."""
    return _code(error) == sqlite3.SQLITE_FULL


def on_network(file: Path) -> bool:
    """Return whether a file lies on a network file system, where SQLite's write-ahead log is not safe."""
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


def _code(error: BaseException) -> int:
    """Return SQLite's primary error code; 0 for other errors."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _has_log(file: Path) -> bool:
    log = file.with_name(f"{file.name}-wal")
    return log.is_file() and log.stat().st_size > 0


def _set_journal(connection: Any, journal: str) -> None:
    """Set the journal mode of a database, which several processes may open for the first time at once.

    SQLite changes the mode only while nobody else is at the file, and does not wait for that.
    """
    deadline = time.monotonic() + JOURNAL_TIMEOUT
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != journal:
                connection.execute(f"PRAGMA journal_mode = {journal}")
            return
        except sqlite3.OperationalError as error:
            if time.monotonic() > deadline or not is_locked(error):
                raise
            time.sleep(0.02)
