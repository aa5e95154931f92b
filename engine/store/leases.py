"""Leases: of the service on the store, of the pages on the service, of a process on a step."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from ..errors import DiskFull, StoreError
from .database import Database, TableLocked
from .owners import is_alive, is_fresh, process_id
from .tables import beat, claim, lease

SERVICE = "service"
PAGES = "pages"
MOMENT = 3.0  # seconds, some heartbeats
CLAIM_HEARTBEAT = 2.0  # seconds between two heartbeats of a claim

_of_key = claim.c.key == sa.bindparam("of")
_holder = sa.select(claim.c.owner, claim.c.created, claim.c.heartbeat).where(_of_key)
_holders = sa.select(claim.c.key, claim.c.owner, claim.c.heartbeat)
_free = sa.delete(claim).where(_of_key)
_give_back = _free.where(claim.c.owner == sa.bindparam("by"))
_claim = sa.insert(claim)


@dataclass(frozen=True)
class ServiceStatus:
    """Facts that the service publishes with every heartbeat."""

    owner: str
    pid: int
    state: str  # starting, ready, stopping
    version: str  # of its code
    devices: tuple[Any, ...]  # JSON, as the service describes them
    workers: int
    busy: int  # runs it works on
    stop: bool  # somebody asked it to end
    started: float
    heartbeat: float

    @property
    def alive(self) -> bool:
        """Return whether it still runs, as far as can be told from here."""
        return is_fresh(self.heartbeat) and is_alive(self.owner, self.heartbeat)

    @property
    def ready(self) -> bool:
        """Return whether it takes runs."""
        return self.alive and self.state == "ready"


class Lease:
    """One service a store, and the pages' heartbeat that keeps it from going to sleep."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def status(self) -> ServiceStatus | None:
        """Return the service's last heartbeat; None when none ever served this store or the last one left in order."""
        return self._database.read(_served_by)

    def acquire(self, owner: str, version: str, devices: tuple[str, ...] = ()) -> bool:
        """Take the lease unless another living service has it.

        A service whose process runs without a heartbeat may have waited for a lock as this one did; it gets a moment
        to say so before it counts as suspended.
        """
        status = self.status()
        if status is not None and status.owner != owner and not status.alive and is_alive(status.owner):
            time.sleep(MOMENT)
        values = {"name": SERVICE, "owner": owner, "pid": process_id(owner), "state": "starting", "version": version}
        values |= {"devices": list(devices), "workers": 0, "busy": 0, "stop": 0}

        def take(connection: sa.Connection) -> bool:
            status, now = _served_by(connection), time.time()
            if status is not None and status.owner != owner and status.alive:
                return False
            connection.execute(sa.delete(lease).where(lease.c.name == SERVICE))
            connection.execute(sa.insert(lease).values(**values, started=now, heartbeat=now))
            return True

        return self._database.write(take)

    def renew(self, owner: str, **changes: Any) -> ServiceStatus | None:
        """Write a heartbeat; ``changes`` may set state, devices, workers, busy.

        Returns:
            The row, with ``stop`` when the service is to end; None when another service has the lease.
        """
        where = (lease.c.name == SERVICE) & (lease.c.owner == owner)

        def renew(connection: sa.Connection) -> ServiceStatus | None:
            connection.execute(sa.update(lease).where(where).values(heartbeat=time.time(), **changes))
            status = _served_by(connection)
            return status if status is not None and status.owner == owner else None

        return self._database.write(renew)

    def release(self, owner: str) -> None:
        """Give the lease back."""
        gone = sa.delete(lease).where(lease.c.name == SERVICE, lease.c.owner == owner)
        self._database.write(lambda connection: connection.execute(gone))

    def request_stop(self, owner: str | None = None) -> bool:
        """Ask the service (or only the one with this name) to end.

        Returns:
            Whether there was one to ask.
        """
        where = [lease.c.name == SERVICE, *([lease.c.owner == owner] if owner else [])]
        asked = sa.update(lease).where(*where).values(stop=1)
        return self._database.write(lambda connection: connection.execute(asked).rowcount) > 0

    def page_seen(self) -> None:
        """Say that a page is open, so that the service stays; not while the table cannot be written to."""
        if self._database.read_only:
            return

        def say(connection: sa.Connection) -> None:
            now = time.time()
            if not connection.execute(sa.update(beat).where(beat.c.name == PAGES).values(time=now)).rowcount:
                connection.execute(sa.insert(beat).values(name=PAGES, time=now))

        with contextlib.suppress(TableLocked, DiskFull):
            self._database.write(say, patience=0.2)

    def last_page(self) -> float:
        """Return when a page was last open; 0 when never."""
        query = sa.select(beat.c.time).where(beat.c.name == PAGES)
        return self._database.read(lambda connection: connection.execute(query).scalar()) or 0.0


