"""Run tables of earlier and of later layouts, in a file and in PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from engine.errors import StoreError
from engine.store import Store, collect, schema
from engine.store.tables import LAYOUT, metadata
from tests.store.made import made_artefact

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path, database_url):
    found = Store(tmp_path, database_url=database_url)
    yield found
    found.database.close()


def _layout_one(url):
    """Make a table as the layout without Alembic was."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        metadata.create_all(connection)
        connection.exec_driver_sql("DROP TABLE alembic_version")
        connection.exec_driver_sql("DROP TABLE audit")
        connection.exec_driver_sql("ALTER TABLE run DROP COLUMN plannings")
        connection.exec_driver_sql("ALTER TABLE run DROP COLUMN person")
        connection.exec_driver_sql("INSERT INTO meta VALUES ('schema', '1')")
    engine.dispose()


def test_an_older_layout_is_changed_and_a_file_copied_before(store):
    _layout_one(store.database_url)
    key = made_artefact(store, "old")
    run = store.runs.submit("run", {})
    store.runs.set_step_keys(run.id, [key])
    copied = ["layout-1"] if store.database.file is not None else []
    assert [backup.reason for backup in store.backups.list()] == copied
    assert schema.layout_of(store.database.engine()) == LAYOUT
    assert collect(store, grace=0).artefacts == 0  # it knows the artefacts that are older than the change


def test_a_later_layout_is_refused(store):
    store.runs.list()
    later = "UPDATE alembic_version SET version_num = '9999'"
    store.database.write(lambda connection: connection.exec_driver_sql(later))
    with pytest.raises(StoreError, match="has layout 9999"):
        Store(store.root, database_url=store.database_url).runs.list()


def test_the_changes_lead_to_the_tables_of_the_code(store):
    assert ScriptDirectory(str(schema.MIGRATIONS)).get_current_head() == LAYOUT
    _layout_one(store.database_url)
    compared = store.database.read(lambda found: compare_metadata(MigrationContext.configure(found), metadata))
    assert compared == []


@pytest.mark.processes
@pytest.mark.parametrize("older", [True, False])
def test_processes_that_open_a_table_at_once_make_or_change_it_once(store, older):
    if older:
        _layout_one(store.database_url)
    code = "from engine.store import Store; print(len(Store().runs.list()))"
    told = {**os.environ, "MERGELENS_STORE": str(store.root), "MERGELENS_DATABASE_URL": store.database_url}
    command = [sys.executable, "-c", code]
    processes = [subprocess.Popen(command, cwd=ROOT, env=told, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in processes] == ["0"] * 3
