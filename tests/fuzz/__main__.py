"""Hands cases to workers and says what came of them.

python -m tests.fuzz --cases 10000           # every kind of input in turn
python -m tests.fuzz --case manifest:17      # one case again, with its trace
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import queue
import subprocess
import sys
import threading
import time
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("tests.fuzz.worker", "tests.fuzz.visitor")  # that read files, and that visit the app
PATIENCE = 60.0  # seconds after which a worker that says nothing is stuck below Python
START = 300.0
FAREWELL = 10.0


class Worker:
    """A worker process; a new one takes its place when it dies."""

    def __init__(self, program: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", program],
            cwd=ROOT,
            env=environment,
            text=True,
            encoding="utf-8",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    @cached_property
    def targets(self) -> list[str]:
        """Return what kinds of input it knows, once it is ready."""
        return self._next(START)["ready"]

    def ask(self, case: str) -> dict[str, Any]:
        """The outcome of a case."""
        assert self.targets
        assert self.process.stdin is not None
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        return self._next(PATIENCE)

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(FAREWELL)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            self.lines.put(line)
        self.lines.put("")

    def _next(self, seconds: float) -> dict[str, Any]:
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            raise ProcessLookupError(f"stuck for {seconds:.0f} s below Python") from None
        if not line:
            raise ProcessLookupError(f"the process died with {self.process.wait()}")
        return json.loads(line)


class Fuzzer:
    """Asks a worker for one outcome after another, and starts another worker when one dies."""

    def __init__(self, say: Any = print) -> None:
        self.say, self.workers = say, {program: Worker(program) for program in PROGRAMS}
        self.kinds = {kind: program for program, worker in self.workers.items() for kind in worker.targets}

    def outcome(self, case: str) -> dict[str, Any]:
        """Return what came of a case; a worker's death is a failure of the case."""
        program = self.kinds[case.rpartition(":")[0]]
        try:
            return self.workers[program].ask(case)
        except (ProcessLookupError, BrokenPipeError) as error:
            self.workers[program].stop()
            self.workers[program] = Worker(program)
            return {"case": case, "outcome": "failed", "reason": str(error)}

    def stop(self) -> None:
        """End the workers."""
        for worker in self.workers.values():
            worker.stop()

    def run(self, cases: list[str]) -> dict[str, Any]:
        """Carry cases out, telling failures at once and progress now and then."""
        began = told = time.monotonic()
        counts: collections.Counter[str] = collections.Counter()
        failures = []
        for number, case in enumerate(cases, start=1):
            found = self.outcome(case)
            counts[f"{case.rpartition(':')[0]} {found['outcome']}"] += 1
            if found["outcome"] == "failed":
                failures.append(found)
                self.say(f"FAILED {case}: {found['reason']}\n  again: python -m tests.fuzz --case {case}")
            if time.monotonic() - told > 10:
                told = time.monotonic()
                self.say(f"{number:,} of {len(cases):,} cases, {len(failures)} failed, {told - began:.0f} s")
        return {"cases": len(cases), "seconds": time.monotonic() - began, "counts": counts, "failures": failures}

    def cases(self, count: int, seed: int = 0, only: list[str] | None = None) -> list[str]:
        """Names of cases that go through all kinds of input in turn."""
        kinds = only or list(self.kinds)
        return [f"{kinds[number % len(kinds)]}:{seed + number // len(kinds)}" for number in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case of each kind")
    parser.add_argument("--only", action="append", help="one kind of input; again for more")
    parser.add_argument("--case", help="one case again, such as manifest:17, with its trace")
    given = parser.parse_args()
    fuzzer = Fuzzer(lambda text: print(text, flush=True))
    if given.case:
        last = fuzzer.outcome(given.case)
        print(last.get("trace") or json.dumps(last, indent=1, ensure_ascii=False))
        return last["outcome"] == "failed"
    found = fuzzer.run(fuzzer.cases(given.cases, given.seed, given.only))
    fuzzer.stop()
    for name in sorted({key.split()[0] for key in found["counts"]}):
        parts = {outcome: found["counts"][f"{name} {outcome}"] for outcome in ("refused", "read", "failed")}
        print(f"{name:<14}" + "".join(f"{count:>7} {outcome}" for outcome, count in parts.items()))
    print(f"{found['cases']:,} cases, {len(found['failures'])} failed, {found['seconds']:.0f} s")
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
