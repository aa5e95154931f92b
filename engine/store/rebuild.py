"""Making a lost run table again from what the store holds: its records of runs, and the reports among its artefacts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import StoreError
from ..report import read_report
from . import schema
from .artefacts import Store
from .backups import Backup
from .database import TableDamaged
from .files import Artefact
from .run import new_id


@dataclass(frozen=True)
class Rebuilt:
    """Counts of what a rebuild found."""

    known: int  # rows that were there
    recorded: int  # rows from records
    reported: int  # rows from reports without a record
    aside: Path | None = None  # where a table that could not be used lies now

    def __str__(self) -> str:
        moved = f" The table that could not be used lies in {self.aside}." if self.aside else ""
        return (
            f"The run table is whole: {self.known:,} runs were in it, {self.recorded:,} came back from the store's "
            f"records and {self.reported:,} from reports.{moved}"
        )


def restore(store: Store, backup: Backup) -> Rebuilt:
    """Put a backup in the place of the run table and add the runs that the store has on record since.

    Raises:
        StoreError: a service is at work, or the backup cannot be used.
    """
    _refuse_at_work(store)
    return rebuild(store, aside=store.backups.restore(backup))


def rebuild(store: Store, *, aside: Path | None = None) -> Rebuilt:
    """Add to the run table every run that the store knows of and the table does not.

    A table that cannot be read is moved aside first. Runs that were queued or at work come back as failed, to be
    resumed; a report that no record names comes back as a run of its recipe.

    Args:
        store: the store.
        aside: where an earlier table was moved to already.

    Raises:
        StoreError: the store cannot be written to, or a service is at work on a table that is to be replaced.
    """
    try:
        store.database.engine()
    except TableDamaged:
        _refuse_at_work(store)
        store.database.close()
        aside = store.backups.set_aside() or aside
        store.database.create()
    known = store.runs.count()
    recorded = store.runs.add_recorded(store.history.rows())
    reported = store.runs.add_recorded(_rows_of_reports(store))
    store.database.write(lambda connection: schema.set_known_since(connection, 0.0))
    return Rebuilt(known, recorded, reported, aside)


def _refuse_at_work(store: Store) -> None:
    """Refuse to replace the table under a service that writes to it."""
    with contextlib.suppress(TableDamaged):
        status = store.lease.status()
        if status is not None and status.alive:
            raise StoreError(
                f"The engine (process {status.pid}) is using the run table; `python -m engine serve --stop` ends it."
            )


def _rows_of_reports(store: Store) -> Iterator[dict[str, Any]]:
    """Return what the reports among the artefacts say of runs that no row refers to."""
    present = {artefact.key: artefact for artefact in store.artefacts()}
    known = store.runs.references()
    for artefact in present.values():
        if artefact.key in known or "report.json" not in artefact.files:
            continue
        try:
            recipe = read_report(artefact.folder).recipe
        except StoreError:
            continue  # of another schema; its artefact stays
        yield {
            "id": new_id(artefact.created),
            "kind": "run",
            "parent": None,
            "name": f"{recipe.merge.method.replace('_', ' ')} on {Path(recipe.zoo).name}",
            "request": {"recipe": recipe.model_dump(mode="json"), "projection": None},
            "state": "finished",
            "created": artefact.created,
            "started": artefact.created,
            "finished": artefact.created,
            "deleted": None,
            "error": "",
            "error_kind": "",
            "result": artefact.key,
            "step_keys": _made_from(artefact, present),
            "tags": ["rebuilt"],
            "notes": "",
            "requested_by": "rebuild",
        }


def _made_from(artefact: Artefact, present: dict[str, Artefact]) -> list[str]:
    """Return the keys of an artefact and of all that it was made from, as far as they are there."""
    found: dict[str, None] = {}
    waiting = [artefact.key]
    while waiting:
        key = waiting.pop()
        if key in present and key not in found:
            found[key] = None
            waiting += present[key].inputs
    return list(found)
