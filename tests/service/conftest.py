"""A store, and a real service in a process of its own, shared by the tests that leave it alive."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.store import Store
from engine.store.artefacts import ENV_DATABASE, ENV_ROOT

HERE = Path(__file__).parent


class Service:
    """A service process and its store."""

    patience = 120.0  # seconds that something is waited for, where many work on few cores

    def __init__(self, root: Path, database_url: str | None = None) -> None:
        self.store = Store(root, database_url=database_url or f"sqlite:///{root / 'runs.sqlite'}")
        self.process: subprocess.Popen | None = None
        self.launched: list[subprocess.Popen] = []
        self.script = "run_service.py"
        self.environment: dict[str, str] = {}
        self.settings: dict[str, float] = {}  # constants of the service, by their dotted names

    def launch(self, *arguments: str) -> subprocess.Popen:
        paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ["PYTHONPATH"]])
        environment = {**os.environ, ENV_ROOT: str(self.store.root), "PYTHONPATH": paths}
        environment[ENV_DATABASE] = self.store.database_url
        environment.pop("MERGELENS_SCHEDULER", None)
        environment |= {"TOY_SETTINGS": json.dumps(self.settings), **self.environment}
        self.store.root.mkdir(parents=True, exist_ok=True)
        with (self.store.root / "service.txt").open("ab") as log:
            command = [sys.executable, str(HERE / self.script), *arguments]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.launched.append(process)
        return process

    def start(self, *arguments: str) -> None:
        self.process = self.launch(*arguments)
        owner = f":{self.process.pid}:"
        self.until(lambda: (s := self.store.lease.status()) and s.ready and owner in s.owner, what="a ready service")

    def until(self, condition, seconds: float = patience, what: str = "it") -> float:
        """Wait for a condition; returns the seconds it took."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > seconds:
                log = self.store.root / "service.txt"
                told = log.read_text()[-3000:] if log.exists() else ""
                pytest.fail(f"waited {seconds} s for {what}\n{told}")
            time.sleep(0.05)
        return time.monotonic() - began

    def submit(self, *steps, **request):
        return self.store.runs.submit("run", {"steps": [list(step) for step in steps], **request})

    def state(self, run) -> str:
        return self.store.runs.get(run.id).state

    def ended(self, run):
        self.until(lambda: not self.store.runs.get(run.id).active, what=f"the end of {run}")
        return self.store.runs.get(run.id)

    def kill(self) -> None:
        for process in self.launched:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def store(tmp_path):
    """A store whose table nobody else sees."""
    root = tmp_path / "store"
    return Store(root, database_url=f"sqlite:///{root / 'runs.sqlite'}")


@pytest.fixture
def gate(tmp_path):
    """A file that a step of the test waits for."""
    return tmp_path / "gate"


@pytest.fixture
def own_service(tmp_path):
    """A service of the test's own, not started yet."""
    service = Service(tmp_path / "store")
    yield service
    service.kill()


@pytest.fixture
def service_on_postgresql(tmp_path, postgresql):
    """A service of the test's own whose run table is in PostgreSQL, not started yet."""
    with postgresql.database() as url:
        service = Service(tmp_path / "store", url)
        yield service
        service.kill()
        service.store.database.close()


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    """A running service."""
    service = Service(tmp_path_factory.mktemp("service") / "store")
    service.start()
    service.ended(service.submit(["write", {"text": "first"}, []]))  # workers have imported what steps need
    yield service
    service.kill()
