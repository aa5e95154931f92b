"""The folder of one artefact: its record, its checks, and writing so that it survives a crash."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import StoreError
from .keys import sha256_of

RECORD = "artefact.json"
LARGE = 64 * 2**20  # bytes; reading more than this takes a page longer than a person should wait for it
PAUSE = 0.1  # seconds between two looks at a lock


@dataclass(frozen=True)
class Artefact:
    """The record of an artefact, known without opening its files."""

    key: str
    folder: Path
    step: str
    version: int
    label: str
    created: float
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # name → size, sha256
    uses: tuple[str, ...] = ()  # nested artefacts
    inputs: tuple[str, ...] = ()  # artefacts that it was made from

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(int(entry["size"]) for entry in self.files.values())


def artefact(folder: Path, record: dict[str, Any]) -> Artefact:
    """Return an artefact as its record describes it."""
    names = ("step", "version", "label", "created", "files")
    lists = {name: tuple(record.get(name, ())) for name in ("uses", "inputs")}
    return Artefact(folder.name, folder, **{name: record[name] for name in names}, **lists)


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return the record of an artefact, None when there is none that can be read."""
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and _is_whole(record) else None


def _is_whole(record: dict[str, Any]) -> bool:
    """Return whether a record has every entry in the form in which the store writes it."""
    forms = (("step", str), ("version", int), ("label", str), ("created", (int, float)), ("files", dict))
    if not all(isinstance(record.get(name), form) for name, form in forms):
        return False
    lists = [record.get(name, []) for name in ("uses", "inputs")]
    listed = all(isinstance(keys, list) and all(isinstance(key, str) for key in keys) for keys in lists)
    return listed and all(
        isinstance(entry, dict) and isinstance(entry.get("size"), int) and isinstance(entry.get("sha256"), str)
        for entry in record["files"].values()
    )


class Checker:
    """Compares artefacts with what was written, and remembers which files it has read."""

    def __init__(self) -> None:
        self._read: dict[Path, dict[str, tuple[int, int]]] = {}  # folder → file → modification time and inode

    def fault_of(self, folder: Path, *, everything: bool) -> str:
        """Compare all sizes, and the checksum of each file once for each modification time.

        Args:
            folder: of the artefact.
            everything: False reads, of files of more than 64 MiB, only those that were modified since they were
                sealed, so that a page need not wait for the disk: a bit that rots in one of these without a change
                of its time is found when a step reads it.

        Returns:
            A few words on what is wrong; empty when nothing is.
        """
        record = read_record(folder)
        if record is None:
            return f"{RECORD} cannot be read"
        read = self._read.setdefault(folder, {})
        for name, entry in record["files"].items():
            try:
                status = (folder / name).stat()
                if status.st_size != entry["size"]:
                    return f"{name} has {status.st_size:,} bytes, {entry['size']:,} were written"
                stamp = (status.st_mtime_ns, status.st_ino)
                as_sealed = status.st_size > LARGE and status.st_mtime_ns == entry.get("mtime_ns")
                if read.get(name) == stamp or (as_sealed and not everything):
                    continue
                if sha256_of(folder / name) != entry["sha256"]:
                    return f"{name} has another checksum than when it was written"
                read[name] = stamp
            except (OSError, ValueError) as error:
                return f"{name}: {error}"
        return ""

    def take(self, folder: Path, files: dict[str, dict[str, Any]]) -> None:
        """Take files as read that this process has just sealed."""
        with contextlib.suppress(OSError):
            self._read[folder] = {
                name: (entry["mtime_ns"], (folder / name).stat().st_ino) for name, entry in files.items()
            }

    def forget(self, folder: Path) -> None:
        """Forget what was read of an artefact that has gone."""
        self._read.pop(folder, None)


def seal(folder: Path) -> dict[str, dict[str, Any]]:
    """Sync everything in a folder to the disk and list its files with size, checksum and modification time.

    The folder's own entries are left to :func:`sync_folder`, when its last file is there.

    Raises:
        StoreError: the folder holds a link or something that is no file.
    """
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise StoreError(f"An artefact holds files and folders only; {path.name} is something else.")
        if path.is_dir():
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
        status = path.stat()
        entry = {"size": status.st_size, "sha256": sha256_of(path), "mtime_ns": status.st_mtime_ns}
        files[path.relative_to(folder).as_posix()] = entry
    for path in (item for item in folder.rglob("*") if item.is_dir()):
        sync_folder(path)
    return files


def make_folder(folder: Path, root: Path) -> None:
    """Make a store's folder that its owner alone may enter, and the group where the store is shared with it.

    Args:
        folder: the root itself or a folder directly in it.
        root: of the store; one that its group may write to is shared.
    """
    shared = root.is_dir() and root.stat().st_mode & 0o020
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o770 if shared else 0o700, exist_ok=True)


@contextlib.contextmanager
def alone(folder: Path, waiting: Callable[[], Any] = lambda: None) -> Iterator[None]:
    """Wait for others who change what lies in a folder, so that nothing is lost; a file system may know no locks.

    Args:
        folder: of a zoo, of zoos that are being made, of rates.
        waiting: called every now and then while others are at it; what it raises ends the waiting.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        while _held(handle):
            waiting()
            time.sleep(PAUSE)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough where another process has been forked meanwhile
        os.close(handle)


def _held(handle: int) -> bool:
    """Lock an open folder, and return whether that is somebody else's."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return False
    return False


def write_synced(path: Path, text: str) -> None:
    """Write a text and wait until it is on the disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder; files that go away meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if not path.is_dir() else 0
        except FileNotFoundError:
            continue
    return total


def remove(folder: Path) -> int:
    """Delete a folder and return how many bytes that freed."""
    size = size_of(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return size
