"""Numbers that the service counts while it works, for Prometheus."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Summary


class Meter:
    """Counts steps by their kind, with their seconds, and those that the store had already."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        options = {"labelnames": ("step",), "registry": self.registry}
        self._seconds = Summary("mergelens_step_seconds", "Steps that were computed, and their seconds.", **options)
        self._failures = Counter("mergelens_step_failures", "Steps that failed.", **options)
        self._losses = Counter("mergelens_step_losses", "Steps that lost their worker.", **options)
        self._found = Counter("mergelens_steps_found", "Steps whose artefact was there.", registry=self.registry)
        self._missing = Counter("mergelens_steps_missing", "Steps whose artefact was not.", registry=self.registry)
        self._began: dict[str, float] = {}

    def planned(self, steps: int, missing: int) -> None:
        """Count the steps of a plan, and how many of them have to be computed."""
        self._found.inc(max(steps - missing, 0))
        self._missing.inc(missing)

    def started(self, ticket: str) -> None:
        """Note that an attempt has started."""
        self._began[ticket] = time.monotonic()

    def ended(self, ticket: str, step: str, how: str) -> None:
        """Count an attempt that is over.

        Args:
            ticket: of the attempt.
            step: the step's name.
            how: ``done``, ``failed`` or ``lost``.
        """
        began = self._began.pop(ticket, None)
        if how == "failed":
            self._failures.labels(step).inc()
        elif how == "lost":
            self._losses.labels(step).inc()
        elif began is not None:
            self._seconds.labels(step).observe(time.monotonic() - began)
