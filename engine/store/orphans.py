"""Decides about rows whose process has died: which they are, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .owners import is_alive
from .run import Run, ended

MOST_PLANNINGS = 3  # that end with the service, before the run counts as the reason
# The values of an active row that the store has on record and the table has lost.
LOST = {
    "state": "failed",
    "error": "The run table was lost while this run was queued or at work. Resume the run.",
    "error_kind": "interrupted",
}


@dataclass(frozen=True)
class Fate:
    """The values that an orphan's row takes, and the line that its log gets."""

    values: dict[str, Any]
    line: str = ""

    @property
    def queued(self) -> bool:
        """Return whether a service is to take the row up again."""
        return self.values["state"] == "queued"


def is_orphan(row: Run, service: str | None) -> bool:
    """Return whether the process that holds a row has died.

    Args:
        row: one that is held.
        service: the service that has the lease, if that is who asks; rows of any other service are orphans then.
    """
    owner = row.owner or ""
    if service is not None and owner.startswith("service:"):
        return owner != service
    return not is_alive(owner, row.heartbeat)


def fate_of(row: Run) -> Fate:
    """Decide what becomes of an orphan.

    The end of a service is no failure of its runs, however often it happens; a step that ends its worker is one of the
    step. A run fails that has ended its service again and again while it was planned, and a row that a command line
    was carrying out.
    """
    if row.state == "cancelling":
        return Fate(ended("cancelled"))
    if (row.owner or "").startswith("inline:"):
        text = "The process that carried this run out has ended. Resume the run to have the service finish it."
        return Fate({"error": text, "error_kind": "interrupted", **ended("failed")})
    if row.plannings >= MOST_PLANNINGS:
        text = f"The engine ended {row.plannings} times while it planned this run. It may be too large for the "
        text += "memory of this machine: try fewer experts, values or images."
        return Fate({"error": text, "error_kind": "planning", **ended("failed")})
    times = "" if row.attempts < 2 else f" for the {row.attempts}. time"
    line = f"The engine ended{times} while it worked on this run, which is taken up again."
    return Fate({"state": "queued", "owner": None, "message": "Taken up again"}, line)
