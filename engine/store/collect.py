"""Garbage collection: what no run refers to goes."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..errors import StoreError
from .artefacts import DAY, HOUR, KEEP_DAYS, Store
from .files import Artefact
from .run import Run
from .schema import known_since

GRACE = HOUR  # seconds; younger artefacts stay, their run may not have recorded them yet
THUMBNAIL_DAYS = 30.0  # small pictures that were made longer ago are made again when somebody looks
NAMED = 20  # runs listed by name
FILE = "collected.json"


@dataclass(frozen=True)
class Collected:
    """Counts of a collection that was done, or would be."""

    runs: int  # purged for good
    artefacts: int
    bytes: int  # of the artefacts
    by_step: dict[str, list[int]] = field(default_factory=dict)  # step → artefacts, bytes
    names: list[str] = field(default_factory=list)  # of the first runs purged
    leftover_bytes: int = 0  # trash, damaged artefacts, what dead writers left
    thumbnails: int = 0
    thumbnail_bytes: int = 0
    recent: int = 0  # artefacts that no run refers to, too new to be removed
    dry: bool = False

    @property
    def freed(self) -> int:
        """Return all bytes together."""
        return self.bytes + self.leftover_bytes + self.thumbnail_bytes

    def write(self, folder: Path) -> None:
        """Write ``collected.json``."""
        (folder / FILE).write_text(json.dumps(asdict(self)), "utf-8")

    def __str__(self) -> str:
        would = "would be" if self.dry else "were"
        return (
            f"{self.freed / 1e6:,.1f} MB {would} freed: {self.artefacts:,} artefacts that no run refers to "
            f"({self.bytes / 1e6:,.1f} MB), trash and leftovers ({self.leftover_bytes / 1e6:,.1f} MB), "
            f"{self.thumbnails:,} old thumbnails ({self.thumbnail_bytes / 1e6:,.1f} MB). "
            f"{self.runs:,} deleted runs {would} forgotten."
            + (f" {self.recent:,} unused artefacts of the last hour stay." if self.recent else "")
        )


def read_collected(folder: Path) -> Collected:
    """Return what a collection wrote."""
    return Collected(**json.loads((folder / FILE).read_text("utf-8")))


def collect(
    store: Store, *, days: float = KEEP_DAYS, grace: float = GRACE, keep: Collection[str] = (), dry: bool = False
) -> Collected:
    """Purge runs that were deleted long ago, then the artefacts that no run refers to.

    Args:
        store: the store.
        days: how long a deleted run can be brought back, and the checkpoint of a stopped training stays.
        grace: seconds for which a new artefact stays in any case.
        keep: keys that stay although no run refers to them.
        dry: only count.

    Raises:
        StoreError: the run table is younger than artefacts that it does not know.
    """
    now = time.time()
    deleted = [
        run for run in store.runs.list(deleted=True, limit=1_000_000) if now - (run.deleted or now) >= days * DAY
    ]
    doomed, recent = _doomed(store, deleted, set(keep), now - grace)
    forgotten = {key for run in deleted for key in (*run.step_keys, run.result)}
    _refuse_unknown(store, [artefact for artefact in doomed if artefact.key not in forgotten])
    leftover = store.empty_trash(days, dry=dry)
    if not dry:
        store.runs.purge(now - days * DAY)
    by_step: dict[str, list[int]] = {}
    for artefact in doomed:
        entry = by_step.setdefault(artefact.step, [0, 0])
        entry[0] += 1
        entry[1] += artefact.size
        if not dry:
            store.delete(artefact.key)
    thumbnails, thumbnail_bytes = _thumbnails(store.root / "thumbnails", now, dry)
    return Collected(
        runs=len(deleted),
        artefacts=len(doomed),
        bytes=sum(artefact.size for artefact in doomed),
        by_step=by_step,
        names=[run.name or run.kind for run in deleted[:NAMED]],
        leftover_bytes=leftover,
        thumbnails=thumbnails,
        thumbnail_bytes=thumbnail_bytes,
        recent=recent,
        dry=dry,
    )


def _doomed(store: Store, gone: Iterable[Run], keep: set[str], newest: float) -> tuple[list[Artefact], int]:
    """Return artefacts that nobody refers to, and how many more there are that are too new to be removed.

    ``gone`` are runs that would no longer be there.
    """
    present = {artefact.key: artefact for artefact in store.artefacts()}

    def with_used(keys: set[str]) -> set[str]:
        return keys | {used for key in keys if key in present for used in present[key].uses}

    wanted = with_used(store.runs.references(without={run.id for run in gone}) | keep | set(store.claims.active()))
    recent = with_used({key for key, artefact in present.items() if artefact.created > newest}) & set(present)
    return [artefact for key, artefact in present.items() if key not in wanted | recent], len(recent - wanted)


def _refuse_unknown(store: Store, loose: list[Artefact]) -> None:
    """Refuse to delete what the run table cannot know, because it was made anew after it."""
    since = store.database.read(known_since)
    unknown = [artefact for artefact in loose if artefact.created < since]
    if unknown:
        size = sum(artefact.size for artefact in unknown)
        raise StoreError(
            f"The run table is younger than {len(unknown):,} artefacts ({size / 1e6:,.1f} MB) that it does not know, "
            "so nothing is deleted: runs that it has lost may need them. `python -m engine runs rebuild` brings such "
            "runs back from the store; afterwards, what still belongs to no run can be collected."
        )


def _thumbnails(folder: Path, now: float, dry: bool) -> tuple[int, int]:
    """Number and bytes of pictures that were made long ago."""
    count = freed = 0
    for file in folder.glob("*") if folder.is_dir() else ():
        if now - file.stat().st_mtime >= THUMBNAIL_DAYS * DAY:
            count += 1
            freed += file.stat().st_size
            if not dry:
                file.unlink(missing_ok=True)
    return count, freed
