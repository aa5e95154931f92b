"""Faults of a soak: processes are killed and suspended, disks fill, networks are cut, the database restarts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import psutil

from engine.store import Store
from engine.store.artefacts import ENV_DATABASE, ENV_ROOT
from tests.cut_wire import CutWire
from tests.database_server import Server
from tests.full_disk import fill
from tests.soak.network import Loopback

ROOT = Path(__file__).resolve().parents[2]
SUSPENDED = (3.0, 20.0)  # seconds
FULL = (3.0, 12.0)
AWAY = (1.0, 8.0)
CUT = (1.0, 45.0)  # a worker that is silent for 30 seconds is ended
LEFT = (0, 4_000_000)  # bytes that a full disk still has
SERVICE = "engine.service"


class People:
    """The processes of those who click; whoever is killed comes back."""

    def __init__(self, store: Store, journal: Path, zoo: Path, seed: int, count: int) -> None:
        self._store, self._journal, self._zoo, self._seed = store, journal, zoo, seed
        self._lives: Counter[int] = Counter()
        self._processes = {number: self._start(number) for number in range(count)}

    def look_after(self) -> None:
        """Bring back who has ended."""
        for number, process in self._processes.items():
            if process.poll() is not None:
                self._processes[number] = self._start(number)

    def kill(self, number: int) -> None:
        """Kill one of them."""
        self._processes[number % len(self._processes)].kill()

    def processes(self) -> list[psutil.Process]:
        """Return those that live."""
        return [psutil.Process(process.pid) for process in self._processes.values() if process.poll() is None]

    def close(self) -> None:
        """End them all."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        self._lives[number] += 1
        seed = f"{self._seed}:{self._lives[number]}"
        command = [sys.executable, "-m", "tests.soak.people", str(self._journal), seed, str(number), str(self._zoo)]
        told = {**os.environ, ENV_ROOT: str(self._store.root), ENV_DATABASE: self._store.database_url}
        with self._journal.with_suffix(".people").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=told, stdout=log, stderr=log)


class Pages:
    """The server of the app's pages; killed, it is started again, as systemd would."""

    def __init__(self, store: Store, log: Path) -> None:
        self._store, self._log = store, log
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._process = self._start()

    def look_after(self) -> None:
        """Bring the server back where it has ended."""
        if self._process.poll() is not None:
            self._process = self._start()

    def kill(self) -> None:
        """Kill the server."""
        self._process.kill()
        self._process.wait()

    def process(self) -> psutil.Process:
        """Return the server's process."""
        return psutil.Process(self._process.pid)

    def answer(self, patience: float = 90.0) -> str:
        """Return what is wrong with the answer of ``/readyz``, asked for until it is right; '' where nothing is."""
        until, said = time.monotonic() + patience, ""
        while time.monotonic() < until:
            self.look_after()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=10) as answer:
                    return "" if answer.status == 200 else f"status {answer.status}"
            except urllib.error.HTTPError as error:
                said = f"status {error.code}: {error.read().decode('utf-8', 'replace')[:300]}"
            except OSError as error:
                said = str(error)
            time.sleep(0.5)
        return said

    def close(self) -> None:
        """End the server."""
        self.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "app.py", "--server.port", str(self._port)]
        told = {**os.environ, ENV_ROOT: str(self._store.root), ENV_DATABASE: self._store.database_url}
        with self._log.open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=told, stdout=log, stderr=log)


