"""The engine service: kept running while pages are open, asked for work through the run table."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.service.client import ensure_service
from engine.store import Run, Store
from pages.shared.state import store

PAGE = "page"  # who asked, in the run table
LOOK_AGAIN = 10.0  # seconds between two looks at the service


class ServiceStarter:
    """Starts the engine service where it does not run, from a thread of its own, so that no page waits for it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.message = "the engine is starting"
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._looked = float("-inf")

    def touch(self, now: bool = False) -> None:
        """Start the service if it does not run; looks at it once in ten seconds, or ``now``."""
        with self._lock:
            busy = self._thread is not None and self._thread.is_alive()
            if busy or (not now and time.monotonic() - self._looked < LOOK_AGAIN):
                return
            self._looked = time.monotonic()
            self._thread = threading.Thread(target=self._look, name="service-starter", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        try:
            self.message = str(ensure_service(self.store))
        except (EngineError, OSError) as error:
            self.message = f"The engine cannot be started: {error}"


def keep_service(*, now: bool = False) -> str:
    """Keep the engine service running while pages are open; returns at once.

    Args:
        now: look at it at once, since there is work for it.

    Returns:
        How the service is, in words.
    """
    starter = _starter(str(store().root))
    starter.touch(now)
    return starter.message


def ask(kind: str, request: Mapping[str, Any], name: str, parent: str | None = None) -> Run:
    """Put a request into the run table and wake the engine.

    Args:
        kind: of the row.
        request: as the planner of the kind reads it.
        name: the row's title.
        parent: id of the run that the row belongs to, if any.
    """
    row = store().runs.submit(kind, dict(request), name=name, parent=parent, requested_by=PAGE)
    keep_service(now=True)
    return row


@st.cache_resource(max_entries=4, show_spinner=False)
def _starter(root: str) -> ServiceStarter:
    return ServiceStarter(store())
