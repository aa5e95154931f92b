"""A small disk of its own, in memory, for tests that fill it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

MEGABYTE = 1_000_000


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int):
    """Mount a file system of so many megabytes, where this user may."""
    folder.mkdir(parents=True, exist_ok=True)
    size = f"size={megabytes}m"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs rights that this user does not have")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Take all but so many bytes of a disk, as another program would."""
    file = folder / "ballast"
    facts = os.statvfs(folder)
    with file.open("ab") as stream:
        os.posix_fallocate(stream.fileno(), 0, file.stat().st_size + facts.f_bavail * facts.f_frsize - leave)
    return file
