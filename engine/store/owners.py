"""Names of processes that hold rows, and the test whether the process behind a name is still alive."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from functools import lru_cache
from pathlib import Path

STALE_AFTER = 15.0  # seconds without a heartbeat after which a process of another host counts as dead


def this_process(role: str = "process") -> str:
    """Return a name for this process that no other process has, also after its number is used again."""
    return f"{role}:{_host()}:{os.getpid()}:{_own_start(os.getpid())}"


def process_id(owner: str) -> int:
    """Return the process number inside a name; 0 when it is not one of ours."""
    parts = owner.split(":")
    return int(parts[2]) if len(parts) == 4 and parts[2].isdigit() else 0


def is_alive(owner: str, heartbeat: float | None = None) -> bool:
    """Return whether the process behind a name still runs.

    Args:
        owner: what :func:`this_process` gave.
        heartbeat: when it was last heard of; decides for processes of other hosts.
    """
    parts = owner.split(":")
    if is_neighbour(owner):
        started = start_of(int(parts[2]))
        return started != "gone" and started == parts[3]
    return is_fresh(heartbeat)


def is_fresh(heartbeat: float | None) -> bool:
    """Return whether a heartbeat is recent."""
    return heartbeat is not None and time.time() - heartbeat < STALE_AFTER


def is_neighbour(owner: str) -> bool:
    """Return whether a process runs on this host, so that its number means something here."""
    parts = owner.split(":")
    return len(parts) == 4 and parts[1] == _host()


@lru_cache(maxsize=1)
def _host() -> str:
    """Name the set of processes whose numbers can be compared: one host, one boot, one process namespace."""
    parts = [platform.node()]
    for source in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        path = Path(source)
        if path.is_symlink():
            parts.append(str(path.readlink()))
        elif path.exists():
            parts.append(path.read_text().strip())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


@lru_cache(maxsize=1)
def _own_start(pid: int) -> str:
    return start_of(pid)


def start_of(pid: int) -> str:
    """Return when a process began, as text; ``gone`` when it does not run (a zombie does not run)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _start_without_proc(pid)
    return "gone" if fields[0] in "ZXx" else fields[19]


def _start_without_proc(pid: int) -> str:
    if Path("/proc/self/stat").exists():
        return "gone"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        pass
    return "running"
