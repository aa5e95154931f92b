"""Heartbeats, from a thread of their own so that nothing the service does can delay them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import DiskFull
from ..store import Store
from ..store.database import TableLocked
from ..store.owners import STALE_AFTER

INTERVAL = 1.0
MEASURED = 5  # beats between two looks at the devices

logger = logging.getLogger(__name__)


class Heartbeat:
    """Renews the lease and the heartbeats of the service's runs, and listens for the wish to stop."""

    def __init__(self, store: Store, owner: str) -> None:
        self._store, self._owner = store, owner
        self.gauge: Callable[[], Mapping[str, Any]] | None = None  # measured now and then for the heartbeat
        self.stop = threading.Event()  # somebody asked the service to end
        self.lost = threading.Event()  # another service has the lease
        self._ended = threading.Event()
        self._values: dict[str, Any] = {}
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def publish(self, **values: Any) -> None:
        """Put state, devices, workers or busy into the lease, at once when something changed."""
        if any(self._values.get(name) != value for name, value in values.items()):
            self._values |= values
            self._renew()

    def close(self) -> None:
        """End, and give the lease back."""
        self._ended.set()
        self._thread.join(timeout=5)
        self._store.lease.release(self._owner)

    def _beat(self) -> None:
        beats = 0
        while not self._ended.wait(INTERVAL):
            if self.gauge is not None and beats % MEASURED == 0:
                self._measure(self.gauge)
            beats += 1
            self._renew()

    def _measure(self, gauge: Callable[[], Mapping[str, Any]]) -> None:
        try:
            self._values |= gauge()
        except Exception:
            logger.exception("The devices could not be looked at; they are left out of the heartbeat.")
            self.gauge = None

    def _renew(self) -> None:
        try:
            status = self._store.lease.renew(self._owner, **self._values)
            if self._values.get("busy"):
                self._store.runs.heartbeat(self._owner)
        except (DiskFull, TableLocked):
            self._heard = time.monotonic()  # nobody else can take the lease either
            return
        except Exception:
            logger.exception("The heartbeat could not be written.")
            if time.monotonic() - self._heard > STALE_AFTER:
                self.lost.set()
            return
        self._heard = time.monotonic()
        if status is None:
            self.lost.set()
        elif status.stop:
            self.stop.set()
