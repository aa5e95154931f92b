"""The folder of one artefact: its record, its checks, and writing so that it survives a crash."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import StoreError
from .keys import sha256_of

RECORD = "artefact.json"


@dataclass(frozen=True)
class Artefact:
    """What is known about an artefact without opening its files."""

    key: str
    folder: Path
    step: str
    version: int
    label: str
    created: float
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # name → size, sha256
    uses: tuple[str, ...] = ()  # nested artefacts

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(int(entry["size"]) for entry in self.files.values())


def artefact(folder: Path, record: dict[str, Any]) -> Artefact:
    """An artefact as its record describes it."""
    names = ("step", "version", "label", "created", "files")
    return Artefact(folder.name, folder, **{name: record[name] for name in names}, uses=tuple(record.get("uses", ())))


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of an artefact, None when there is none that can be read."""
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and _is_whole(record) else None


def _is_whole(record: dict[str, Any]) -> bool:
    """Whether a record has every entry in the form in which the store writes it."""
    forms = (("step", str), ("version", int), ("label", str), ("created", (int, float)), ("files", dict))
    if not all(isinstance(record.get(name), form) for name, form in forms):
        return False
    uses = record.get("uses", [])
    listed = isinstance(uses, list) and all(isinstance(key, str) for key in uses)
    return listed and all(
        isinstance(entry, dict) and isinstance(entry.get("size"), int) and isinstance(entry.get("sha256"), str)
        for entry in record["files"].values()
    )


def fault_of(folder: Path, checksums: bool) -> str:
    """What is wrong with an artefact; empty when nothing is."""
    record = read_record(folder)
    if record is None:
        return f"{RECORD} cannot be read"
    for name, entry in record["files"].items():
        path = folder / name
        try:
            if path.stat().st_size != entry["size"]:
                return f"{name} has {path.stat().st_size:,} bytes, {entry['size']:,} were written"
            if checksums and sha256_of(path) != entry["sha256"]:
                return f"{name} has another checksum than when it was written"
        except (OSError, ValueError) as error:
            return f"{name}: {error}"
    return ""


def seal(folder: Path) -> dict[str, dict[str, Any]]:
    """Sync all files of a folder to the disk and list them with size and checksum.

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
        files[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": sha256_of(path)}
    for path in (folder, *(item for item in folder.rglob("*") if item.is_dir())):
        sync_folder(path)
    return files


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
    """Bytes of all files in a folder; files that go away meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if not path.is_dir() else 0
        except FileNotFoundError:
            continue
    return total


def remove(folder: Path) -> int:
    """Delete a folder and tell how many bytes that freed."""
    size = size_of(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return size
