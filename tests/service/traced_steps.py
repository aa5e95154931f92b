"""The pipeline's own steps, each of which writes down when it begins and ends; workers import this."""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import Any

from engine.pipeline.steps import PACKAGE
from engine.pipeline.steps import STEPS as REAL

TRACE = "TRACED_STEPS"  # names a file to which every process appends
SLOWLY = 0.1  # seconds that every step takes at least, so that a test meets it at work
PLACES = dict(REAL)
STEPS = {name: f"traced_steps:{name}" for name in PLACES}


def __getattr__(name: str) -> Any:
    """A step's function, traced."""
    if name not in PLACES:
        raise AttributeError(name)

    def traced(inputs: Any, params: Any, output: Any, tools: Any) -> None:
        key = output.name.partition(".")[0]
        note(f"begin {name} {key} {os.getpid()}")
        time.sleep(SLOWLY)
        module, _, attribute = PLACES[name].partition(":")
        getattr(import_module(module, PACKAGE), attribute)(inputs, params, output, tools)
        note(f"end {name} {key} {os.getpid()}")

    return traced


def note(line: str) -> None:
    """Append one line, whole, whatever other processes write."""
    descriptor = os.open(os.environ[TRACE], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
