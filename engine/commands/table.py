"""Commands that copy the run table, put a copy back, and make a lost one again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import StoreError
from ..store import Store, rebuild, restore
from .printing import say
from .runs import app


@app.command("backup")
def back_up() -> None:
    """Copy the run table now; the engine does it daily."""
    backup = Store().backups.make("asked-for")
    say(f"Wrote {backup.file} ({backup.file.stat().st_size / 1e6:,.1f} MB).")


@app.command("restore")
def put_back(
    backup: Annotated[
        Path | None, typer.Option(help="A file of the store's folder 'backups'; default the latest.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Only list the backups that there are.")] = False,
) -> None:
    """Put a backup in the place of the run table, and add the runs that the store has on record since."""
    store = Store()
    backups = store.backups.list()
    if listed:
        for item in backups:
            say(f"{item.file}  {item.reason}, {item.age} old")
    if not backups and store.database.file is None:
        raise StoreError(
            "The run table is on a server: `pg_restore` puts a dump of `pg_dump` in its place, and then "
            "`python -m engine runs rebuild` adds the runs that the store has on record since."
        )
    if not backups:
        raise StoreError(
            f"The store {store.root} has no backup. `python -m engine runs rebuild` makes the table from the store."
        )
    if listed:
        return
    chosen = backups[0] if backup is None else next((item for item in backups if _same(item.file, backup)), None)
    if chosen is None:
        raise StoreError(f"{backup} is no backup of {store.root}; `runs restore --list` lists them.")
    say(f"Restoring the backup of {chosen.age} ago. {restore(store, chosen)}")


@app.command("rebuild")
def make_again() -> None:
    """Add the runs that the store has on record, or a report of, and the run table has lost."""
    say(str(rebuild(Store())))


def _same(one: Path, other: Path) -> bool:
    return other in (one, Path(one.name)) or other.resolve() == one.resolve()
