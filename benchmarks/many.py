"""Time many people at once: first loads and reruns of real sessions while the engine computes, and memory.

    python benchmarks/many.py                    # 20 people for a minute; about three minutes on two free cores
    python benchmarks/many.py --people 60

A person is a session over a real WebSocket that takes in all that the page sends, as the browser's front end does. All
arrive at once; each then acts, thinks for two to six seconds, and acts again: a rerun of the page, as any control asks
for it, or another page. People and app share the machine's cores, so what the people's side spends is in the numbers.
One more person uses a real browser, where there is Chromium, and moves a slider. Two runs that train calibrators keep
the engine at work.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.interface import open_page, reruns  # noqa: E402
from engine.service.client import ensure_service, service_state  # noqa: E402
from engine.store import Store  # noqa: E402
from tests.e2e.conftest import CHROMIUM, Watch, open_browser, serve_app  # noqa: E402
from tests.e2e.sessions import Session  # noqa: E402

PAGES = ("accuracy", "representations", "salience", "weights", "runs", "")
THINKING = (2.0, 6.0)  # seconds between two acts
SWITCHES = 0.25  # share of acts that go to another page
READY = 120.0  # seconds for the engine to start


@dataclass
class Crowd:
    """Measurements of all people, in seconds, and errors that they met; each list is only appended to."""

    loads: list[float] = field(default_factory=list)
    reruns: list[float] = field(default_factory=list)
    switches: list[float] = field(default_factory=list)
    browser: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def main() -> int:
    """Print the table; returns 1 when anybody met an error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mergelens-") as folder:
        store = Store(Path(folder))
        with serve_app(store.root, alone=True) as address, at_work(store):
            crowd, memory = measure(address, asked.people, asked.seconds, asked.seed)
    print(table(crowd, memory, asked.people, asked.seconds))
    print(*crowd.failed, sep="\n", file=sys.stderr)
    return 1 if crowd.failed else 0


@contextmanager
def at_work(store: Store) -> Iterator[None]:
    """Keep two runs at work that would take an hour, and cancel them."""
    ensure_service(store)
    deadline = time.monotonic() + READY
    while not service_state(store).ready:
        if time.monotonic() > deadline:
            raise SystemExit(f"The engine was not ready after {READY:.0f} s.")
        time.sleep(0.1)
    long = [{"method": "prob_surgery", "params": {"hidden": 64, "steps": 100_000}}]
    merges = [{"method": "task_arithmetic", "params": {"scaling": scaling}} for scaling in (0.31, 0.32)]
    rows = [
        store.runs.submit("run", {"recipe": {"zoo": "mini8", "merge": merge, "calibrators": long}, "projection": None})
        for merge in merges
    ]
    while any(store.runs.get(row.id).state == "queued" for row in rows):
        time.sleep(0.2)
    try:
        yield
        ended = [state for row in rows if (state := store.runs.get(row.id).state) != "running"]
        if ended:
            raise SystemExit(f"A run that was to keep the engine at work was {ended[0]} too early.")
    finally:
        for row in rows:
            store.runs.request_cancel(row.id)


def measure(address: str, people: int, seconds: float, seed: int) -> tuple[Crowd, list[float]]:
    """Let people in at once; returns what they measured, and megabytes before, at two thirds and at the end."""
    crowd, together, end = Crowd(), threading.Barrier(people + 1), threading.Event()
    sessions = [
        threading.Thread(target=visit, args=(address, crowd, together, end, random.Random(f"{seed}-{number}")))
        for number in range(people)
    ]
    for session in sessions:
        session.start()
    memory = [page_memory()]
    together.wait()
    until = time.monotonic() + seconds
    if Path(CHROMIUM).exists():
        with open_browser() as browser:
            page = open_page(browser, address, Watch())
            page.goto(f"{address}/salience")
            while time.monotonic() < until - seconds / 3:
                crowd.browser += list(reruns(page, 2))
            page.goto("about:blank")  # before the server ends
            page.context.close()
    time.sleep(max(0.0, until - seconds / 3 - time.monotonic()))
    memory.append(page_memory())
    time.sleep(max(0.0, until - time.monotonic()))
    memory.append(page_memory())
    end.set()
    for session in sessions:
        session.join()
    return crowd, memory


def visit(address: str, crowd: Crowd, together: threading.Barrier, end: threading.Event, chance: random.Random) -> None:
    """Arrive, act and think until the end."""
    together.wait()
    try:
        began = time.perf_counter()
        with Session(address) as session:
            crowd.loads.append(time.perf_counter() - began)
            while not end.wait(chance.uniform(*THINKING)):
                switch = chance.random() < SWITCHES
                page, began = chance.choice(PAGES), time.perf_counter()
                if switch:
                    session.go(page)
                else:
                    session.rerun()
                (crowd.switches if switch else crowd.reruns).append(time.perf_counter() - began)
                crowd.failed += session.errors
    except Exception as error:  # whatever goes wrong for a person is what is looked for
        crowd.failed.append(f"{type(error).__name__}: {error}")


def page_memory() -> float:
    """Return resident megabytes of the process that serves pages."""
    serving = [one for one in psutil.Process().children() if "app.py" in " ".join(one.cmdline())]
    return sum(one.memory_info().rss for one in serving) / 2**20


def table(crowd: Crowd, memory: list[float], people: int, seconds: float) -> str:
    """Return all of it as Markdown."""
    lines = [
        f"{people} people for {seconds:.0f} s, {os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}; load of the machine at the end {os.getloadavg()[0]:.1f}",
        "",
        "| what | median | p95 | worst | of | goal at 20 |",
        "|---|---|---|---|---|---|",
    ]
    rows = (
        ("first load, all at once", crowd.loads, "p95 ≤ 4"),
        ("rerun", crowd.reruns, "p95 ≤ 1"),
        ("another page", crowd.switches, "–"),
        ("slider of the real browser, to its caption", crowd.browser, "–"),
    )
    for what, found, goal in rows:
        if len(found) > 1:
            late = statistics.quantiles(found, n=20, method="inclusive")[-1]
            middle, worst = statistics.median(found), max(found)
            lines.append(f"| {what} (s) | {middle:.2f} | {late:.2f} | {worst:.2f} | {len(found)} | {goal} |")
    lines.append(
        f"\nMemory of the page process: {', '.join(f'{value:,.0f}' for value in memory)} MB (before, 2/3, end)."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
