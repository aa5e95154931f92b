"""A run table in PostgreSQL: what a file has a command for has an answer here, and a server may go and come back."""

from __future__ import annotations

import os
import subprocess
import threading
import time

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from engine.__main__ import app
from engine.errors import StoreError
from engine.pipeline.kinds import all_kinds
from engine.store import Store, rebuild
from engine.store.database import TableDamaged, TableLocked
from engine.store.postgresql import TURN, json_text
from engine.store.tables import metadata, run
from tests.cut_wire import CutWire
from tests.database_server import program

pytestmark = pytest.mark.processes


@pytest.fixture
def store(tmp_path, postgresql, monkeypatch):
    with postgresql.database() as url:
        monkeypatch.setenv("MERGELENS_DATABASE_URL", url)
        found = Store()
        yield found
        found.database.close()


def _drop_all(store):
    engine = sa.create_engine(store.database_url)
    metadata.drop_all(engine)
    engine.dispose()
    store.database.close()


def _call(*words):
    return CliRunner().invoke(app, list(words))


def test_a_lost_table_is_named_and_made_again(store):
    first = store.runs.submit("run", {}, name="Kept", person="anna")
    store.runs.fail(first.id, "no")
    _drop_all(store)
    with pytest.raises(TableDamaged, match=r"1 runs on record.*pg_restore.*runs rebuild"):
        store.runs.list()
    assert "1 came back from the store's records" in _call("runs", "rebuild").output
    assert [(row.name, row.person, row.state) for row in store.runs.list()] == [("Kept", "anna", "failed")]
    assert rebuild(store).recorded == 0


def test_copies_are_made_with_the_servers_own_tools(store):
    row = store.runs.submit("run", {}, name="Kept")
    for words in (("runs", "backup"), ("runs", "restore")):
        found = _call(*words)
        assert isinstance(found.exception, StoreError)
        assert "pg_dump" in str(found.exception) or "pg_restore" in str(found.exception)
    assert store.backups.make_if_due() is None
    place = store.database_url.replace("+psycopg", "")
    dump = store.root / "runs.dump"
    subprocess.run([program("pg_dump"), "--format", "custom", "--file", dump, "--dbname", place], check=True)
    _drop_all(store)
    subprocess.run([program("pg_restore"), "--clean", "--if-exists", "--dbname", place, dump], check=True)
    assert [found.id for found in store.runs.list()] == [row.id]


def test_the_doctor_says_who_sees_to_copies(store):
    store.runs.submit("run", {})
    found = _call("doctor")
    assert found.exit_code == 0
    assert "holds 1 runs" in found.output
    assert "pg_dump" in found.output


@pytest.fixture
def held(store):
    """Hold the turn of writers, as another program would."""
    store.runs.list()
    engine = sa.create_engine(store.database_url)
    connection = engine.connect()
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({TURN})")
    yield connection
    connection.close()
    engine.dispose()


def test_a_lock_is_waited_out_and_shown(store, held, caplog):
    shown = []
    store.database.on_wait = shown.append
    threading.Timer(4, held.rollback).start()
    began = time.monotonic()
    assert store.runs.submit("run", {}).state == "queued"
    assert time.monotonic() - began > 3
    assert len(shown) == 1
    assert "is locked by another program" in caplog.text


def test_a_lock_that_lasts_is_named_and_readers_do_not_wait(store, held):
    with pytest.raises(TableLocked, match="Nothing is lost; close that program"):
        store.database.write(lambda connection: None, patience=0.5)
    assert store.runs.list() == []


@pytest.mark.slow
def test_a_server_that_restarts_is_waited_for(store, postgresql, caplog):
    rows = [store.runs.submit("run", {}) for _ in range(3)]
    postgresql.stop()
    threading.Timer(4, postgresql.start).start()
    assert store.runs.claim_next("me").id == rows[0].id
    assert len(store.runs.list()) == 3
    assert "The server of the run table is away" in caplog.text


def _end_connections(store):
    engine = sa.create_engine(store.database_url, isolation_level="AUTOCOMMIT")
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with engine.connect() as connection:
        connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid) {others}")
    engine.dispose()


