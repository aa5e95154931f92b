"""A store that can only be read, and who may read one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from engine.store import Store
from tests.store.made import made_artefact

ROOT = Path(__file__).parents[2]


def _as_nobody(store, code):
    """Run code as a user who may read the store and write nowhere in it."""
    for folder, _, names in os.walk(store.root):
        Path(folder).chmod(0o555)
        for name in names:
            (Path(folder) / name).chmod(0o444)
    drop = "import os\nif os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
    environment = {**os.environ, "MERGELENS_STORE": str(store.root), "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/"}
    command = [sys.executable, "-c", "import engine.__main__\n" + drop + textwrap.dedent(code)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture
def open_to_all(tmp_path, monkeypatch):
    """A store whose parents everybody may pass through."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    monkeypatch.setenv("MERGELENS_STORE", str(folder / "store"))
    yield Store()
    for path in [folder, *(item for item in folder.rglob("*") if item.is_dir())]:
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.processes
@pytest.mark.parametrize("log", [True, False])
def test_a_store_that_can_only_be_read_is_looked_at(open_to_all, log):
    """With SQLite's log beside the table, as a killed process leaves it, and without."""
    store = open_to_all
    run = store.runs.submit("run", {}, name="Seen")
    key = made_artefact(store, "report")
    store.runs.set_step_keys(run.id, [key])
    damaged = made_artefact(store, "damaged")
    (store.folder_of(damaged) / "text").write_text("other")
    if not log:
        store.database.close()
    code = f"""
        from engine.store import Store
        from engine.errors import StoreError
        store = Store()
        print(store.read_only, [run.name for run in store.runs.list()], store.find("{key}") is not None)
        print(store.find("{damaged}"))
        print(store.digest_file("{store.folder_of(key) / "text"}")[:4])
        store.lease.page_seen()
        try:
            store.runs.submit("run", {{}})
        except StoreError as error:
            print(error)
    """
    result = _as_nobody(store, code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("True ['Seen'] True\nNone\n")
    assert "can only be read: runs can be looked at and exported" in result.stdout


@pytest.mark.processes
def test_runs_of_a_store_that_can_only_be_read_are_listed_and_exported(open_to_all, tmp_path):
    from engine.pipeline.local import run_recipe
    from engine.recipe import parse_recipe

    store = open_to_all
    run_recipe(parse_recipe({"zoo": "mini8", "experts": ["digits", "signs"], "probe": {"samples_per_task": 8}}), store)
    run = store.runs.list()[0]
    store.database.close()
    listed = (["runs", "list"], ["runs", "show", run.id], ["export", run.id, "--to"])
    code = f"""
        import tempfile
        from engine.__main__ import app
        out = tempfile.mkdtemp()
        for arguments in {listed}:
            arguments += [out + "/m.csv"] if arguments[-1] == "--to" else []
            app(arguments, standalone_mode=False)
        print(open(out + "/m.csv").read())
    """
    result = _as_nobody(store, code)
    assert result.returncode == 0, result.stderr
    for text in (run.id, "finished", "Wrote ", "state,task,domain"):
        assert text in result.stdout


def test_state_is_private(store):
    before = os.umask(0o022)
    try:
        made_artefact(store, "a")
        store.runs.submit("run", {})
        store.backups.make("asked-for")
    finally:
        os.umask(before)
    folders = [store.root, *(path for path in store.root.iterdir() if path.is_dir())]
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in folders} == {path.name: "0o700" for path in folders}
    assert [path.stat().st_mode & 0o777 for path in store.root.glob("runs.sqlite*")] == [0o600] * 3


def test_a_store_in_a_folder_that_all_may_enter_is_private(store):
    store.root.mkdir(mode=0o755, parents=True)
    store.root.chmod(0o755)
    made_artefact(store, "a")
    store.runs.submit("run", {})
    assert (store.root / "artefacts").stat().st_mode & 0o077 == 0
    assert (store.root / "runs.sqlite").stat().st_mode & 0o077 == 0


def test_a_store_shared_with_a_group_stays_so(store):
    store.root.mkdir(parents=True)
    store.root.chmod(0o2770)
    before = os.umask(0o007)
    try:
        made_artefact(store, "a")
        store.runs.submit("run", {})
    finally:
        os.umask(before)
    assert (store.root / "artefacts").stat().st_mode & 0o777 == 0o770
    assert (store.root / "runs.sqlite").stat().st_mode & 0o777 == 0o660
