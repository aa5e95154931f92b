"""Visits the app with what no browser would send; the app's memory is bounded by the operating system."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from random import Random
from typing import Any

from tests.e2e.conftest import free_port
from tests.e2e.sessions import Session
from tests.fuzz.visits import PAGES, VISITS
from tests.fuzz.worker import MEMORY

ROOT = Path(__file__).resolve().parents[2]
ANSWERED = 25.0  # seconds that the app has for an answer
READY = 120.0


class Impatient(Session):
    """A visit that does not wait long."""

    patience = ANSWERED


class App:
    """The app with an empty store and the examples; its log tells what went wrong."""

    def __init__(self, folder: Path) -> None:
        self.log, self._port = folder / "app.log", free_port()
        self.address = f"http://127.0.0.1:{self._port}"
        environment = {**os.environ, "MERGELENS_STORE": str(folder / "store"), "MERGELENS_ENGINE": "apart"}
        environment["STREAMLIT_LOGGER_ENABLE_RICH"] = "false"  # plain traces
        environment["MALLOC_ARENA_MAX"] = "2"  # each thread's own arena takes 64 MB of addresses, which are bounded
        command = [sys.executable, "app.py", "--server.port", str(self._port)]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        until = time.monotonic() + READY
        while not self.lives():
            if time.monotonic() > until:
                raise SystemExit(self.log.read_text())
            time.sleep(0.2)
        for page in PAGES:  # with all libraries that pages load
            Session(self.address, page).__enter__().__exit__()
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[0])
        limit = (pages * resource.getpagesize() + MEMORY, resource.RLIM_INFINITY)
        resource.prlimit(self.process.pid, resource.RLIMIT_AS, limit)
        self._read = 0
        self.news()

    def lives(self) -> bool:
        """Return whether the app answers."""
        try:
            with urllib.request.urlopen(f"{self.address}/_stcore/health", timeout=5) as answer:
                return answer.status == 200 and self.process.poll() is None
        except OSError:
            return False

    def news(self) -> str:
        """Return what the log says since it was asked last."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        self._read += len(text)
        return text.decode("utf-8", "replace")

    def close(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Visitor:
    """Carries cases out, each with visits of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._apps = folder, 0
        self.app = self._new_app()

    def case(self, name: str, seed: int) -> dict[str, Any]:
        """Outcome of one case: the page was read, it refused with a sentence, or something failed."""
        try:
            outcome, reason = VISITS[name](self.visit, Random(f"{name}:{seed}"))
        except Exception as error:
            outcome, reason = "failed", f"{type(error).__name__}: {str(error)[:200]}"
        told = self.app.news()
        if not self.app.lives():
            outcome, reason = "failed", f"the app died with {self.app.process.poll()}: {reason}"
            self.app.close()
            self.app = self._new_app()
        if outcome == "failed":
            return {"outcome": outcome, "reason": reason, "trace": f"{reason}\n{told[-6000:]}"}
        return {"outcome": outcome, "message": reason}

    def visit(self, page: str, query: str = "") -> Session:
        """Return a new visit of a page."""
        return Impatient(self.app.address, "" if page == "lab" else page, query)

    def _new_app(self) -> App:
        self._apps += 1
        place = self._folder / f"app-{self._apps}"
        place.mkdir()
        return App(place)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        visitor = Visitor(Path(place))
        try:
            print(json.dumps({"ready": sorted(VISITS)}), flush=True)
            for line in sys.stdin:
                name, _, seed = line.strip().rpartition(":")
                print(json.dumps({"case": line.strip(), **visitor.case(name, int(seed))}), flush=True)
        finally:
            visitor.app.close()


if __name__ == "__main__":
    main()
