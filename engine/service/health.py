"""The state of an installation for probes and for Prometheus, read from its store. Free of dask and torch."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from ..errors import EngineError
from ..store import Store
from ..store.counts import Counts, count_runs
from .client import service_state

PATIENCE = 1.0  # seconds that a probe waits for a lock
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def not_ready(store: Store) -> dict[str, str]:
    """Return what keeps runs from being carried out: part (database, store, engine) → reason; empty when nothing does.

    Args:
        store: of the installation.
    """
    try:
        count_runs(store.database, patience=PATIENCE)
    except (EngineError, OSError) as error:
        return {"database": str(error)}
    found = {}
    if store.read_only:
        found["store"] = "The store can only be read."
    elif not store.has_room():
        found["store"] = "The disk of the store is full."
    engine = service_state(store)
    if not engine.ready:
        found["engine"] = engine.message
    return found


def readiness(store: Store) -> tuple[int, str]:
    """Return the answer to a readiness probe: status code 200 or 503, and a line for each part that is not ready."""
    found = not_ready(store)
    return (503, "".join(f"{part}: {reason}\n" for part, reason in found.items())) if found else (200, "ready\n")


def metrics_text(store: Store, *more: CollectorRegistry) -> bytes:
    """Render the store's numbers, and those that a process counts itself, in Prometheus' text format."""
    own = CollectorRegistry()
    own.register(StoreNumbers(store))
    return b"".join(map(generate_latest, (own, *more)))


class StoreNumbers:
    """Collects what the store and the engine's heartbeat tell."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering asks no database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read the numbers; of a database that does not answer only that it does not."""
        try:
            counts = count_runs(self._store.database, patience=PATIENCE)
        except (EngineError, OSError):
            yield _gauge("mergelens_database_up", "Whether the run table can be read.", 0)
            return
        yield _gauge("mergelens_database_up", "Whether the run table can be read.", 1)
        yield from _queue(counts)
        yield from self._engine()
        yield _gauge("mergelens_store_free_bytes", "Room on the store's disk.", self._store.free_bytes())
        if backups := self._store.backups.list():
            yield _gauge("mergelens_backup_age_seconds", "Age of the run table's latest backup.", backups[0].seconds)

    def _engine(self) -> Iterator[Metric]:
        state = service_state(self._store)
        yield _gauge("mergelens_engine_ready", "Whether the engine takes up runs.", int(state.ready))
        yield _gauge("mergelens_workers", "Workers of the engine.", state.workers)
        yield _gauge("mergelens_runs_at_work", "Runs that the engine works on.", state.busy)
        memory = GaugeMetricFamily(
            "mergelens_memory_bytes", "Memory of devices as the engine saw it last.", labels=("device", "part")
        )
        for device in state.devices:
            for part in ("used", "total", "own"):
                memory.add_metric((device.name, part), getattr(device, part))
        yield memory


def _queue(counts: Counts) -> Iterator[Metric]:
    runs = GaugeMetricFamily("mergelens_runs", "Rows of the run table.", labels=("kind", "state"))
    for labels, count in sorted(counts.rows.items()):
        runs.add_metric(labels, count)
    yield runs
    waited = time.time() - counts.oldest_queued if counts.oldest_queued else 0.0
    yield _gauge("mergelens_queue_wait_seconds", "Time that the oldest queued run has waited.", waited)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
