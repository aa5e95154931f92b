"""Digests of files, remembered in the run database."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from ..errors import StoreError
from .database import Database
from .keys import sha256_of
from .tables import digest

SETTLED = 2.0  # seconds; a file changed more recently may change again within one tick of its clock


@dataclass(frozen=True)
class FileSet:
    """Files below a folder that are digested as one: by their relative names and contents."""

    root: Path
    names: tuple[str, ...]  # relative POSIX paths, sorted


def contents_digest(content: Path | FileSet) -> str:
    """Return the digest of a file, or of a set of files as one, without remembering it.

    Raises:
        OSError: a file cannot be read.
    """
    if isinstance(content, FileSet):
        lines = [f"{name}\0{sha256_of(content.root / name)}" for name in content.names]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return sha256_of(content)


class DigestCache:
    """Remembered sha256 by (resolved path, size, modification time, inode)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def digest(self, path: Path) -> str:
        """Return the digest of a file, from the cache when nothing about the file has changed.

        Raises:
            StoreError: the file cannot be read.
        """
        try:
            where = path.resolve(strict=True)
            status = where.stat()
            known = self._known(where, status)
            if known is not None:
                return known
            fresh = sha256_of(where)
        except OSError as error:
            raise StoreError(f"The file {path} cannot be read: {error.strerror}.") from error
        if time.time() - status.st_mtime > SETTLED:
            self._remember(where, status, fresh)
        return fresh

    def digest_files(self, files: FileSet) -> str:
        """Return the digest of a set of files, from the cache when no file's size, time or inode has changed.

        Raises:
            StoreError: a file cannot be read.
        """
        try:
            root = files.root.resolve(strict=True)
            states = [(name, (root / name).stat()) for name in files.names]
            told = "\n".join(f"{n}\0{s.st_size}\0{s.st_mtime_ns}\0{s.st_ino}" for n, s in states)
            seen = hashlib.sha256(told.encode()).hexdigest()
            named = hashlib.sha256("\0".join(files.names).encode()).hexdigest()
            place, stamp = f"files:{named[:16]}:{root}", (sum(s.st_size for _, s in states), seen[:24], seen[24:48])
            known = self._look_up(place, *stamp)
            if known is not None:
                return known
            fresh = contents_digest(FileSet(root, files.names))
        except OSError as error:
            raise StoreError(f"The file {error.filename or files.root} cannot be read: {error.strerror}.") from error
        if all(time.time() - status.st_mtime > SETTLED for _, status in states):
            self._keep(place, *stamp, fresh)
        return fresh

    def _known(self, where: Path, status: os.stat_result) -> str | None:
        return self._look_up(str(where), status.st_size, str(status.st_mtime_ns), str(status.st_ino))

    def _remember(self, where: Path, status: os.stat_result, sha256: str) -> None:
        self._keep(str(where), status.st_size, str(status.st_mtime_ns), str(status.st_ino), sha256)

    def _look_up(self, place: str, size: int, time_ns: str, inode: str) -> str | None:
        query = sa.select(digest.c.sha256).where(
            digest.c.path == place, digest.c.size == size, digest.c.mtime_ns == time_ns, digest.c.inode == inode
        )
        return self._database.read(lambda connection: connection.execute(query).scalar())

    def _keep(self, place: str, size: int, time_ns: str, inode: str, sha256: str) -> None:
        if self._database.read_only:
            return
        row = {"size": size, "mtime_ns": time_ns, "inode": inode}

        def keep(connection: sa.Connection) -> None:
            connection.execute(sa.delete(digest).where(digest.c.path == place))
            connection.execute(sa.insert(digest).values(path=place, sha256=sha256, **row))

        self._database.write(keep)
