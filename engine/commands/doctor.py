"""The command that looks at an installation: what is installed, reachable and writable, and what to do about it."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import typer

from ..errors import EngineError
from ..mounts import ENV, mounts
from ..outgoing import terminal
from ..service.client import service_state
from ..store import Store
from ..store.artefacts import SPARE
from ..store.sqlite import fault_of_pages
from ..version import code_version
from ..zoo.importing.roots import configured_roots
from .printing import say

PACKAGES = (
    "torch",
    "open_clip_torch",
    "transformers",
    "streamlit",
    "dask",
    "distributed",
    "SQLAlchemy",
    "alembic",
    "safetensors",
)
LITTLE = 2_000_000_000  # bytes free below which a large run may not fit
OLD_BACKUP = 2 * 86_400.0  # seconds


@dataclass(frozen=True)
class Finding:
    """One line of what was looked at."""

    state: Literal["ok", "note", "fault"]
    text: str
    advice: str = ""

    def __str__(self) -> str:
        """Render the line for a terminal."""
        return f"{self.state:<6} {terminal(self.text)}" + (f"\n       → {terminal(self.advice)}" if self.advice else "")


def doctor() -> None:
    """Look at what is installed, reachable and writable, how old the backup is, and say what to do."""
    store = Store()
    worst = "ok"
    for look in (_packages, _folder, _room, _table, _backup, _engine, _mounts, _roots):
        for finding in _found(look, store):
            say(str(finding))
            worst = "fault" if "fault" in (finding.state, worst) else worst
    if worst == "fault":
        raise typer.Exit(1)


def _found(look: Callable[[Store], Iterator[Finding]], store: Store) -> Iterator[Finding]:
    """Look at one part; what keeps it from being looked at is a fault of its own."""
    try:
        yield from look(store)
    except (EngineError, OSError) as error:
        yield Finding("fault", str(error))


def _packages(store: Store) -> Iterator[Finding]:
    python, database = platform.python_version(), sqlite3.sqlite_version
    yield Finding("ok", f"MergeLens {code_version()}, Python {python}, SQLite {database}")
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            yield Finding("fault", f"{name} is not installed.", "`make app` installs what requirements.lock lists.")
    yield Finding("ok", ", ".join(f"{name} {number}" for name, number in found.items()))


def _folder(store: Store) -> Iterator[Finding]:
    if not store.root.exists():
        yield Finding("note", f"There is no store at {store.root} yet; the first run makes it.")
        return
    if store.read_only:
        yield Finding("note", f"The store {store.root} can only be read.", "Set MERGELENS_STORE to run anything.")
    else:
        yield Finding("ok", f"The store {store.root} can be written to.")
    mode = store.root.stat().st_mode
    if mode & 0o007:
        advice = f"`chmod o-rwx {store.root}` keeps them out."
        yield Finding("note", f"Other users of this machine may enter {store.root}.", advice)
    damaged = len(list((store.root / "damaged").glob("*")))
    if damaged:
        where = store.root / "damaged"
        yield Finding("note", f"{damaged} damaged artefacts or tables lie in {where}.", "Check the disk.")


def _room(store: Store) -> Iterator[Finding]:
    free = store.free_bytes()
    text = f"{free / 1e9:,.1f} GB are free on the store's disk."
    if not store.has_room(SPARE):
        yield Finding("fault", text, "Runs are paused until there is room; `runs gc` removes what no run refers to.")
    else:
        yield Finding("note" if free < LITTLE else "ok", text, "`runs gc` makes room." if free < LITTLE else "")


def _table(store: Store) -> Iterator[Finding]:
    if not store.root.exists():
        return
    count = store.runs.count()
    fault = fault_of_pages(store.database.file) if store.database.file is not None else ""
    if fault:
        yield Finding("fault", f"The run table is damaged: {fault}.", "`python -m engine runs restore` mends it.")
    else:
        yield Finding("ok", f"The run table holds {count:,} runs; {store.history.count():,} are on record beside it.")


def _backup(store: Store) -> Iterator[Finding]:
    if not store.root.exists():
        return
    backups = store.backups.list()
    if store.database.file is None:
        yield Finding(
            "note", "The run table is on a server, so the engine makes no backups of it.", "`pg_dump` makes one."
        )
    elif backups:
        old = backups[0].seconds > OLD_BACKUP
        advice = "The engine makes one a day while it runs; `python -m engine runs backup` makes one now."
        yield Finding("note" if old else "ok", f"The latest backup is {backups[0].age} old.", advice if old else "")
    else:
        yield Finding("note", "There is no backup yet.", "`python -m engine runs backup` makes one.")


def _engine(store: Store) -> Iterator[Finding]:
    if not store.root.exists():
        return
    state = service_state(store)
    advice = {"absent": "`python -m engine serve --detach` starts it; pages do so too."}.get(state.state, "")
    yield Finding("ok" if state.ready else "note", state.message, advice)
    if scheduler := os.environ.get("MERGELENS_SCHEDULER"):
        yield Finding("note", f"Steps go to the scheduler {scheduler}.")


def _mounts(store: Store) -> Iterator[Finding]:
    for theirs, ours in mounts():
        if os.access(ours, os.R_OK | os.X_OK):
            yield Finding("ok", f"What the engine's machine sees at {theirs} lies at {ours} here.")
        else:
            yield Finding("fault", f"{ours} cannot be read, where {ENV} says that {theirs} lies.", "Mount it.")


def _roots(store: Store) -> Iterator[Finding]:
    roots = configured_roots()
    if not roots:
        yield Finding("fault", "No folder of MERGELENS_ROOTS is there.", "Name folders with checkpoints and images.")
    for root in roots:
        if os.access(root, os.R_OK | os.X_OK):
            yield Finding("ok", f"Files are chosen from {root}.")
        else:
            yield Finding("fault", f"{root}, a folder to choose files from, cannot be read.")
