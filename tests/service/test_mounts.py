"""A worker that sees store and zoo under other paths, and nothing under the engine's: a run of the real pipeline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import hosts
import pytest

from engine.store import Store
from engine.store.artefacts import ENV_DATABASE, ENV_ROOT
from tests.tiny_zoo import make_zoo

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 180.0
MOVED = 'mount --make-rprivate / && mount --bind "$0" "$1" && mount -t tmpfs none "$0" && shift && exec "$@"'
RECIPE = {
    "merge": {"method": "ties", "params": {"density": 0.5}},
    "calibrators": [{"method": "surgery", "params": {"rank": 4, "steps": 10, "batch_size": 8}}],
    "probe": {"samples_per_task": 8},
}


def until(condition, log):
    began = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - began < PATIENCE, log.read_text()[-5000:]
        time.sleep(0.1)
    return found


@pytest.mark.slow
def test_a_worker_that_sees_the_store_under_another_path_carries_a_run_out(tmp_path, monkeypatch):
    if reason := hosts.why_not():
        pytest.skip(reason)
    theirs, ours, log, file = (tmp_path / name for name in ("theirs", "ours", "log", "scheduler.json"))
    ours.mkdir()
    store = Store(theirs / "store", database_url=f"sqlite:///{theirs / 'store' / 'runs.sqlite'}")
    zoo = make_zoo(theirs / "zoos" / "tiny", images=24)
    told = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}"}
    told |= {"MERGELENS_ROOTS": str(theirs), ENV_ROOT: str(store.root), ENV_DATABASE: store.database_url}
    dask = [sys.executable, "-m", "distributed.cli.dask_"]
    with ExitStack() as stack:
        output = stack.enter_context(log.open("ab"))

        def start(*command, **settings):
            process = subprocess.Popen(command, env={**told, **settings}, cwd=ROOT, stdout=output, stderr=output)
            stack.callback(process.wait)
            stack.callback(process.send_signal, signal.SIGTERM)

        def program(name, *options):
            common = ("--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard")
            return (*dask[:2], dask[2] + name, *common, *options)

        start(*program("scheduler", "--port", "0"))
        address = until(lambda: file.exists() and json.loads(file.read_text() or "{}").get("address"), log)
        options = ("--no-nanny", "--nthreads", "1", "--memory-limit", "0", "--local-directory", str(tmp_path / "dask"))
        elsewhere = {"MERGELENS_MOUNTS": f"{theirs}={ours}", "MERGELENS_ROOTS": str(ours)}
        elsewhere |= {ENV_ROOT: str(ours / "store"), ENV_DATABASE: ""}
        worker = program("worker", *options)
        start("unshare", "-m", "sh", "-c", MOVED, str(theirs), str(ours), *worker, **elsewhere)
        start(sys.executable, "-m", "engine.service", MERGELENS_SCHEDULER=address)
        until(lambda: (status := store.lease.status()) and status.ready and status.workers == 1, log)
        run = store.runs.submit("run", {"recipe": {"zoo": str(zoo), **RECIPE}, "projection": None})
        until(lambda: not store.runs.get(run.id).active, log)
        row = store.runs.get(run.id)
        assert (row.state, row.error) == ("finished", ""), log.read_text()[-5000:]
        copy = store.runs.submit("copy", {"zoo": str(zoo), "name": "second"})
        until(lambda: not store.runs.get(copy.id).active, log)
        copied = store.find(store.runs.get(copy.id).result)
    assert json.loads((copied / "copied.json").read_text())["folder"] == str(theirs / "store" / "zoos" / "second")
    assert store.zoos.list() == [theirs / "store" / "zoos" / "second"]
    assert not list(ours.iterdir())
    assert str(ours) not in (store.find(row.result) / "report.json").read_text()
    assert all(store.find(artefact.key) for artefact in store.artefacts())
