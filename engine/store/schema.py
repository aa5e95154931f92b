"""The layout of the run database: made at once in a new one, changed by Alembic in an older one."""

from __future__ import annotations

import time
from pathlib import Path

import sqlalchemy as sa

from ..errors import StoreError
from .tables import LAYOUT, layout, meta, metadata

KNOWN_SINCE = "known_since"  # from when on the table knows all runs; artefacts from before may be unknown to it
MIGRATIONS = Path(__file__).parent / "migrations"
FIRST = "1"  # the layout that Alembic's changes begin with, from before it was used


def layout_of(engine: sa.Engine) -> str | None:
    """Return the layout that a database has; None for one without tables.

    Raises:
        StoreError: the layout is of a later version.
    """
    with engine.connect() as connection:
        names = set(sa.inspect(connection).get_table_names())
        if layout.name in names:
            found = connection.execute(sa.select(layout.c.version_num)).scalar()
        elif meta.name in names:
            found = FIRST
        else:
            return None
    if found not in (LAYOUT, FIRST, *_earlier()):
        raise StoreError(
            f"The run table has layout {found}; this version reads layouts up to {LAYOUT}. "
            "Use the version that made it, or set MERGELENS_STORE to a new folder."
        )
    return found


def create(engine: sa.Engine) -> None:
    """Make the tables in an empty database; one process at a time does it, the others find them."""
    with engine.execution_options(writes=True).begin() as connection:
        _alone(connection)
        metadata.create_all(connection)
        if connection.execute(sa.select(layout.c.version_num)).scalar() is None:
            connection.execute(sa.insert(layout).values(version_num=LAYOUT))
            connection.execute(sa.insert(meta).values(name=KNOWN_SINCE, value=str(time.time())))


def upgrade(engine: sa.Engine) -> None:
    """Bring an older database to the present layout, in one transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    with engine.execution_options(writes=True).begin() as connection:
        _alone(connection)
        config.attributes |= {"connection": connection, "metadata": metadata}
        command.upgrade(config, "head")


def known_since(connection: sa.Connection) -> float:
    """Return the time from which on the table knows of all runs."""
    return float(connection.execute(sa.select(meta.c.value).where(meta.c.name == KNOWN_SINCE)).scalar() or 0.0)


def set_known_since(connection: sa.Connection, moment: float) -> None:
    """Say from which time on the table knows of all runs: 0 once it was rebuilt."""
    connection.execute(sa.update(meta).where(meta.c.name == KNOWN_SINCE).values(value=str(moment)))


def _earlier() -> set[str]:
    return {path.name.split("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py")}


def _alone(connection: sa.Connection) -> None:
    """Keep others from changing the layout meanwhile; SQLite's transaction does so by itself."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7315061)")
