"""The engine service: kept running while pages are open, asked for work through the run table."""

import threading
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec

import streamlit as st

from engine.errors import EngineError
from engine.service.client import ensure_service
from engine.store import Run, Store
from engine.store.people import NotAllowed
from engine.zoo.importing.roots import check_zoo, named_zoos
from pages.shared.chrome import plain
from pages.shared.people import desk
from pages.shared.state import PAGE, store

P = ParamSpec("P")
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


def ask(kind: str, request: Mapping[str, Any], name: str, parent: str | None = None, *, by: str = PAGE) -> Run:
    """Put a request into the run table and wake the engine.

    Args:
        kind: of the row.
        request: as the planner of the kind reads it.
        name: the row's title.
        parent: id of the run that the row belongs to, if any.
        by: the page that asks, where it follows what it asked for.

    Raises:
        ZooError: the request names a zoo outside the roots.
    """
    for zoo in named_zoos(request):
        check_zoo(zoo, store().zoos.list)
    row = desk().submit(kind, dict(request), name=name, parent=parent, requested_by=by)
    keep_service(now=True)
    return row


def ask_unasked(kind: str, request: Mapping[str, Any], name: str, parent: str | None = None) -> Run | None:
    """Ask as :func:`ask` does for what a page wants by itself; None where its person may start nothing now."""
    try:
        return ask(kind, request, name, parent)
    except NotAllowed:
        return None


def told_when_refused(action: Callable[P, None]) -> Callable[P, None]:
    """Make a button's action say in a message why it was refused; an error of an action would end the page."""

    @wraps(action)
    def carry_out(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            action(*args, **kwargs)
        except EngineError as error:
            st.toast(plain(error), icon=":material/error:")

    return carry_out


@st.cache_resource(max_entries=4, show_spinner=False)
def _starter(root: str) -> ServiceStarter:
    return ServiceStarter(store())
