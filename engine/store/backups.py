"""Copies of the run table: daily, before its layout changes, and whenever somebody asks."""

from __future__ import annotations

import logging
import re
import secrets
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from ..errors import StoreError
from . import sqlite
from .database import PATIENCE

FOLDER = "backups"
DAILY = "daily"
KEPT = 7  # of each reason
INTERVAL = 86_400.0  # seconds between two daily ones
NAME = re.compile(r"runs-(\d{8}-\d{6})-([a-z0-9-]+)\.sqlite")
STAMP = "%Y%m%d-%H%M%S"  # UTC

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Backup:
    """A copy of the run table."""

    file: Path
    reason: str
    made: float  # seconds since the epoch

    @property
    def seconds(self) -> float:
        """Return how old it is."""
        return time.time() - self.made

    @property
    def age(self) -> str:
        """Return how old it is, in words."""
        hours = self.seconds / 3600
        if hours < 1:
            return "less than an hour"
        return f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:.0f} days"


class Backups:
    """The folder ``backups/`` of a store."""

    def __init__(self, root: Path, url: str) -> None:
        self._root, self._folder, self._file = root, root / FOLDER, sqlite.file_of(url)

    def list(self) -> list[Backup]:
        """Return the backups that there are, the latest first."""
        found = []
        for file in self._folder.glob("runs-*.sqlite") if self._folder.is_dir() else ():
            if match := NAME.fullmatch(file.name):
                found.append(Backup(file, match[2], file.stat().st_mtime))
        return sorted(found, key=lambda backup: (backup.made, backup.file.name), reverse=True)

    def make(self, reason: str) -> Backup:
        """Copy the run table while others go on using it, check the copy, and let the oldest of its reason go.

        Raises:
            StoreError: the table is no SQLite file, is damaged, or the copy cannot be written.
        """
        if self._file is None or not self._file.is_file():
            raise StoreError(
                "Only a run table in a SQLite file is copied here. PostgreSQL has `pg_dump` for it; what the store has "
                "on record (`runs rebuild`) is a second copy in any case."
            )
        target = self._folder / f"runs-{time.strftime(STAMP, time.gmtime())}-{reason}.sqlite"
        half = target.with_suffix(f".{secrets.token_hex(4)}.half")  # several processes may be at it at once
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sqlite.create_private(half)
            copy(self._file, half)
            if fault := sqlite.fault_of_pages(half):
                raise StoreError(f"The run table {self._file} is damaged ({fault}); the earlier backups stay.")
            half.replace(target)
        except OSError as error:
            raise StoreError(f"The backup {target} cannot be written: {error.strerror}.") from error
        finally:
            half.unlink(missing_ok=True)
        for backup in [backup for backup in self.list() if backup.reason == reason][KEPT:]:
            backup.file.unlink(missing_ok=True)
        return next(backup for backup in self.list() if backup.file == target)

    def make_if_due(self) -> Backup | None:
        """Make the daily backup unless there is one of the last day; for a service, which calls it now and then.

        Returns:
            The new backup, None where none was due or none could be made (the log says why).
        """
        latest = next((backup for backup in self.list() if backup.reason == DAILY), None)
        if self._file is None or (latest is not None and time.time() - latest.made < INTERVAL):
            return None
        try:
            return self.make(DAILY)
        except StoreError as error:
            logger.warning("The daily backup of the run table was not made: %s", error)
            return None

    def restore(self, backup: Backup) -> Path | None:
        """Put a backup in the place of the run table; processes that have the old one open turn to the new one.

        Returns:
            Where the table that was there lies now, None when there was none.

        Raises:
            StoreError: the backup is damaged, or the folder cannot be written to.
        """
        if self._file is None:
            raise StoreError("The run table is no SQLite file; restore it with its own tools (`pg_restore`).")
        if fault := sqlite.fault_of_file(backup.file) or sqlite.fault_of_pages(backup.file):
            raise StoreError(f"The backup {backup.file} is damaged ({fault}). Choose an earlier one with --backup.")
        fresh = self._file.with_suffix(f".{secrets.token_hex(4)}.restored")
        try:
            sqlite.create_private(fresh)
            copy(backup.file, fresh)
            moved = self.set_aside()
            fresh.replace(self._file)
        except OSError as error:
            raise StoreError(f"The run table {self._file} cannot be replaced: {error.strerror}.") from error
        return moved

    def set_aside(self) -> Path | None:
        """Move the run table and its log away, for whoever wants to look into it.

        Returns:
            Where it lies now, None when there was none.
        """
        if self._file is None or not self._file.exists():
            return None
        folder = self._root / "damaged" / f"table.{int(time.time())}.{time.monotonic_ns():x}"
        folder.mkdir(mode=0o700, parents=True)
        for file in (
            self._file,
            *(self._file.with_name(self._file.name + end) for end in ("-wal", "-shm", "-journal")),
        ):
            if file.exists():
                file.rename(folder / file.name)
        return folder / self._file.name


def copy(source: Path, target: Path) -> None:
    """Copy a SQLite database page by page, as it is at one moment, while others write to it.

    Raises:
        StoreError: it cannot be read, or the copy cannot be written.
    """
    mode = "ro&immutable=1" if sqlite.is_read_only(source) else "ro"
    try:
        reading = sqlite3.connect(f"file:{source.absolute().as_posix()}?mode={mode}", uri=True, timeout=PATIENCE)
        writing = sqlite3.connect(target)
        try:
            reading.backup(writing)
            writing.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        finally:
            reading.close()
            writing.close()
    except sqlite3.DatabaseError as error:
        raise StoreError(f"The run table {source} cannot be copied: {error}.") from error
