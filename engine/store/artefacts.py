"""Content-addressed artefacts: folders that are either whole or absent.

Layout of a store::

    artefacts/ab/ab12…/     the files of one artefact and artefact.json (step, sizes, checksums)
    incoming/               folders being written; renamed into place when whole
    trash/                  what is being deleted
    damaged/                what failed its checksum
    checkpoints/            of trainings that were stopped in the middle, for some days
    runs.sqlite             the run table (unless MERGELENS_DATABASE_URL names another database)
    runs/                   what the store has on record of each run: a lost table is made again from it
    backups/                copies of the table
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ..errors import DiskFull, StoreError
from ..mounts import here, url_here
from .backups import Backups
from .database import Database
from .digests import DigestCache, FileSet
from .files import (
    RECORD,
    Artefact,
    Checker,
    artefact,
    make_folder,
    read_record,
    remove,
    seal,
    size_of,
    sync_folder,
    write_synced,
)
from .history import History
from .leases import Claims, Lease
from .owners import is_alive, this_process
from .runs import RunTable
from .zoos import KnownZoos

ENV_ROOT = "MERGELENS_STORE"
ENV_DATABASE = "MERGELENS_DATABASE_URL"
DEFAULT_ROOT = ".mergelens"
KEEP_DAYS = 7.0
STEP = 1_000_000  # bytes that have to become free before what found no room is tried again
SPARE = 8_000_000  # bytes of the disk that no artefact takes, so that the run table can say what is going on
DAY, HOUR = 86_400.0, 3600.0

logger = logging.getLogger(__name__)
_checker = Checker()  # of this process


class Store:
    """A store folder and its run database. Cheap to make; everything is opened on first use."""

    def __init__(self, root: Path | str | None = None, *, database_url: str | None = None) -> None:
        """Name the store.

        Args:
            root: its folder; default the environment's MERGELENS_STORE, else ``.mergelens`` in the working directory.
            database_url: any SQLAlchemy URL; default the environment's MERGELENS_DATABASE_URL, else SQLite in the root.
        """
        self.root = Path(root or os.environ.get(ENV_ROOT) or DEFAULT_ROOT).expanduser().absolute()
        default = f"sqlite:///{self.root / 'runs.sqlite'}"
        self.database_url = database_url or os.environ.get(ENV_DATABASE) or default

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.root), self.database_url)

    @cached_property
    def database(self) -> Database:
        """Return the run database."""
        self._make(self.root)
        return Database(self.database_url, recorded=self.history.count, backup=self.backups.make)

    @cached_property
    def runs(self) -> RunTable:
        """Return the run table."""
        return RunTable(self.database, self.history)

    @cached_property
    def history(self) -> History:
        """Return the store's own record of its runs."""
        return History(self.root)

    @cached_property
    def backups(self) -> Backups:
        """Return the copies of the run table."""
        return Backups(self.root, self.database_url)

    @property
    def read_only(self) -> bool:
        """Return whether runs can only be looked at and exported."""
        return self.database.read_only or not os.access(self.root, os.W_OK)

    @cached_property
    def zoos(self) -> KnownZoos:
        """Return the zoo folders that this store remembers."""
        return KnownZoos(self.root)

    @cached_property
    def lease(self) -> Lease:
        """Return the service's lease and the pages' heartbeat."""
        return Lease(self.database)

    @cached_property
    def claims(self) -> Claims:
        """Return the claims of processes on steps."""
        return Claims(self.database)

    def folder(self, name: str) -> Path:
        """Make a folder of the store that others may not enter, unless it is there, and return it.

        Raises:
            StoreError: it cannot be made.
        """
        self._make(self.root)
        return self._make(self.root / name)

    def free_bytes(self) -> int:
        """Return how many bytes this process may still write to the store's disk."""
        try:
            facts = os.statvfs(self.root if self.root.exists() else self.root.parent)
        except (OSError, AttributeError):
            return shutil.disk_usage(self.root.anchor).free
        return facts.f_bavail * facts.f_frsize

    def has_room(self, needed: int = 0) -> bool:
        """Return whether work that stopped because the disk was full can go on.

        Args:
            needed: bytes that have to be free, as :class:`DiskFull` says.
        """
        return self.free_bytes() >= max(needed, SPARE)

    def digest_file(self, path: Path | str | FileSet) -> str:
        """Return the sha256 of a file, or of several as one; remembered while sizes, times and inodes stay.

        Raises:
            StoreError: a file cannot be read.
        """
        if isinstance(path, FileSet):
            return DigestCache(self.database).digest_files(path)
        return DigestCache(self.database).digest(Path(path))

    def folder_of(self, key: str) -> Path:
        """Return where an artefact lies, whether it exists or not.

        Raises:
            StoreError: that is no key.
        """
        if len(key) < 8 or not all(letter in "0123456789abcdef" for letter in key):
            raise StoreError(f"'{key[:80]}' is no artefact key; a key has 64 hexadecimal digits.")
        return self.root / "artefacts" / key[:2] / key

    def find(self, key: str, *, checksums: bool = True) -> Path | None:
        """Return the folder of a whole artefact, None when there is none.

        Sizes are always compared, and the checksum of a file once for each of its modification times. A bad artefact
        counts as absent: it is moved aside with a message in the log, and made again by whoever needs it.

        Args:
            key: the step's key.
            checksums: False takes files of more than 64 MiB that were not modified since they were sealed as they
                are; for pages, which must not wait for the disk.
        """
        folder = self.folder_of(key)
        if not (folder / RECORD).is_file():
            return None
        fault = _checker.fault_of(folder, everything=checksums)
        if fault:
            self._set_aside(folder, fault)
            return None
        return folder

    def describe(self, key: str) -> Artefact:
        """Return what an artefact's record says.

        Raises:
            StoreError: there is no such artefact.
        """
        folder = self.folder_of(key)
        record = read_record(folder)
        if record is None:
            raise StoreError(f"There is no artefact {key} in the store {self.root}; run the step again.")
        return artefact(folder, record)

    @contextmanager
    def create(
        self,
        key: str,
        *,
        step: str,
        version: int = 1,
        label: str = "",
        uses: Sequence[str] = (),
        inputs: Sequence[str] = (),
    ) -> Iterator[Path]:
        """Give an empty folder that becomes the artefact when the block ends without an error.

        Whatever happens inside, nothing half-written ever lies under ``artefacts/``. When another process was faster,
        its artefact stays.

        Args:
            key: the step's key.
            step: the step's name.
            version: of its function.
            label: for people.
            uses: keys of nested artefacts; read when the block ends.
            inputs: keys of the artefacts that it is made from.

        Raises:
            DiskFull: there is no room for it.
            StoreError: the store cannot be written to.
        """
        final = self.folder_of(key)
        owner = this_process().replace(":", "-")
        folder = self.folder("incoming") / f"{key[:16]}.{owner}.{secrets.token_hex(4)}"
        try:
            with self._room_explained(folder):
                if not self.has_room():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                folder.mkdir()
                yield folder
                record = {"format": 1, "key": key, "step": step, "version": version, "label": label}
                record |= {"created": time.time(), "files": seal(folder), "uses": list(dict.fromkeys(uses))}
                record |= {"inputs": list(dict.fromkeys(inputs))}
                write_synced(folder / RECORD, json.dumps(record, indent=1, ensure_ascii=False))
                sync_folder(folder)  # before it moves: what lies in its place is whole, and what got lost is made again
                self._move_into_place(folder, final, record["files"])
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def artefacts(self) -> Iterator[Artefact]:
        """Return all artefacts, whole or not, in no particular order."""
        base = self.root / "artefacts"
        for folder in sorted(base.glob("*/*")) if base.is_dir() else ():
            record = read_record(folder)
            if record is not None:
                yield artefact(folder, record)

    def delete(self, key: str) -> bool:
        """Delete an artefact for good; nobody ever finds half of it.

        Returns:
            Whether there was one.
        """
        folder = self.folder_of(key)
        if not folder.is_dir():
            return False
        _checker.forget(folder)
        target = self.folder("trash") / f"{key}.{int(time.time())}.{secrets.token_hex(2)}"
        try:
            folder.rename(target)
        except FileNotFoundError:
            return False
        remove(target)
        return True

    def empty_trash(self, days: float = KEEP_DAYS, *, dry: bool = False) -> int:
        """Delete what was not deleted to its end, what is damaged, and what dead writers and trainings left behind.

        Args:
            days: how long damaged artefacts and checkpoints stay; those of the last hour may be of a training at work.
            dry: only count.

        Returns:
            Bytes freed.
        """
        freed, end = 0, size_of if dry else remove
        for name in ("trash", "damaged"):
            for folder in (self.root / name).glob("*"):
                moved = folder.name.split(".")[1]
                if not moved.isdigit() or time.time() - int(moved) >= days * DAY:
                    freed += end(folder)
        for folder in (self.root / "incoming").glob("*"):
            if self._abandoned(folder):
                freed += end(folder)
        for file in (self.root / "checkpoints").glob("*"):
            if time.time() - file.stat().st_mtime >= max(days * DAY, HOUR):
                freed += file.stat().st_size
                file.unlink(missing_ok=True)
        return freed

    def sizes(self) -> dict[str, int]:
        """Return the bytes used: artefacts, trash (with damaged ones), incoming, thumbnails, database."""
        file = self.root / "runs.sqlite"
        return {
            "artefacts": size_of(self.root / "artefacts"),
            "trash": size_of(self.root / "trash") + size_of(self.root / "damaged"),
            "incoming": size_of(self.root / "incoming"),
            "thumbnails": size_of(self.root / "thumbnails"),
            "database": file.stat().st_size if file.is_file() else 0,
        }

    def _move_into_place(self, folder: Path, final: Path, files: dict[str, dict[str, Any]]) -> None:
        self.folder("artefacts")
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(final)
        except OSError:
            if not (final / RECORD).is_file():
                raise
            return  # another process was faster; its artefact is as good as ours
        _checker.take(final, files)

    @contextmanager
    def _room_explained(self, folder: Path) -> Iterator[None]:
        """Say of a full disk that it is one, whatever library noticed it, and how much there was to write."""
        try:
            yield
        except Exception as error:
            if not _of_full_disk(error):
                raise
            full = DiskFull(
                f"The disk of the store {self.root} is full ({self.free_bytes() / 1e6:,.1f} MB are free). "
                "Make room, or set MERGELENS_STORE to a folder on another disk; what was computed is kept."
            )
            full.needed = max(SPARE, self.free_bytes() + size_of(folder) + STEP)  # so much was not enough
            raise full from error

    def _set_aside(self, folder: Path, fault: str) -> None:
        _checker.forget(folder)
        target = self.root / "damaged" / f"{folder.name}.{int(time.time())}.{secrets.token_hex(2)}"
        try:
            self.folder("damaged")
            folder.rename(target)
        except FileNotFoundError:
            return  # somebody else moved it first
        except (OSError, StoreError):
            logger.warning("Artefact %s is damaged (%s) and counts as absent.", folder.name, fault)
            return  # the store can only be read
        logger.warning("Artefact %s is damaged (%s), was moved to %s and counts as absent.", folder.name, fault, target)

    @staticmethod
    def _abandoned(folder: Path) -> bool:
        owner = folder.name.split(".")[1].replace("-", ":") if folder.name.count(".") == 2 else ""
        try:
            return not is_alive(owner, folder.stat().st_mtime + DAY)
        except FileNotFoundError:
            return False

    def _make(self, folder: Path) -> Path:
        try:
            make_folder(folder, self.root)
        except OSError as error:
            raise StoreError(
                f"The store folder {folder} cannot be made: {error.strerror}. "
                f"Set {ENV_ROOT} to a folder you may write to."
            ) from error
        return folder


def _of_full_disk(error: BaseException) -> bool:
    """Return whether an error says that the disk, or somebody's share of it, is full.

    Libraries that write files themselves (safetensors, torch) pass on the operating system's words only.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return os.strerror(errno.ENOSPC) in str(error)


@lru_cache(maxsize=8)
def _reopen(root: str, url: str) -> Store:
    """Return the store that a pickle names, for each the same one in this process: its database stays open."""
    return Store(here(root), database_url=url_here(url))
