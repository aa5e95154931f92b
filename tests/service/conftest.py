"""A real service in a process of its own, shared by the tests that leave it alive."""

from __future__ import annotations

import contextlib
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

    def __init__(self, root: Path) -> None:
        self.store = Store(root, database_url=f"sqlite:///{root / 'runs.sqlite'}")
        self.process: subprocess.Popen | None = None
        self.launched: list[subprocess.Popen] = []
        self.script = "run_service.py"
        self.environment: dict[str, str] = {}

    def launch(self, *arguments: str) -> subprocess.Popen:
        paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ["PYTHONPATH"]])
        environment = {**os.environ, ENV_ROOT: str(self.store.root), "PYTHONPATH": paths}
        environment.pop(ENV_DATABASE, None)
        environment.pop("MERGELENS_SCHEDULER", None)
        environment |= self.environment
        self.store.root.mkdir(parents=True, exist_ok=True)
        with (self.store.root / "service.txt").open("ab") as log:
            command = [sys.executable, str(HERE / self.script), *arguments]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.launched.append(process)
        return process

    def start(self, *arguments: str) -> None:
        self.process = self.launch(*arguments)
        owner = f":{self.process.pid}:"
        self.until(lambda: (s := self.store.lease.status()) and s.ready and owner in s.owner, 30, "a ready service")

    def until(self, condition, seconds: float = 60.0, what: str = "it") -> float:
        """Wait for a condition; returns the seconds it took."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > seconds:
                log = (self.store.root / "service.txt").read_text()[-3000:]
                pytest.fail(f"waited {seconds} s for {what}\n{log}")
            time.sleep(0.01)
        return time.monotonic() - began

    def submit(self, *steps, **request):
        return self.store.runs.submit("run", {"steps": [list(step) for step in steps], **request})

    def state(self, run) -> str:
        return self.store.runs.get(run.id).state

    def ended(self, run, seconds: float = 60.0):
        self.until(lambda: not self.store.runs.get(run.id).active, seconds, f"the end of {run}")
        return self.store.runs.get(run.id)

    def kill(self) -> None:
        for process in self.launched:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def own_service(tmp_path):
    """A service of the test's own, not started yet."""
    service = Service(tmp_path / "store")
    yield service
    service.kill()


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    """A running service."""
    service = Service(tmp_path_factory.mktemp("service") / "store")
    service.start()
    service.ended(service.submit(["write", {"text": "first"}, []]), 120)  # workers have imported what steps need
    yield service
    service.kill()
