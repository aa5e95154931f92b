"""Carries cases out, with its memory, its time and what it may touch bounded. Started by the driver."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from random import Random
from typing import Any

SECONDS = 5.0  # of computation, so that a busy machine does not count
STALLED = 25.0  # of waiting, whatever for
MEMORY = 2**30  # beyond what the libraries take
FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.forkpty",
    "subprocess.Popen",
    "socket.connect",
    "pty.spawn",
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Hang(BaseException):
    """A case took too long."""


class Breach(BaseException):
    """A case did what nothing that reads a file may do."""


class Guard:
    """Sees what Python does, and stops what reading a file does not need."""

    def __init__(self, allowed: Path) -> None:
        self.allowed, self.armed = os.path.realpath(allowed), False
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event in FORBIDDEN:
            self.armed = False
            raise Breach(f"{event}{arguments!r:.200}")
        place = None
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
            place = arguments[0]
        elif event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "shutil.rmtree"):
            place = arguments[0] if len(arguments) < 2 or arguments[-1] in (-1, None) else None  # else inside a folder
        if isinstance(place, (str, bytes)) and not self._inside(os.fsdecode(place)):
            self.armed = False
            raise Breach(f"{event} outside of the case's folder: {place!r:.200}")

    def _inside(self, place: str) -> bool:
        return os.path.realpath(place).startswith((self.allowed, "/dev/null", "/proc/self")) or "__pycache__" in place


def limit_memory() -> None:
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def on_alarm(number: int, frame: Any) -> None:
    raise Hang


class Worker:
    """Templates are made once; each case works on a copy."""

    def __init__(self, place: Path) -> None:
        from tests.fuzz.targets import TARGETS, check_message

        self.targets, self.check_message = TARGETS, check_message
        self.place = place
        os.environ["MERGELENS_STORE"] = str(place / "store")
        tempfile.tempdir = str(place)
        for name, target in TARGETS.items():
            (place / "true" / name).mkdir(parents=True)
            target.prepare(place / "true" / name)
            target.read(copied(place / "true" / name, place / "unspoiled" / name, name))
        gc.freeze()  # a zoo's check collects what is let go; what libraries hold stays
        self.guard = Guard(place)
        signal.signal(signal.SIGALRM, on_alarm)
        signal.signal(signal.SIGPROF, on_alarm)
        limit_memory()

    def case(self, name: str, seed: int) -> dict[str, Any]:
        """Outcome of one case: read, refused (with the kind of error), or failed (with a reason)."""
        from engine.errors import EngineError

        target, rng = self.targets[name], Random(f"{name}:{seed}")
        folder = self.place / "case"
        shutil.rmtree(folder, ignore_errors=True)
        canary = self.place / "sung"
        shutil.copytree(self.place / "true" / name, folder, symlinks=True)
        target.spoil(folder, rng, str(canary))
        outcome: dict[str, Any] = {"outcome": "read"}
        try:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.setitimer(signal.ITIMER_REAL, STALLED)
            self.guard.armed = True
            target.read(folder)
        except EngineError as error:
            outcome = {"outcome": "refused", "kind": type(error).__name__, "message": str(error)[:300]}
            with contextlib.suppress(AssertionError):
                self.check_message(error)
                return self._checked(outcome, canary)
            outcome = {"outcome": "failed", "reason": f"an error of {len(str(error))} characters: {str(error)[:200]!r}"}
        except Hang:
            outcome = {"outcome": "failed", "reason": f"more than {SECONDS} s", "trace": traceback.format_exc()[-3000:]}
        except (Exception, Breach) as error:
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            outcome = {"outcome": "failed", "reason": reason, "trace": traceback.format_exc()[-3000:]}
        finally:
            self.guard.armed = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        return self._checked(outcome, canary)

    @staticmethod
    def _checked(outcome: dict[str, Any], canary: Path) -> dict[str, Any]:
        if canary.exists():
            canary.rmdir()
            return {"outcome": "failed", "reason": "code from the file was executed"}
        return outcome


def copied(source: Path, target: Path, name: str) -> Path:
    """An unspoiled copy, as some targets read under another name."""
    shutil.copytree(source, target, symlinks=True)
    if name == "modules":
        shutil.copyfile(target / "zip.pt", target / "read.pt")
    return target


def main() -> None:
    warnings.simplefilter("ignore")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MERGELENS_THREADS"):
        os.environ[name] = "1"
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print what they think of a file, some of them below Python
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        worker = Worker(Path(place))
        print(json.dumps({"ready": sorted(worker.targets)}), file=told, flush=True)
        for line in sys.stdin:
            name, _, seed = line.strip().rpartition(":")
            print(json.dumps({"case": line.strip(), **worker.case(name, int(seed))}), file=told, flush=True)


if __name__ == "__main__":
    main()