def test_work_whose_connection_is_cut_is_repeated_and_counts_once(store):
    row, calls = store.runs.submit("run", {}), []

    def more(connection):
        connection.execute(sa.update(run).values(plannings=run.c.plannings + 1))
        calls.append(1)
        if len(calls) < 3:
            _end_connections(store)
        return connection.execute(sa.select(run.c.plannings)).scalar()

    assert store.database.write(more) == 1
    assert len(calls) == 3
    assert store.runs.get(row.id).plannings == 1

    def look(connection):
        calls.append(1)
        if len(calls) == 4:
            _end_connections(store)
        return connection.execute(sa.select(run.c.id)).scalars().all()

    assert store.database.read(look) == [row.id]
    assert len(calls) == 5


@pytest.mark.parametrize("heard", [True, False], ids=["committed", "undone"])
def test_a_commit_whose_answer_is_lost_counts_once(store, heard, monkeypatch):
    """The wire is cut when the commit is sent; the server has heard it, or has not and ends the transaction later."""
    monkeypatch.setattr("engine.store.postgresql.IDLE", 4_000)
    row = store.runs.submit("run", {})
    with CutWire(store.database_url, heard=heard) as wire:
        behind, calls = Store(store.root, database_url=wire.url), []
        behind.runs.list()  # connected

        def more(connection):
            calls.append(1)
            connection.execute(sa.update(run).values(plannings=run.c.plannings + 1))
            return "done"

        wire.armed.set()
        assert behind.database.write(more) == "done"
        assert not wire.armed.is_set()
        behind.database.close()
    assert len(calls) == (1 if heard else 2)
    assert store.runs.get(row.id).plannings == 1


def test_a_server_that_stays_away_is_named(store, postgresql):
    store.runs.list()
    postgresql.stop()
    try:
        with pytest.raises(TableLocked, match="has not answered for"):
            store.database.write(lambda connection: None, patience=0.5)
        with pytest.raises(StoreError, match="Does its server run, and may this account use it"):
            Store(store.root, database_url=store.database_url).runs.list()
    finally:
        postgresql.start()


def test_no_password_is_said(tmp_path):
    url = f"postgresql+psycopg://anna:secret@/none?host={tmp_path}"
    with pytest.raises(StoreError, match="cannot be used") as error:
        Store(tmp_path / "store", database_url=url).runs.list()
    assert "secret" not in str(error.value)


def test_what_json_of_a_row_may_not_hold_is_replaced(store):
    row = store.runs.submit("run", {"note": "a\0b"}, name="c\0d", owner="me")
    store.runs.set_progress(row.id, metrics={"loss": [1.0, float("nan"), float("inf")]})
    found = store.runs.get(row.id)
    assert found.metrics == {"loss": [1.0, None, None]}
    assert (found.request, found.name) == ({"note": "a\0b"}, "c\ufffdd")
    assert [row.name for row in store.runs.list(search="c")] == ["c\ufffdd"]
    assert json_text({"a": ("é", 1)}) == '{"a": ["é", 1]}'


def test_every_kind_fits_its_column():
    assert max(map(len, all_kinds())) <= run.c.kind.type.length


def test_what_is_read_is_of_one_moment(store):
    store.runs.submit("run", {})
    count = sa.select(sa.func.count()).select_from(run)

    def look_twice(connection):
        before = connection.execute(count).scalar()
        Store(store.root, database_url=store.database_url).runs.submit("run", {})
        return before, connection.execute(count).scalar()

    assert store.database.read(look_twice) == (1, 1)
    assert store.runs.count() == 2


def test_readers_write_nothing(store):
    store.runs.list()
    with pytest.raises(Exception, match="read-only transaction"):
        store.database.read(lambda connection: connection.execute(sa.delete(run)))


def test_the_environment_names_the_database(store):
    assert os.environ["MERGELENS_DATABASE_URL"] == store.database_url
    assert _call("runs", "list").output.strip() == "The store holds no runs yet."
