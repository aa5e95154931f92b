"""A run table in a file that is damaged, emptied or locked; its backups, and making it again."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.__main__ import app
from engine.errors import StoreError
from engine.store import Store, backups, collect, database, rebuild
from engine.store.database import TableDamaged, TableLocked
from engine.store.owners import this_process
from tests.store.made import made_artefact

ROOT = Path(__file__).parents[2]


@pytest.fixture
def filled(store):
    """A store with a finished run and its artefacts, a renamed one, a deleted one and one at work."""
    names = ("finished", "renamed", "deleted", "at work")
    rows = {name: store.runs.submit("run", {"recipe": {"zoo": name}}, name=name, tags=["demo"]) for name in names}
    keys = [made_artefact(store, name) for name in ("features", "report")]
    for name in names[:-1]:
        store.runs.set_step_keys(rows[name].id, keys)
        assert store.runs.claim_next("me").id == rows[name].id
        assert store.runs.finish(rows[name].id, keys[-1])
    store.runs.edit(rows["renamed"].id, name="A name of its own", notes="kept")
    store.runs.delete(rows["deleted"].id)
    return store


def _table(store):
    return store.root / "runs.sqlite"


def _close(store):
    """Close as the end of a process does, so that the log is part of the file."""
    store.database.close()
    return Store()


def _lose(store, how):
    store = _close(store)
    file = _table(store)
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes({"empty": b"", "half": content[: len(content) // 2], "random": os.urandom(len(content))}[how])
    return Store()


def _facts(store):
    names = ("id", "name", "notes", "tags", "state", "result", "step_keys", "request", "created", "finished", "deleted")
    rows = [*store.runs.list(), *store.runs.list(deleted=True)]
    return {row.id: {name: getattr(row, name) for name in names} for row in rows}


@pytest.mark.parametrize("how", ["missing", "empty", "half", "random"])
def test_a_lost_table_is_named_and_made_again(filled, how):
    before = _facts(filled)
    store = _lose(filled, how)
    with pytest.raises(TableDamaged, match=r"is damaged: .*runs restore.*runs rebuild"):
        store.runs.list()
    with pytest.raises(TableDamaged):
        collect(store, grace=0)
    result = CliRunner().invoke(app, ["runs", "rebuild"])
    assert result.exit_code == 0, result.output
    assert "4 came back from the store's records" in result.output
    after = _facts(store)
    lost = next(ident for ident, facts in before.items() if facts["state"] == "queued")
    assert after.pop(lost)["state"] == "failed"
    before.pop(lost)
    assert after == before
    assert store.runs.resume(lost).state == "queued"
    assert collect(store, grace=0).artefacts == 0
    if how in ("half", "random"):
        assert list((store.root / "damaged").glob("table.*/runs.sqlite"))


def test_damage_inside_the_table_is_named(filled):
    store = _close(filled)
    content = bytearray(_table(store).read_bytes())
    content[8192:12288] = os.urandom(4096)
    _table(store).write_bytes(content)
    with pytest.raises(TableDamaged, match="runs rebuild"):
        Store().runs.list()


def test_damage_that_happens_while_the_table_is_open_is_named(filled, monkeypatch):
    store = _close(filled)
    store.runs.list()
    store.database.engine().dispose()
    with _table(store).open("r+b") as file:
        file.write(os.urandom(30_000))
    with pytest.raises(TableDamaged, match="runs restore"):
        store.runs.list()


def test_a_record_that_cannot_be_read_costs_one_run(filled, caplog):
    first = min(run.id for run in filled.runs.list())
    (filled.root / "runs" / f"{first}.json").write_text("{")
    store = _lose(filled, "empty")
    assert rebuild(store).recorded == 3
    assert "cannot be read and is left out" in caplog.text


@pytest.mark.whole
def test_runs_come_back_from_reports_alone(tmp_path, store):
    """A store whose records are gone as well, with a run as the pipeline makes it."""
    from engine.pipeline.local import run_recipe
    from engine.recipe import parse_recipe

    recipe = parse_recipe({"zoo": "mini8", "experts": ["digits", "signs"], "probe": {"samples_per_task": 8}})
    report = run_recipe(recipe, store)
    before = store.runs.list()[0]
    assert len(before.step_keys) > 5
    shutil.rmtree(store.root / "runs")
    store = _lose(store, "missing")
    with pytest.raises(StoreError, match=r"is younger than .* artefacts"):
        collect(store, grace=0)
    with pytest.raises(StoreError, match="runs rebuild"):
        collect(store, grace=0, dry=True)
    found = rebuild(store)
    assert (found.known, found.recorded, found.reported) == (0, 0, 1)
    row = store.runs.list()[0]
    assert (row.state, row.result, row.tags) == ("finished", before.result, ["rebuilt"])
    assert set(row.step_keys) <= set(before.step_keys)
    assert parse_recipe(row.request["recipe"]) == report.recipe
    kept = {artefact.key for artefact in store.artefacts()}
    collect(store, grace=0)
    assert set(row.step_keys) <= {artefact.key for artefact in store.artefacts()} <= kept
    assert rebuild(store).reported == 0


def test_the_collector_refuses_while_the_table_is_younger(store):
    """A table elsewhere that was made after the artefacts, for instance of another database."""
    key = made_artefact(store, "old")
    other = Store(database_url=f"sqlite:///{store.root / 'other.sqlite'}")
    with pytest.raises(StoreError, match="younger than 1 artefacts"):
        collect(other, grace=0)
    assert store.find(key)
    rebuild(other)
    assert collect(other, grace=0).artefacts == 1


def test_backups_are_whole_private_and_bounded(filled, monkeypatch):
    first = filled.backups.make("asked-for")
    assert first.file.stat().st_mode & 0o777 == 0o600
    copy = Store(database_url=f"sqlite:///{first.file}")
    assert _facts(copy) == _facts(filled)
    for number in range(backups.KEPT + 2):
        monkeypatch.setattr(backups.time, "strftime", lambda *_, number=number: f"20260101-0000{number:02}")
        filled.backups.make("asked-for")
    assert len(filled.backups.list()) == backups.KEPT


def test_a_damaged_table_replaces_no_backup(filled):
    made = filled.backups.make("daily")
    store = _lose(filled, "random")
    os.utime(made.file, (time.time() - 2 * backups.INTERVAL,) * 2)
    assert store.backups.make_if_due() is None
    assert [backup.file for backup in store.backups.list()] == [made.file]


def test_the_daily_backup_is_made_once_a_day(filled):
    assert filled.backups.make_if_due().reason == "daily"
    assert filled.backups.make_if_due() is None
    os.utime(filled.backups.list()[0].file, (time.time() - backups.INTERVAL - 60,) * 2)
    assert "24 hours" in filled.backups.list()[0].age
    time.sleep(1)  # names tell seconds apart
    assert filled.backups.make_if_due()


def test_a_backup_is_restored_with_what_ended_since(filled):
    open_elsewhere = Store()
    open_elsewhere.runs.list()
    assert CliRunner().invoke(app, ["runs", "backup"]).exit_code == 0
    filled.runs.submit("run", {}, name="Since the backup", owner="me")
    before = _facts(filled)
    store = _lose(filled, "half")
    result = CliRunner().invoke(app, ["runs", "restore"])
    assert result.exit_code == 0, result.output
    assert "4 runs were in it, 1 came back" in result.output
    after = _facts(store)
    assert set(after) == set(before)
    assert _facts(open_elsewhere) == after  # who had the old table open turns to the new one
    assert "asked-for" in CliRunner().invoke(app, ["runs", "restore", "--list"]).output


def test_nothing_is_replaced_under_a_service(filled):
    backup = filled.backups.make("asked-for")
    assert filled.lease.acquire(this_process("service"), "v1")
    result = CliRunner().invoke(app, ["runs", "restore", "--backup", str(backup.file)])
    assert isinstance(result.exception, StoreError)
    assert "serve --stop" in str(result.exception)


def test_restoring_without_a_backup_says_what_to_do(store):
    result = CliRunner().invoke(app, ["runs", "restore"])
    assert "runs rebuild" in str(result.exception)


def _hold(file, seconds, ready):
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    ready.set()
    time.sleep(seconds)
    connection.execute("ROLLBACK")


@pytest.fixture
def locked(store):
    """Hold the table for some seconds from another process."""
    store.runs.list()
    started = []

    def hold(seconds):
        context = multiprocessing.get_context("spawn")
        ready = context.Event()
        process = context.Process(target=_hold, args=(str(_table(store)), seconds, ready))
        process.start()
        started.append(process)
        assert ready.wait(30)

    yield hold
    for process in started:
        process.terminate()
        process.join()


@pytest.mark.slow
def test_a_lock_is_waited_out_and_shown(store, locked, caplog):
    shown = []
    store.database.on_wait = shown.append
    locked(17)  # longer than the 15 seconds of SQLite's own wait, at which a run used to fail
    began = time.monotonic()
    assert store.runs.submit("run", {}).state == "queued"
    assert time.monotonic() - began > 10
    assert len(shown) == 1
    assert "locked by another program" in caplog.text


@pytest.mark.processes
def test_a_lock_that_lasts_is_named(store, locked, monkeypatch):
    monkeypatch.setattr(database, "PATIENCE", 0.5)
    locked(30)
    with pytest.raises(TableLocked, match="Nothing is lost; close that program"):
        store.database.write(lambda connection: None, patience=0.5)
    assert store.runs.list() == []  # reading does not wait for a writer


@pytest.mark.processes
def test_a_page_does_not_wait_to_say_that_it_is_open(store, locked):
    locked(20)
    began = time.monotonic()
    store.lease.page_seen()
    assert time.monotonic() - began < 5


def test_records_name_their_runs(filled):
    files = sorted((filled.root / "runs").glob("*.json"))
    assert {json.loads(file.read_text())["name"] for file in files} >= {"finished", "A name of its own"}
    gone = filled.runs.list(deleted=True)[0]
    filled.runs.purge(time.time() + 1)
    assert not (filled.root / "runs" / f"{gone.id}.json").exists()
