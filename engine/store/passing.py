"""Rows that pass: what was asked for while somebody chose, forgotten with what it left minutes after it has ended."""

from __future__ import annotations

import time
from collections.abc import Collection

from .artefacts import Store
from .run import ENDED
from .tables import run as run_table

KEPT = 600.0  # seconds for which an ended row of such a kind stays, since people go back and forth
MOST = 500  # rows that are forgotten at once


def forget_passing(store: Store, kinds: Collection[str], kept: float = KEPT) -> int:
    """Forget rows of kinds that pass, and delete the results that no other row refers to.

    Args:
        store: where they are.
        kinds: of those rows.
        kept: seconds for which a row stays after its end.

    Returns:
        How many rows were forgotten.
    """
    before = time.time() - kept
    rows = store.runs.list(kinds=kinds, states=ENDED, limit=1_000_000)
    old = [run for run in rows if run.finished is not None and run.finished < before][:MOST]
    if not old:
        return 0
    forgotten = store.runs.forget(run_table.c.id.in_([run.id for run in old]))
    for key in {run.result for run in old if run.result} - store.runs.references():
        store.delete(key)
    return len(forgotten)