class Claims:
    """Steps that are being computed: whoever holds the claim computes, everybody else waits."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[str, str] = {}  # key → owner of those that this process renews
        self._lock = threading.Lock()
        self._renewing = False  # whether there is a thread for it

    @contextlib.contextmanager
    def kept(self, key: str, owner: str) -> Iterator[None]:
        """Renew a claim while the block runs and give it back at the end."""
        with self._lock:
            self._kept[key] = owner
            if not self._renewing:
                self._renewing = True
                threading.Thread(target=self._renew_kept, name="claims", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._kept.pop(key, None)
            self.release(key, owner)

    def take(self, key: str, owner: str) -> bool:
        """Claim a step unless a living process has it."""

        def take(connection: sa.Connection) -> bool:
            held, now = connection.execute(_holder, {"of": key}).first(), time.time()
            if held and held.owner != owner and is_alive(held.owner, held.heartbeat):
                return False
            if held:
                connection.execute(_free, {"of": key})
            connection.execute(_claim, {"key": key, "owner": owner, "created": now, "heartbeat": now})
            return True

        return self._database.write(take)

    def renew(self, key: str, owner: str) -> None:
        """Write a heartbeat of a claim."""
        change = sa.update(claim).where((claim.c.key == key) & (claim.c.owner == owner))
        self._database.write(lambda connection: connection.execute(change.values(heartbeat=time.time())))

    def release(self, key: str, owner: str) -> None:
        """Give a claim back."""
        self._database.write(lambda connection: connection.execute(_give_back, {"of": key, "by": owner}))

    def release_all(self, owner: str) -> None:
        """Give back all claims of a process that is known to be gone."""
        self._database.write(lambda connection: connection.execute(sa.delete(claim).where(claim.c.owner == owner)))

    def left_behind(self, key: str, since: float) -> str:
        """Return the process that has claimed a step since a time and has ended; empty where there is none."""
        held = self._database.read(lambda connection: connection.execute(_holder, {"of": key}).first())
        if held is None or held.created < since or is_alive(held.owner, held.heartbeat):
            return ""
        return held.owner

    def active(self) -> dict[str, str]:
        """Return key → owner of all steps that living processes compute."""
        rows = self._database.read(lambda connection: connection.execute(_holders).all())
        return {key: owner for key, owner, heartbeat in rows if is_alive(owner, heartbeat)}

    def _renew_kept(self) -> None:
        while True:
            time.sleep(CLAIM_HEARTBEAT)
            with self._lock:
                kept = dict(self._kept)
                if not kept:
                    self._renewing = False
                    return
            for key, owner in kept.items():
                with contextlib.suppress(StoreError):  # a full or locked disk: the next one may be written
                    self.renew(key, owner)


def _served_by(connection: sa.Connection) -> ServiceStatus | None:
    row = connection.execute(sa.select(lease).where(lease.c.name == SERVICE)).mappings().first()
    return _status(row) if row else None


def _status(row: Any) -> ServiceStatus:
    values = {
        name: row[name] for name in ("owner", "pid", "state", "version", "workers", "busy", "started", "heartbeat")
    }
    return ServiceStatus(**values, devices=tuple(row["devices"]), stop=bool(row["stop"]))
