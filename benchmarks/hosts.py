"""Time a sweep on one worker's host and on two: hosts made of network namespaces, of one core each, joined by TLS.

    python benchmarks/hosts.py                   # 40 runs, three pairs; needs Linux, root, PostgreSQL, two free cores
    python benchmarks/hosts.py --runs 10 --pairs 1

One host holds the run table (PostgreSQL), one the scheduler and the engine, and one or two hold a worker that is bound
to a core of its own. All of them share this machine's cores: what table, scheduler and engine spend is taken from a
worker where there are no more cores than workers. Stores are new, so that nothing is found that was computed before.
The order of a pair alternates.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import sqlalchemy as sa

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "service")]

import hosts  # noqa: E402

from engine.store import Store  # noqa: E402
from engine.store.artefacts import ENV_DATABASE, ENV_ROOT  # noqa: E402
from tests import database_server  # noqa: E402

TABLE, ENGINE, FIRST = 1, 2, 3
READY = 240.0  # seconds for the workers to be seen
GOAL = 0.6
EXPERTS = ("digits", "signs")
RECIPE = {"zoo": "mini8", "experts": list(EXPERTS), "probe": {"samples_per_task": 200}}


@dataclass(frozen=True)
class Measured:
    """One sweep: seconds from its request to its end, and processor seconds of all that took part."""

    seconds: float
    workers: float
    others: float
    load: float  # of the machine when it began


def measure(count: int, runs: int) -> Measured:
    """Time a sweep on so many worker hosts, with a table and a store of its own."""
    if reason := hosts.why_not() or database_server.why_not():
        raise SystemExit(reason)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mergelens-")))
        switch = hosts.Switch()
        stack.callback(switch.close)
        team = {}
        for number in (TABLE, ENGINE, *range(FIRST, FIRST + count)):
            team[number] = hosts.Host(switch, number, folder / f"host-{number}.log")
            stack.callback(team[number].close)
        place = Path(tempfile.mkdtemp(prefix="mergelens-postgresql-"))
        place.chmod(0o755)
        stack.callback(shutil.rmtree, place)
        server = database_server.Server(
            place, within=("nsenter", "-t", team[TABLE].inner, "-n"), address=team[TABLE].address
        )
        stack.callback(server.stop)
        url = stack.enter_context(server.database())
        store = Store(folder / "store", database_url=url)
        stack.callback(store.database.close)
        store.runs.list()
        told = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            ENV_ROOT: str(store.root),
            ENV_DATABASE: sa.make_url(url).set(host=team[TABLE].address, query={}).render_as_string(),
            "MERGELENS_ENGINE": "apart",
            "MERGELENS_SCHEDULER": f"tls://{team[ENGINE].address}:8786",
            **hosts.certificates(folder / "certificates"),
        }
        dask = [sys.executable, "-m", "dask"]
        team[ENGINE].start([*dask, "scheduler", "--protocol", "tls", "--port", "8786", "--no-dashboard"], told)
        team[ENGINE].start([sys.executable, "-m", "engine.service"], told)
        cores = sorted(os.sched_getaffinity(0))
        for number in range(count):
            bound = ["taskset", "--cpu-list", str(cores[number % len(cores)])]
            options = ["--name", f"host-{number}", "--nworkers", "1", "--nthreads", "1", "--memory-limit", "0"]
            scratch = ["--no-dashboard", "--local-directory", str(folder / f"scratch-{number}")]
            command = [*bound, *dask, "worker", told["MERGELENS_SCHEDULER"], *options, *scratch]
            team[FIRST + number].start(command, told)
        _until(store, folder, count)
        _sweep(store, 1, "task_arithmetic", 0.9)  # workers have loaded what steps need
        before, load = spent(team), os.getloadavg()[0]
        seconds = _sweep(store, runs, "task_arithmetic", 0.1)
        used = {number: after - before[number] for number, after in spent(team).items()}
    workers = sum(value for number, value in used.items() if number >= FIRST)
    return Measured(seconds, workers, sum(used.values()) - workers, load)


def _until(store: Store, folder: Path, count: int) -> None:
    deadline = time.monotonic() + READY
    while not ((status := store.lease.status()) and status.ready and status.workers == count):
        if time.monotonic() > deadline:
            logs = {file.name: file.read_text()[-1500:] for file in sorted(folder.glob("*.log"))}
            raise SystemExit("\n".join(f"{name}: {text}" for name, text in logs.items()))
        time.sleep(0.1)


def _sweep(store: Store, runs: int, method: str, start: float) -> float:
    """Sweep a merge's scaling; returns the seconds until all of its runs have ended."""
    values = [round(start + 0.01 * number, 4) for number in range(max(2, runs))]
    recipe = {**RECIPE, "merge": {"method": method}}
    request = {"recipe": recipe, "settings": [{"place": "merge.params.scaling", "values": values}]}
    began = time.perf_counter()
    row = store.runs.wait(store.runs.submit("sweep", request).id, timeout=3600, interval=0.05)
    if row.state != "finished":
        raise SystemExit(f"The sweep ended as {row.state}: {row.error}")
    return time.perf_counter() - began


def spent(team: dict[int, hosts.Host]) -> dict[int, float]:
    """Return the processor seconds of everything that runs in each host, by number."""
    found = dict.fromkeys(team, 0.0)
    spaces = {Path(f"/proc/{host.inner}/ns/net").readlink(): number for number, host in team.items()}
    for process in psutil.process_iter():
        try:
            number = spaces.get(Path(f"/proc/{process.pid}/ns/net").readlink())
            if number is not None:
                times = process.cpu_times()
                found[number] += times.user + times.system
        except (OSError, psutil.Error):
            continue
    return found


def pairs(runs: int, count: int) -> Iterator[tuple[Measured, Measured]]:
    """Yield what one host and two took, alternating who begins."""
    for number in range(count):
        found = {hosts_: measure(hosts_, runs) for hosts_ in ((1, 2) if number % 2 == 0 else (2, 1))}
        yield found[1], found[2]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=3)
    asked = parser.parse_args()
    print(f"A sweep of {asked.runs} runs, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print(
        "| one host (s) | two hosts (s) | ratio | goal | worker CPU, one / two (s) | other CPU, one / two (s) | load |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    ratios = []
    for one, two in pairs(asked.runs, asked.pairs):
        ratios.append(two.seconds / one.seconds)
        cells = (f"{one.seconds:.1f}", f"{two.seconds:.1f}", f"{ratios[-1]:.2f}", f"{GOAL:g}")
        spent_ = (f"{one.workers:.1f} / {two.workers:.1f}", f"{one.others:.1f} / {two.others:.1f}")
        print("|", " | ".join([*cells, *spent_, f"{one.load:.1f}, {two.load:.1f}"]), "|", flush=True)
    print(f"\nMedian ratio {statistics.median(ratios):.2f}; goal {GOAL:g}.")


if __name__ == "__main__":
    main()
