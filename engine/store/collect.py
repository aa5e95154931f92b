"""Garbage collection: what no run refers to goes."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from .artefacts import DAY, KEEP_DAYS, Store

GRACE = 3600.0  # seconds; younger artefacts stay, their run may not have recorded them yet


@dataclass(frozen=True)
class Collected:
    """What a collection did, or would do."""

    runs: int  # purged for good
    artefacts: int
    bytes: int


def collect(
    store: Store, *, days: float = KEEP_DAYS, grace: float = GRACE, keep: Collection[str] = (), dry: bool = False
) -> Collected:
    """Purge runs that were deleted long ago, then the artefacts that no run refers to.

    Args:
        store: the store.
        days: how long a deleted run can be brought back.
        grace: seconds for which a new artefact stays in any case.
        keep: keys that stay although no run refers to them.
        dry: only count.
    """
    now = time.time()
    deleted = [
        run.id for run in store.runs.list(deleted=True, limit=1_000_000) if now - (run.deleted or now) >= days * DAY
    ]
    if not dry:
        store.empty_trash(days)
        store.runs.purge(now - days * DAY)
    present = {artefact.key: artefact for artefact in store.artefacts()}
    wanted = store.runs.references() | set(keep) | set(store.claims.active())
    wanted |= {key for key, artefact in present.items() if now - artefact.created < grace}
    wanted |= {used for key in wanted if key in present for used in present[key].uses}
    doomed = [artefact for key, artefact in present.items() if key not in wanted]
    if not dry:
        for artefact in doomed:
            store.delete(artefact.key, undo=False)
    return Collected(len(deleted), len(doomed), sum(artefact.size for artefact in doomed))
