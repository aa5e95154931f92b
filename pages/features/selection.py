"""The selection of the feature view: the browser's gestures and the page's own choices, settled between reruns."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Selection:
    """Selected rows, ascending, and the number of selections made before this one."""

    indices: tuple[int, ...] = ()
    revision: int = 0


@dataclass(frozen=True)
class Exchange:
    """The selection and the writer of its last change, remembered between reruns.

    Args:
        current: the selection that holds.
        written: the last one that the browser has to take over, if any.
        passed: what the page passed last.
    """

    current: Selection = Selection()
    written: Selection | None = None
    passed: tuple[int, ...] | None = None


def read_selection(state: Any, count: int) -> Selection:
    """Read the component's state: ``{"revision", "ids"}``, or ``{"revision", "bits"}`` with a base64 bit set.

    The state comes from a browser: rows outside ``count`` are dropped and anything malformed reads as no selection.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("revision"), int):
        return Selection()
    if isinstance(state.get("bits"), str):
        try:
            packed = np.frombuffer(base64.b64decode(state["bits"], validate=True), np.uint8)
        except (binascii.Error, ValueError):
            return Selection()
        known = packed[: -(-count // 8)]  # a message may hold any number of bits
        rows = np.flatnonzero(np.unpackbits(known, bitorder="little")).tolist()
    else:
        listed = state.get("ids")
        rows = sorted({row for row in listed if type(row) is int}) if isinstance(listed, list) else []  # no booleans
    return Selection(tuple(row for row in rows if 0 <= row < count), max(0, state["revision"]))


def settle(memory: Exchange, browser: Selection, passed: Sequence[int] | None, count: int) -> Exchange:
    """Decide which selection holds: the last writer wins, be it the browser or the page.

    A page writes by passing something new. Passing what it passed before, or handing back what it was given, writes
    nothing, so that an old value never undoes a newer gesture. When both write at once, the page wins: a gesture draws
    it by itself, so that what is chosen there was chosen later.

    Args: ``browser`` is what the component reports, of revision 0 while it has nothing to report.
    """
    rows = None if passed is None else tuple(sorted({int(row) for row in passed if 0 <= int(row) < count}))
    news = rows is not None and rows != memory.passed and rows != memory.current.indices
    current, written = memory.current, memory.written
    if browser.revision >= current.revision and browser.revision > 0:
        current = browser
    elif browser.revision == 0 and current.revision > 0:
        written = current  # the component was unmounted, by a change of page for instance, and has forgotten
    if news and rows != current.indices:
        current = written = Selection(rows or (), current.revision + 1)
    if current.indices and current.indices[-1] >= count:
        current = replace(current, indices=tuple(row for row in current.indices if row < count))
    return Exchange(current, written, rows)
