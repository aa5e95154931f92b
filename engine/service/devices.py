"""Which accelerators are there, without importing torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

VISIBLE = "CUDA_VISIBLE_DEVICES"
TIMEOUT = 10.0  # seconds; the first call after a boot can be slow


def cuda_devices() -> tuple[str, ...]:
    """What to put into ``CUDA_VISIBLE_DEVICES``, one entry a device (or MIG instance); empty without CUDA."""
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
