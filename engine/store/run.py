"""One row of the run table as a record."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, fields
from typing import Any, Literal

State = Literal["queued", "running", "cancelling", "cancelled", "failed", "finished"]
ACTIVE: tuple[State, ...] = ("queued", "running", "cancelling")
ENDED: tuple[State, ...] = ("cancelled", "failed", "finished")
HELD: tuple[State, ...] = ("running", "cancelling")
# Columns that a rebuilt table takes over; the others change from second to second while a run is at work.
RECORDED = (
    "id",
    "kind",
    "parent",
    "name",
    "request",
    "state",
    "created",
    "started",
    "finished",
    "deleted",
    "error",
    "error_kind",
    "result",
    "step_keys",
    "tags",
    "notes",
    "requested_by",
    "person",
)
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
EPOCH = 1_700_000_000


@dataclass(frozen=True)
class Run:
    """One row of the run table. Times are seconds since the epoch."""

    id: str
    kind: str
    parent: str | None
    name: str
    request: dict[str, Any]
    state: State
    fraction: float  # 0 to 1
    message: str
    step: str  # label of the step at work
    step_number: int  # it is number n …
    step_count: int  # … of m
    metrics: dict[str, Any]  # live, small
    owner: str | None
    heartbeat: float | None
    attempts: int
    plannings: int  # begun, and not come to an end
    created: float
    started: float | None
    finished: float | None
    deleted: float | None
    error: str
    error_kind: str
    result: str  # artefact key, or a folder
    step_keys: list[str]
    tags: list[str]
    notes: str
    requested_by: str
    person: str  # id of whom it belongs to; empty where nobody logs in

    @property
    def active(self) -> bool:
        """Return whether something is still to happen; poll only then."""
        return self.state in ACTIVE

    @property
    def elapsed(self) -> float:
        """Return the seconds since it was started, up to its end."""
        return (self.finished or time.time()) - self.started if self.started else 0.0


def new_id(now: float) -> str:
    """Make a short id that sorts by time: nine digits of milliseconds and four of chance."""
    number, text = int((now - EPOCH) * 1000), ""
    for _ in range(9):
        number, digit = divmod(number, 32)
        text = ALPHABET[digit] + text
    return text + "".join(secrets.choice(ALPHABET) for _ in range(4))


def ended(state: State) -> dict[str, Any]:
    """Return the values of a row that ends now."""
    return {"state": state, "finished": time.time()}


def run_of(row: Any) -> Run:
    """Return the record of a row."""
    return Run(**{item.name: row[item.name] for item in fields(Run)})
