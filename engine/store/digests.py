"""Digests of files, remembered in the run database."""

from __future__ import annotations

import os
import time
from pathlib import Path

import sqlalchemy as sa

from ..errors import StoreError
from .database import Database
from .keys import sha256_of
from .tables import digest

SETTLED = 2.0  # seconds; a file changed more recently may change again within one tick of its clock


class DigestCache:
    """sha256 by (resolved path, size, modification time, inode)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def digest(self, path: Path) -> str:
        """Digest of a file, from the cache when nothing about the file has changed.

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

    def _known(self, where: Path, status: os.stat_result) -> str | None:
        query = sa.select(digest.c.sha256).where(
            digest.c.path == str(where),
            digest.c.size == status.st_size,
            digest.c.mtime_ns == str(status.st_mtime_ns),
            digest.c.inode == str(status.st_ino),
        )
        with self._database.read() as connection:
            return connection.execute(query).scalar()

    def _remember(self, where: Path, status: os.stat_result, sha256: str) -> None:
        row = {"size": status.st_size, "mtime_ns": str(status.st_mtime_ns), "inode": str(status.st_ino)}
        with self._database.write() as connection:
            connection.execute(sa.delete(digest).where(digest.c.path == str(where)))
            connection.execute(sa.insert(digest).values(path=str(where), sha256=sha256, **row))
