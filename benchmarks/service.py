"""The price of a step: how long the engine takes over steps that do nothing, and how their inputs and sharing add up.

Run with ``python benchmarks/service.py``. Starts services of its own on temporary stores, with 2 and with 8 workers.
Times are from the row in the run table to its end, so they hold planning, scheduling, claims, checksums and the writing
of an artefact for every step.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from engine.pipeline.graph import Plan  # noqa: E402
from engine.pipeline.steps import A, Inputs, StepParams, step  # noqa: E402
from engine.pipeline.tools import StepTools  # noqa: E402
from engine.store import Store  # noqa: E402

WORKERS = (2, 8)
STEPS = 2_000
RUNS, STEPS_OF_A_RUN = 50, 20
GOAL = 10.0  # milliseconds a step


class Name(StepParams):
    """Parameters that tell steps apart."""

    run: str
    number: int


@dataclass(frozen=True)
class Everything(Inputs[A]):
    """All that a step reads."""

    steps: tuple[A, ...] = ()


@step("nothing", label="Doing nothing", params=Name, inputs=Everything)
def nothing(inputs: Everything[Path], params: Name, output: Path, tools: StepTools) -> None:
    """Leave an empty artefact."""


def plan(kind: str, request: Mapping[str, Any], store: Store) -> Plan:
    """Plan as many steps as are asked for, the last of which reads all others."""
    names = [Name(run="shared", number=number) for number in range(request["shared"])]
    names += [Name(run=request["name"], number=number) for number in range(1, request["own"])]
    steps = [nothing.plan(name) for name in names]
    last = nothing.plan(Name(run=request["name"], number=0), Everything(tuple(step.key for step in steps)))
    return Plan((*steps, last), last.key)


@contextmanager
def served(workers: int) -> Iterator[tuple[Store, psutil.Process]]:
    """Start a service with so many workers on a new store; gives the store and the process."""
    with tempfile.TemporaryDirectory(prefix="mergelens-") as folder:
        store = Store(folder)
        environment = {**os.environ, "MERGELENS_STORE": folder, "PYTHONPATH": str(ROOT)}
        environment.pop("MERGELENS_SCHEDULER", None)
        log = Path(folder, "service.log")
        with log.open("wb") as output:
            command = [sys.executable, __file__, str(workers)]
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            while not ((status := store.lease.status()) and status.ready and status.workers == workers):
                if process.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.05)
            yield store, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(30)


def used(service: psutil.Process) -> float:
    """Return the processor seconds that a service and its workers have used."""
    times = [process.cpu_times() for process in (service, *service.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def timed(store: Store, service: psutil.Process, submit: Callable[[], list[str]]) -> tuple[float, float]:
    """Return wall and processor seconds from before the rows are submitted until all have finished."""
    spent, started = used(service), time.perf_counter()
    for run in submit():
        row = store.runs.wait(run, timeout=600, interval=0.02)
        if row.state != "finished":
            raise SystemExit(f"A run ended as {row.state}: {row.error}")
    return time.perf_counter() - started, used(service) - spent


def measure(workers: int) -> Iterator[tuple[str, int, float, float]]:
    """Yield what was done, how many steps that were, and wall and processor seconds."""
    with served(workers) as (store, service):

        def submit(name: str, own: int, shared: int) -> str:
            return store.runs.submit("run", {"name": name, "own": own, "shared": shared}).id

        timed(store, service, lambda: [submit("first", 20, 0)])
        yield (
            f"one run of {STEPS:,} steps, {workers} workers",
            STEPS,
            *timed(store, service, lambda: [submit("one", STEPS, 0)]),
        )
        half = STEPS_OF_A_RUN // 2
        yield (
            f"{RUNS} runs of {STEPS_OF_A_RUN} steps that share half of them, {workers} workers",
            half + RUNS * half,
            *timed(store, service, lambda: [submit(f"run {number}", half, half) for number in range(RUNS)]),
        )


def main() -> None:
    """Print the table."""
    rows = [row for workers in WORKERS for row in measure(workers)]
    print(f"\nPython {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores\n")
    print("| what | steps computed | seconds | ms a step | goal | processor ms a step |\n|---|---|---|---|---|---|")
    for what, steps, seconds, spent in rows:
        a_step = f"{1000 * seconds / steps:.1f} | {GOAL:g} | {1000 * spent / steps:.1f}"
        print(f"| {what} | {steps:,} | {seconds:.1f} | {a_step} |")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        from benchmarks import service
        from engine.service import cluster
        from engine.service.main import serve

        cluster.CPU_COUNT = cluster.MAX_WORKERS = int(sys.argv[1])
        sys.exit(serve(Store(), planner=service.plan))
