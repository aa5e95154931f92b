"""Time pages over a store of thousands of runs and zoos of a hundred experts: first loads and reruns of real sessions.

    python benchmarks/large.py                   # 5,000 runs, 100 experts, four pages
    python benchmarks/large.py --runs 500 --pages runs lab

Runs are rows of the run table with recipes of all methods, finished, failed and cancelled; those that can be opened are
the examples. The zoo is made: a hundred experts of one task each, with images, listed and opened as any other. Nothing
is computed. Beside the seconds stands what the process that serves pages spends of a processor, which a busy machine
does not change.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from engine.catalog import resolve  # noqa: E402
from engine.recipe import parse_recipe  # noqa: E402
from engine.store import Store  # noqa: E402
from tests.e2e.conftest import serve  # noqa: E402
from tests.e2e.sessions import Session  # noqa: E402
from tests.tiny_zoo import make_zoo  # noqa: E402

PAGES = ("runs", "compare", "lab", "zoo", "sweep")
LOADS, RERUNS = 5, 10
STATIC = ("weight_average", "task_arithmetic", "ties", "emr")


def fill(store: Store, zoo: Path, runs: int) -> None:
    """Put finished, failed and cancelled runs into the table."""
    store.runs.list()
    for number in range(runs):
        merge = {"method": STATIC[number % len(STATIC)]}
        recipe = resolve(parse_recipe({"zoo": str(zoo) if number % 2 else "mini8", "merge": merge}))
        request = {"recipe": recipe.model_dump(mode="json"), "projection": None}
        row = store.runs.submit("run", request, name=f"Run {number}" if number % 3 else "", owner="benchmark")
        if number % 10 == 0:
            store.runs.fail(row.id, "It was made to fail.", "MergeError")
        else:
            store.runs.finish(row.id, f"{number:064x}")


def measure(address: str, page: str, query: str, process: psutil.Process) -> tuple[list[float], list[float], float]:
    """Return seconds of first loads and of reruns, and processor seconds a rerun."""
    path, loads, reruns, used = "" if page == "lab" else page, [], [], 0.0
    for _ in range(LOADS):
        began = time.perf_counter()
        with Session(address, path, query) as session:
            loads.append(time.perf_counter() - began)
            if session.errors:
                raise SystemExit(f"The page {page} says: {session.errors[0]}")
            before = process.cpu_times()
            for _ in range(RERUNS // LOADS):
                began = time.perf_counter()
                session.rerun()
                reruns.append(time.perf_counter() - began)
            after = process.cpu_times()
            used += after.user + after.system - before.user - before.system
    return loads, reruns, used / RERUNS


def late(seconds: list[float]) -> float:
    """Return the 95th percentile."""
    return statistics.quantiles(seconds, n=20, method="inclusive")[-1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5_000)
    parser.add_argument("--experts", type=int, default=100)
    parser.add_argument("--pages", nargs="+", default=PAGES)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mergelens-") as folder:
        names = tuple(f"expert{number:03d}" for number in range(asked.experts))
        zoo = make_zoo(Path(folder) / "zoos" / "large", experts=names, images=12)
        store = Store(Path(folder) / "store", database_url=f"sqlite:///{folder}/store/runs.sqlite")
        fill(store, zoo, asked.runs)
        store.zoos.add(zoo)
        told = {**os.environ, "MERGELENS_STORE": str(store.root), "MERGELENS_ENGINE": "apart"}
        told |= {"MERGELENS_ROOTS": folder, "MERGELENS_DATABASE_URL": ""}
        print(
            f"{asked.runs:,} runs, a zoo of {asked.experts} experts, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}, load {os.getloadavg()[0]:.1f}\n\n"
            "| page | first load, p50 / p95 (s) | rerun, p50 / p95 (s) | processor a rerun (s) |\n|---|---|---|---|"
        )
        with serve("app.py", told, alone=True) as address:
            [process] = [one for one in psutil.Process().children() if "app.py" in " ".join(one.cmdline())]
            for page in asked.pages:
                loads, reruns, used = measure(address, page, f"zoo={zoo}" if page == "zoo" else "", process)
                cells = [f"{statistics.median(part):.2f} / {late(part):.2f}" for part in (loads, reruns)]
                print(f"| {page} | {' | '.join(cells)} | {used:.3f} |", flush=True)


if __name__ == "__main__":
    main()
