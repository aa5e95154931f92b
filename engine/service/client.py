"""The service for pages and the command line: start it, see it, end it. Free of dask and torch."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ..errors import EngineError
from ..store import Store
from ..store.artefacts import ENV_DATABASE, ENV_ROOT
from ..store.owners import is_neighbour, start_of
from ..version import code_version
from .devices import Device, read_devices

PACKAGE = __name__.split(".", maxsplit=1)[0]
START_TIMEOUT = 20.0  # seconds after which a start that is not heard of counts as failed
STARTING = Path("logs") / "service.starting"  # there from the launch until the service is ready
PAGE_INTERVAL = 20.0  # seconds between two heartbeats of the pages
STOP_TIMEOUT = 15.0
ENV_ENGINE, APART = "MERGELENS_ENGINE", "apart"  # the engine is a unit or a container of its own
CALM = 6.0  # seconds that the workers of a new service leave to the page it was started for
MAX_LOG = 5_000_000  # bytes
BEGAN = time.time()  # about when this process did
ABSENT = "The engine is not running. It is a service of its own here: who runs this app starts it."
OTHER = "The engine of another version of the app serves this store, and is used. Restart this app to use its own."

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServiceState:
    """The state of the engine, in words for people."""

    state: Literal["ready", "starting", "outdated", "failed", "absent"]
    message: str
    devices: tuple[Device, ...] = ()
    workers: int = 0
    busy: int = 0

    @property
    def ready(self) -> bool:
        """Return whether runs are taken up at once. Runs may be submitted in any state."""
        return self.state in ("ready", "outdated")

    def __str__(self) -> str:
        return self.message


def service_state(store: Store) -> ServiceState:
    """Return the state of the service, without doing anything about it."""
    status = store.lease.status()
    if status is None or not status.alive:
        return ServiceState("absent", "The engine is not running.")
    if status.state != "ready":
        return ServiceState("starting", "The engine is starting." if status.state == "starting" else "It is stopping.")
    devices = read_devices(status.devices)
    facts = (devices, status.workers, status.busy)
    if status.version != code_version():
        return ServiceState("outdated", "The engine runs other code; it is replaced when it is idle.", *facts)
    accelerators = sum(device.accelerator for device in devices)
    extra = f", {accelerators} accelerator{'s' * (accelerators != 1)}" if accelerators else ""
    return ServiceState("ready", f"The engine is ready: {status.workers} workers{extra}.", *facts)


def is_apart() -> bool:
    """Return whether the engine is started and ended by somebody else (a unit, a container), and never by pages.

    Raises:
        EngineError: MERGELENS_ENGINE says something else.
    """
    found = os.environ.get(ENV_ENGINE, "").strip()
    if found not in ("", APART):
        raise EngineError(f"{ENV_ENGINE} is '{found}'; write '{APART}', or leave it out and pages start the engine.")
    return found == APART


def ensure_service(store: Store, *, page: bool = True) -> ServiceState:
    """Start the service in the background unless it runs; for pages, at every script run (a millisecond or two).

    It also is the pages' heartbeat, which keeps the service from going to sleep, unless ``page`` is off: a command that
    waits for its own run is nobody for whom a worker is kept free. An idle service of other code is replaced only if it
    began before this process did, so that two apps of different code on one store come to use one engine; the one whose
    code it is not says so once.
    """
    if store.read_only:
        return ServiceState("absent", "This store can only be read, so no engine runs; finished runs can be looked at.")
    if page and time.time() - store.lease.last_page() > PAGE_INTERVAL:
        store.lease.page_seen()
    found = service_state(store)
    if is_apart():
        return ServiceState("absent", ABSENT) if found.state == "absent" else found
    if found.state == "outdated" and not found.busy:
        status = store.lease.status()
        if status is None or status.started >= BEGAN:
            _say_once(str(store.root), status.version if status else "")
            return ServiceState("outdated", OTHER, found.devices, found.workers, found.busy)
        store.lease.request_stop(status.owner)
        return ServiceState("starting", "The engine is being replaced by one of the present version.")
    if found.state != "absent":
        return found
    return _start(store)


def stop_service(store: Store, timeout: float = STOP_TIMEOUT) -> str:
    """End the service; its runs go back to the queue.

    Returns:
        A sentence that says what happened.
    """
    status = store.lease.status()
    if status is None or not status.alive:
        return "No service is running."
    store.lease.request_stop(status.owner)
    deadline = time.monotonic() + timeout
    while _is_there(store, status.owner) and time.monotonic() < deadline:
        time.sleep(0.1)
    if _is_there(store, status.owner) and is_neighbour(status.owner):
        os.kill(status.pid, signal.SIGKILL)
        return f"The service (process {status.pid}) did not answer and was killed."
    return f"The service (process {status.pid}) has ended."


def start_command() -> list[str]:
    """Return the command line that serves a store."""
    return [sys.executable, "-m", f"{PACKAGE}.service", "--calm", str(CALM)]


@lru_cache(maxsize=32)
def _say_once(root: str, version: str) -> None:
    logger.warning("%s (store %s, engine %s, this app %s)", OTHER, root, version, code_version())


def _start(store: Store) -> ServiceState:
    logs = store.folder("logs")
    marker = store.root / STARTING
    earlier = _earlier_start(marker)
    if earlier is not None:
        age, alive = earlier
        if age < START_TIMEOUT:
            if alive:
                return ServiceState("starting", "The engine is starting.")
            return ServiceState("failed", f"The engine ended while it started. {_last_line(logs / 'service.log')}")
        marker.unlink(missing_ok=True)
    try:
        with marker.open("x") as file:
            process = _launch(store, logs / "service.log")
            file.write(f"{process.pid} {time.time()}")
    except FileExistsError:
        pass  # another page was faster
    return ServiceState("starting", "The engine is starting.")


def _launch(store: Store, log: Path) -> subprocess.Popen[bytes]:
    """Start the service as a process that outlives this one."""
    if log.is_file() and log.stat().st_size > MAX_LOG:
        log.replace(log.with_suffix(".1.log"))
    home = str(Path(__file__).resolve().parents[2])
    paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, ENV_ROOT: str(store.root), ENV_DATABASE: store.database_url}
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    with log.open("ab") as output:
        return subprocess.Popen(
            start_command(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _earlier_start(marker: Path) -> tuple[float, bool] | None:
    """Age of the last start and whether its process lives; None when there was none."""
    try:
        text = marker.read_text()
        age = time.time() - marker.stat().st_mtime
    except FileNotFoundError:
        return None
    number = text.split()[0] if text else ""
    if not number:
        return age, True  # being written
    return age, start_of(int(number)) != "gone"


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return f"Last line of its log: {lines[-1][:300]}" if lines else ""


def _is_there(store: Store, owner: str) -> bool:
    status = store.lease.status()
    return status is not None and status.owner == owner and status.alive
