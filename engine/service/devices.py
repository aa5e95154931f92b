"""Devices of this machine and their memory, without importing torch."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import psutil

VISIBLE = "CUDA_VISIBLE_DEVICES"
TIMEOUT = 10.0  # seconds; the first call after a boot can be slow
QUERY = ("index", "uuid", "name", "memory.used", "memory.total", "compute_cap")
MIB = 2**20
BFLOAT16 = 8.0  # compute capability from which on bfloat16 is there


@dataclass(frozen=True)
class Device:
    """One device as the service last saw it."""

    name: str  # cpu, cuda:0, mps
    title: str
    dtype: str  # in which encoders compute
    used: int = 0  # bytes of its memory, by everybody
    total: int = 0  # bytes; 0 where it cannot be told
    own: int = 0  # bytes that the service and its workers hold

    @property
    def accelerator(self) -> bool:
        """Return whether it is something beside the processor."""
        return self.name != "cpu"


def describe_devices(cuda: Sequence[str]) -> list[dict[str, Any]]:
    """Describe every device of this host with its memory, as JSON for the heartbeat; a few milliseconds without CUDA.

    Args:
        cuda: as :func:`cuda_devices` gives them.
    """
    found = [_processor(), *_apple(), *_nvidia(cuda)]
    return [asdict(device) for device in found]


def read_devices(entries: Sequence[Any]) -> tuple[Device, ...]:
    """Return the devices of a heartbeat; what cannot be read is left out."""
    known = {item.name for item in fields(Device)}
    found = []
    for entry in entries:
        if isinstance(entry, dict) and {"name", "title", "dtype"} <= set(entry) <= known:
            found.append(Device(**entry))
        elif isinstance(entry, str):
            found.append(Device(entry, entry, ""))
    return tuple(found)


def _processor() -> Device:
    memory = psutil.virtual_memory()
    own = 0
    process = psutil.Process()
    for part in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            own += part.memory_info().rss
    title = f"{os.cpu_count() or 1} cores, {platform.machine()}"
    return Device("cpu", title, "float32", memory.total - memory.available, memory.total, own)


def _apple() -> list[Device]:
    """Apple's GPU shares the processor's memory."""
    if (platform.system(), platform.machine()) != ("Darwin", "arm64"):
        return []
    return [Device("mps", "Apple GPU, shares the memory", "float32")]


def _nvidia(cuda: Sequence[str]) -> list[Device]:
    """Visible CUDA devices with their memory; of parts of a divided GPU only the name is known."""
    if not cuda:
        return []
    table = {key: row for row in _ask_nvidia() for key in row[:2]}
    found = []
    for number, key in enumerate(cuda):
        row = table.get(key)
        if row is None:
            found.append(Device(f"cuda:{number}", f"CUDA device {key[:12]}", "bfloat16"))
            continue
        _, _, title, used, total, capability = row
        dtype = "bfloat16" if _number(capability) >= BFLOAT16 else "float16"
        found.append(Device(f"cuda:{number}", title, dtype, int(_number(used) * MIB), int(_number(total) * MIB)))
    return found


def _ask_nvidia() -> list[list[str]]:
    """A row of QUERY for each GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in answer.stdout.splitlines()]
    return [row for row in rows if len(row) == len(QUERY)]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0  # "[N/A]"


def cuda_devices() -> tuple[str, ...]:
    """Return entries for ``CUDA_VISIBLE_DEVICES``, one a device (or MIG instance); none without CUDA."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        return tuple(part.strip() for part in visible.split(",") if part.strip() not in ("", "-1"))
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    instances = re.findall(r"UUID: (MIG-[^)\s]+)", answer.stdout)
    return tuple(instances or re.findall(r"^GPU (\d+):", answer.stdout, re.MULTILINE))
