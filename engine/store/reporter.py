"""Writes a run's progress into its row, at most four times a second."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from ..errors import DiskFull
from .runs import RunTable

INTERVAL = 0.25  # seconds between two writes
MAX_METRICS = 200_000  # characters of JSON
FIRST_NUMBERS = "first-numbers"  # live metrics that the glance step tells; no calibrator can be named like this


class Reporter:
    """Collects what is reported and writes the latest of it; call :meth:`flush` now and then, and at the end."""

    def __init__(self, runs: RunTable, run: str) -> None:
        self._runs, self._run = runs, run
        self._pending: dict[str, Any] = {}
        self._metrics: dict[str, Any] = {}
        self._written = 0.0

    def set(self, **changes: Any) -> None:
        """Take fraction, message, step, step_number, step_count."""
        self._pending |= changes
        self.flush()

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Take live metrics; each top-level key replaces the one before, and too large ones are left out."""
        merged = self._metrics | dict(values)
        if len(json.dumps(merged)) <= MAX_METRICS:
            self._metrics = merged
            self.set(metrics=merged)

    def flush(self, *, now: bool = False) -> None:
        """Write what is pending if the last write is long enough ago, or in any case with ``now``."""
        if self._pending and (now or time.monotonic() - self._written >= INTERVAL):
            pending, self._pending = self._pending, {}
            self._written = time.monotonic()
            with contextlib.suppress(DiskFull):  # what comes next says it as well
                self._runs.set_progress(self._run, **pending)
