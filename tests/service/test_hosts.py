"""Four hosts: the page with the run table, the scheduler with the service, two workers; each of them vanishes once."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import hosts
import pytest
import sqlalchemy as sa

from engine.store import Store
from engine.store.artefacts import ENV_DATABASE, ENV_ROOT
from tests import database_server

HERE = Path(__file__).parent
PATIENCE = 180.0
AWAY = 20.0  # seconds that a network is cut
TABLE, SERVICE, FIRST, SECOND = 1, 2, 3, 4


class Team:
    """The hosts with what runs on each, and the store that they share."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        self._switch = hosts.Switch()
        stack.callback(self._switch.close)
        self.hosts: dict[int, hosts.Host] = {}
        table = self._plug_in(TABLE)
        place = Path(tempfile.mkdtemp(prefix="mergelens-postgresql-"))
        place.chmod(0o755)
        within = ("nsenter", "-t", table.inner, "-n")
        self.server = database_server.Server(place, within=within, address=table.address)
        stack.callback(shutil.rmtree, place)
        stack.callback(self.server.stop)
        url = stack.enter_context(self.server.database())
        self.store = Store(folder / "store", database_url=url)
        stack.callback(self.store.database.close)
        self.store.runs.list()
        paths = os.pathsep.join([str(HERE), str(HERE.parents[1])])
        self._told = {
            **os.environ,
            "PYTHONPATH": paths,
            ENV_ROOT: str(self.store.root),
            ENV_DATABASE: sa.make_url(url).set(host=table.address, query={}).render_as_string(),
            "MERGELENS_ENGINE": "apart",
            "MERGELENS_SCHEDULER": f"tls://{hosts.NETWORK}.{SERVICE}:8786",
            **hosts.certificates(folder / "certificates"),
        }
        table.start([sys.executable, str(HERE / "looking.py")], self._told)
        for number in (SERVICE, FIRST, SECOND):
            self.start(number)

    def start(self, number: int) -> None:
        """Start a host with what belongs on it."""
        host, dask = self._plug_in(number), [sys.executable, "-m", "dask"]
        scratch = ["--local-directory", str(self._folder / f"scratch-{number}")]
        if number == SERVICE:
            host.start([*dask, "scheduler", "--protocol", "tls", "--port", "8786", "--no-dashboard"], self._told)
            host.start([sys.executable, str(HERE / "run_service.py")], self._told)
            return
        options = ["--name", f"host-{number}", "--nworkers", "1", "--nthreads", "1", "--memory-limit", "0"]
        host.start(
            [*dask, "worker", self._told["MERGELENS_SCHEDULER"], *options, "--no-dashboard", *scratch], self._told
        )

    def vanish(self, number: int) -> None:
        """Have a host end without a word."""
        self.hosts.pop(number).vanish()

    def until(self, condition, what: str) -> float:
        """Wait for a condition; returns the seconds it took."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > PATIENCE:
                told = {file.name: file.read_text()[-2500:] for file in sorted(self._folder.glob("*.log"))}
                pytest.fail("\n".join([f"waited {PATIENCE} s for {what}", *map(str, told.items())]))
            time.sleep(0.1)
        return time.monotonic() - began

    def submit(self, mark: int, trace: Path):
        """Ask for six steps of some seconds each, which both workers are at for a while, and what joins them."""
        steps = [
            ["count", {"n": 25, "pause": 0.2, "again": 10 * mark + one, "trace": str(trace)}, []] for one in range(6)
        ]
        return self.store.runs.submit("run", {"steps": [*steps, ["join", {"again": mark}, list(range(6))]]})

    def workers(self) -> int:
        """Return how many workers the service sees."""
        status = self.store.lease.status()
        return status.workers if status and status.ready else 0

    def _plug_in(self, number: int) -> hosts.Host:
        self.hosts[number] = host = hosts.Host(self._switch, number, self._folder / f"host-{number}.log")
        self._stack.callback(host.close)
        return host


@pytest.fixture
def team(tmp_path):
    if reason := hosts.why_not() or database_server.why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        yield Team(stack, tmp_path)


def cut(team, number):
    team.hosts[number].cut()
    time.sleep(AWAY)
    team.hosts[number].mend()


def replaced(team, number):
    team.vanish(number)
    time.sleep(5)
    team.start(number)


def restarted(team, number):
    team.server.stop()
    time.sleep(8)
    team.server.start()


EVENTS = {
    "a worker's network is cut": (cut, FIRST),
    "a worker's host vanishes": (replaced, SECOND),
    "the server of the run table restarts": (restarted, TABLE),
    "the service's network is cut": (cut, SERVICE),
    "the service's host vanishes": (replaced, SERVICE),
}


@pytest.mark.slow
def test_hosts_that_vanish_in_mid_run_cost_nothing_but_time(team, tmp_path):
    trace, took = tmp_path / "trace", {}

    def begun():
        return len(trace.read_text().splitlines()) if trace.exists() else 0

    team.until(lambda: team.workers() == 2, "both workers")
    for mark, (name, (event, number)) in enumerate(EVENTS.items(), start=1):
        before, run = begun(), team.submit(mark, trace)
        team.until(lambda before=before: begun() >= before + 2, f"steps at work before {name}")
        event(team, number)
        took[name] = team.until(lambda run=run: not team.store.runs.get(run.id).active, f"the end of a run: {name}")
        row = team.store.runs.get(run.id)
        assert (row.state, row.error) == ("finished", ""), name
        assert (team.store.find(row.result) / "text").read_text() == "+".join(["counted"] * 6)
        team.until(lambda: team.workers() == 2, f"both workers after {name}")
    print({name: round(seconds, 1) for name, seconds in took.items()})
    assert all(team.store.find(artefact.key) for artefact in team.store.artefacts())
    assert not list((team.store.root / "damaged").glob("*"))
    told = (tmp_path / f"host-{TABLE}.log").read_text()
    assert "broken" not in told, told[-3000:]
    assert "finished', 'finished" in told