def processes_of(store: Store) -> list[psutil.Process]:
    """Return the services of a store and their children, found by what their environment names."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if SERVICE in (process.info["cmdline"] or ()) and process.environ().get(ENV_ROOT) == str(store.root):
                found += [process, *process.children(recursive=True)]
    return found


def is_worker(process: psutil.Process) -> bool:
    """Return whether a process computes steps, or is the one that those are forked from."""
    with contextlib.suppress(psutil.Error):
        return "forkserver" in " ".join(process.cmdline())
    return False


def is_service(process: psutil.Process) -> bool:
    """Return whether a process is a service."""
    with contextlib.suppress(psutil.Error):
        return SERVICE in process.cmdline()
    return False


class Faults:
    """Lets one thing after another go wrong, chosen by chance."""

    def __init__(
        self,
        store: Store,
        people: People,
        pages: Pages,
        rng: Random,
        *,
        disk: bool,
        network: Loopback | None,
        server: Server | None,
        wire: CutWire | None,
    ) -> None:
        """Say what may go wrong.

        Args:
            store: whose service and workers are killed and suspended.
            people: who are killed.
            pages: whose server is killed.
            rng: decides what happens next.
            disk: it may be filled.
            network: that all processes are in, where it may be cut.
            server: of the database, which may restart.
            wire: that leads to it, which may be cut at a commit.
        """
        self._store, self._people, self._pages, self._rng = store, people, pages, rng
        self._network, self._server, self._wire = network, server, wire
        self.counts: Counter[str] = Counter()  # what happened, how often
        self._later: list[tuple[float, Callable[[], None]]] = []  # when something ends again
        self._chances = {"worker": 40, "workers": 10, "service": 14, "person": 12, "page": 6, "suspend": 8}
        possible = {"disk": (6, disk), "cut": (4, network), "restart": (8, server), "commit": (8, wire)}
        self._chances |= {name: chance for name, (chance, there) in possible.items() if there}

    @property
    def kills(self) -> int:
        """Return how many processes were killed."""
        return sum(self.counts[name] for name in ("worker", "service", "person", "page"))

    def happen(self) -> None:
        """Let something go wrong."""
        (what,) = self._rng.choices(list(self._chances), list(self._chances.values()))
        with contextlib.suppress(psutil.NoSuchProcess):
            getattr(self, f"_{what}")()

    def pass_by(self, *, now: bool = False) -> None:
        """End what is over by now, or all of it."""
        due = [entry for entry in self._later if now or time.monotonic() >= entry[0]]
        self._later = [entry for entry in self._later if entry not in due]
        for _, end in due:
            end()

    def _until(self, span: tuple[float, float], end: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + self._rng.uniform(*span), end))

    def _kill(self, process: psutil.Process, what: str) -> None:
        process.kill()
        self.counts[what] += 1

    def _worker(self) -> None:
        """Kill a worker; somebody who clicks where there is none, so that a kill is a kill."""
        if found := [process for process in processes_of(self._store) if is_worker(process)]:
            self._kill(self._rng.choice(found), "worker")
        else:
            self._person()

    def _workers(self) -> None:
        for process in filter(is_worker, processes_of(self._store)):
            self._kill(process, "worker")

    def _service(self) -> None:
        """Kill the service with its scheduler and its nannies, which are one process."""
        for process in processes_of(self._store):
            if is_service(process):
                self._kill(process, "service")

    def _person(self) -> None:
        self._people.kill(self._rng.randrange(100))
        self.counts["person"] += 1

    def _page(self) -> None:
        self._pages.kill()
        self.counts["page"] += 1

    def _suspend(self) -> None:
        if found := [one for one in processes_of(self._store) if is_worker(one) or is_service(one)]:
            process = self._rng.choice(found)
            process.suspend()
            self.counts["suspended"] += 1
            self._until(SUSPENDED, lambda: _resume(process))

    def _disk(self) -> None:
        if (self._store.root / "ballast").exists():
            return
        ballast = fill(self._store.root, self._rng.choice(LEFT))
        self.counts["disk full"] += 1
        self._until(FULL, lambda: ballast.unlink(missing_ok=True))

    def _cut(self) -> None:
        """Cut the network that the service and its workers speak over."""
        if self._network is not None and self._network.whole:
            self._network.cut()
            self.counts["network cut"] += 1
            self._until(CUT, self._network.mend)

    def _commit(self) -> None:
        """Cut the wire to the database at the next commit, which the server hears or does not."""
        if self._wire is not None and not self._wire.armed.is_set():
            self._wire.heard = self._rng.random() < 0.5
            self._wire.armed.set()
            self.counts["cut at a commit"] += 1

    def _restart(self) -> None:
        if self._server is not None and self._server.running:
            self._server.stop()
            self.counts["database away"] += 1
            self._until(AWAY, self._server.start)


def _resume(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)
