"""Requests of the command line that the engine service carries out, on all its workers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import Cancelled, EngineError
from ..pipeline.local import COMMAND_LINE, remember_zoos
from ..store import Run, Store
from ..types import Progress
from ..zoo.importing.roots import with_whole_paths
from .client import ensure_service

LOOK = 0.2  # seconds between two looks at the row


def by_service(store: Store, kind: str, request: Mapping[str, Any], title: str, progress: Progress | None) -> Path:
    """Hand a request to the engine, which is started where none runs, and wait; a `Carrier`.

    Ctrl-C cancels the row; the engine stays, and ends by itself when nobody has needed it for a while.

    Raises:
        EngineError: no engine can run, or the row did not finish; what it has computed is kept.
    """
    state = ensure_service(store, page=False)
    if state.state in ("absent", "failed"):
        raise EngineError(state.message)
    remember_zoos(store, request)
    row = store.runs.submit(kind, with_whole_paths(dict(request)), name=title, requested_by=COMMAND_LINE)
    try:
        while row.active:
            time.sleep(LOOK)
            state, row = ensure_service(store, page=False), store.runs.get(row.id)
            if state.state == "failed":
                store.runs.request_cancel(row.id)
                raise EngineError(state.message)
            if progress is not None and row.active:
                progress(row.fraction, row.message or ("" if state.ready else state.message))
    except KeyboardInterrupt:
        store.runs.request_cancel(row.id)
        raise
    return _result(store, row)


def _result(store: Store, row: Run) -> Path:
    if row.state == "cancelled":
        raise Cancelled(f"Run {row.id} was cancelled. `runs resume {row.id}` goes on with it.")
    if row.state != "finished":
        raise EngineError(row.error or f"Run {row.id} is {row.state}.")
    found = store.find(row.result)
    if found is None:
        raise EngineError(f"The results of run {row.id} are no longer in the store. Ask again.")
    return found
