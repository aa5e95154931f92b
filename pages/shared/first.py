"""The first visit of each page, which reads and imports what all later ones share."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 10.0  # seconds that others wait for the first visitor, at most

_seen: set[str] = set()
_gates: dict[str, threading.Lock] = {}


@contextmanager
def first_alone(page: str) -> Iterator[None]:
    """Let whoever draws a page for the first time in this process do so alone: those who come together wait.

    Twenty who open the app at once would otherwise all decode, parse and import the same, in turns, and each would
    wait for twenty times the work.

    Args:
        page: its name in the address.
    """
    if page in _seen:
        yield
        return
    gate = _gates.setdefault(page, threading.Lock())
    held = gate.acquire(timeout=PATIENCE)
    if held and page in _seen:
        gate.release()
        held = False
    try:
        yield
    finally:
        _seen.add(page)
        if held:
            gate.release()
