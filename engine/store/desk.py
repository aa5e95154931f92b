"""The run table as one person may use it: what belongs to others is looked at, deletions are put down."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from ..errors import ZooError
from ..manifest import locate_zoo, manifest_file
from .artefacts import Store
from .people import NotAllowed, Person, Settings, check_allowed, is_allowed
from .run import ACTIVE, Run
from .tables import audit as audit_table
from .tables import run as run_table
from .uploads import Uploads
from .usage import references_of, size_of_artefact

CHANGED = {
    "import": "out",
    "finetune": "zoo",
    "align": "zoo",
}  # kind of work → what in its request names the zoo that it changes
ZOOS = "zoos"  # the store's own folder of them


@dataclass(frozen=True)
class Deed:
    """One line of the audit log."""

    time: float  # seconds since the epoch
    person: str
    action: str
    run: str
    text: str


class Desk:
    """Submits and changes rows for one person; every method raises NotAllowed with the reason where it may not."""

    def __init__(self, store: Store, person: Person, settings: Settings) -> None:
        self._store, self._person, self._settings = store, person, settings

    def submit(self, kind: str, request: Mapping[str, Any], **values: Any) -> Run:
        """Add a row that belongs to the person.

        Args:
            kind: of the row.
            request: what is asked for.
            values: as :meth:`RunTable.submit` takes them.
        """
        cleaning = kind == "gc" and not request.get("dry")
        check_allowed(self._person, "clean" if cleaning else "run")
        self._check_quota()
        self._take_zoo(kind, request)
        row = self._store.runs.submit(kind, request, person=self._person.id, **values)
        if cleaning:
            self._put_down("clean", row)
        return row

    def edit(self, run: str, **changes: Any) -> Run:
        """Change name, notes or tags."""
        self._own(run)
        return self._store.runs.edit(run, **changes)

    def cancel(self, run: str) -> Run:
        """Ask a run to stop."""
        self._own(run)
        return self._store.runs.request_cancel(run)

    def resume(self, run: str) -> Run:
        """Queue a run again that was cancelled or failed."""
        self._own(run)
        self._check_quota()
        return self._store.runs.resume(run)

    def delete(self, run: str) -> None:
        """Delete an ended run, and put down who did."""
        row = self._own(run)
        self._store.runs.delete(run)
        self._put_down("delete", row)

    def undelete(self, run: str) -> Run:
        """Bring a deleted run back, and put down who did."""
        self._put_down("undelete", self._own(run))
        return self._store.runs.undelete(run)

    def refusal(self, row: Run) -> str:
        """Say why the person may not cancel, rename, label, resume or delete a run; empty when they may."""
        try:
            check_allowed(self._person, "change", row.person)
        except NotAllowed as error:
            return str(error)
        return ""

    def zoo_refusal(self, zoo: str) -> str:
        """Say why the person may not train or align experts in a zoo; empty when they may."""
        try:
            self._owner_checked(_opened(zoo))
        except NotAllowed as error:
            return str(error)
        return ""

    def may_clean(self) -> bool:
        """Return whether the person may clean the store up."""
        return is_allowed(self._person, "clean")

    def _take_zoo(self, kind: str, request: Mapping[str, Any]) -> None:
        """Refuse work that would change somebody else's zoo; a new one belongs to who asks for it."""
        place = self._zoo_changed(kind, request)
        if place is not None and self._person.id:
            self._store.zoos.own(place, self._owner_checked(place) or self._person.id)

    def _owner_checked(self, place: Path) -> str:
        """Return whom a zoo belongs to that the person may change; empty for one that is not there yet."""
        owner = self._store.zoos.owner(place)
        if owner or manifest_file(place).exists():
            check_allowed(self._person, "change", owner, what="zoo")
        return owner

    def _zoo_changed(self, kind: str, request: Mapping[str, Any]) -> Path | None:
        """Return the folder of the zoo that work makes or adds to; None for work that only looks at zoos."""
        if kind == "copy":
            return self._store.root / ZOOS / str(request.get("name"))
        name = CHANGED.get(kind)
        if name is None or request.get("check") or not request.get(name):
            return None
        named = str(request[name])
        return _opened(named) if name == "zoo" else Path(named).expanduser()

    def _own(self, run: str) -> Run:
        row = self._store.runs.get(run)
        check_allowed(self._person, "change", row.person)
        return row

    def _check_quota(self) -> None:
        """Refuse more work of somebody who has enough of it here."""
        if not self._person.id:
            return
        mine = run_table.c.person == self._person.id
        count = sa.select(sa.func.count()).where(mine, run_table.c.state.in_(ACTIVE))
        active = self._store.database.read(lambda connection: connection.execute(count).scalar()) or 0
        if active >= self._settings.runs:
            raise NotAllowed(
                f"You have {active} runs queued or at work, and {self._settings.runs} are the most a person may have. "
                "Wait for some of them, or cancel some."
            )
        if self._settings.bytes and (taken := self._taken()) >= self._settings.bytes:
            raise NotAllowed(
                f"Your results and uploads take {taken / 1e9:.1f} GB, and {self._settings.bytes / 1e9:.1f} GB are "
                "the most that a person's may take. Delete some of your runs, and have an admin clean up."
            )

    def _taken(self) -> int:
        mine = [self._store.runs.list(person=self._person.id, deleted=gone, limit=1_000_000) for gone in (False, True)]
        results = {key for rows in mine for row in rows for key in references_of(row)}
        uploaded = Uploads(self._store.root).bytes_of(self._person.id)
        return uploaded + sum(size_of_artefact(self._store, key) for key in results)

    def _put_down(self, action: str, row: Run) -> None:
        values = {"time": time.time(), "person": self._person.id, "action": action, "run": row.id, "text": row.name}
        self._store.database.write(lambda connection: connection.execute(sa.insert(audit_table).values(**values)))


def _opened(zoo: str) -> Path:
    """Return the folder that work on a zoo opens, or its description; what is not there yet as it is named."""
    with suppress(ZooError):
        return locate_zoo(zoo)
    return Path(zoo).expanduser()


def deeds(store: Store, limit: int = 100) -> Sequence[Deed]:
    """Return the audit log, newest first."""
    query = sa.select(audit_table).order_by(audit_table.c.seq.desc()).limit(limit)
    found: Iterable[Any] = store.database.read(lambda connection: connection.execute(query).mappings().all())
    return [Deed(*(row[name] for name in ("time", "person", "action", "run", "text"))) for row in found]
