"""A small disk of its own, in memory, for tests that fill it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

MEGABYTE = 1_000_000
TRIES = 20


def is_mounted(folder: Path, megabytes: int) -> bool:
    """Mount a file system of so many megabytes, and return whether this user may."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


def unmount(folder: Path) -> None:
    """Take it away, as soon as nobody uses it."""
    subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int):
    """Have a file system of so many megabytes, where this user may."""
    if not is_mounted(folder, megabytes):
        pytest.skip("mounting a small disk needs rights that this user does not have")
    try:
        yield folder
    finally:
        unmount(folder)


def fill(folder: Path, leave: int) -> Path:
    """Take all but so many bytes of a disk, as another program would."""
    file = folder / "ballast"
    with file.open("ab") as stream:
        for _ in range(TRIES):
            facts = os.statvfs(folder)
            more = max(1, facts.f_bavail * facts.f_frsize - leave)
            with contextlib.suppress(OSError):  # somebody else took some of it meanwhile
                os.posix_fallocate(stream.fileno(), 0, file.stat().st_size + more)
                break
    return file
