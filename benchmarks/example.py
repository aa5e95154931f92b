"""Time the bundled example: from a cold store, after a change of a calibrator, and in a cold browser.

Run with ``python benchmarks/example.py`` (``make benchmark``). Starts a service and an app of its own on a temporary
store; the browser part needs Chromium and is left out where there is none.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from engine.service.client import ensure_service, service_state, stop_service  # noqa: E402
from engine.store import Store  # noqa: E402

CHROMIUM = os.environ.get("MERGELENS_CHROMIUM") or shutil.which("chromium")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
ROWS = (
    ("service: start to ready", 20.0),
    ("new recipe, two calibrators, t-SNE, cold store", 30.0),
    ("another λ, warm store", 30.0),
    ("only a calibrator changed", 6.0),
    ("the same recipe again", 2.0),
    ("first page load to finished example, cold browser", 4.0),
    ("the same right after the app has started, while the engine starts", 4.0),
)


def recipe(scaling: float, rank: int) -> dict[str, Any]:
    """Return the recipe of a data-free merge with two calibrators on the bundled zoo."""
    return {
        "zoo": "mini8",
        "merge": {"method": "task_arithmetic", "params": {"scaling": scaling}},
        "calibrators": [
            {"method": "surgery", "params": {"rank": rank}},
            {"method": "prob_surgery", "params": {"hidden": 128}},
        ],
    }


def run(store: Store, scaling: float, rank: int) -> float:
    """Submit a run as the app does and wait for its end; returns seconds."""
    started = time.perf_counter()
    row = store.runs.submit("run", {"recipe": recipe(scaling, rank), "projection": {"method": "tsne"}})
    ended = store.runs.wait(row.id, timeout=600, interval=0.02)
    if ended.state != "finished":
        raise SystemExit(f"The run ended as {ended.state}: {ended.error}")
    return time.perf_counter() - started


def measure_engine(store: Store) -> Iterator[float]:
    """Seconds of the first five rows."""
    started = time.perf_counter()
    ensure_service(store)
    while not service_state(store).ready:
        time.sleep(0.05)
    yield time.perf_counter() - started
    time.sleep(5)  # warm: workers have imported what they need
    yield run(store, 0.3, 16)
    yield run(store, 0.35, 16)
    yield run(store, 0.35, 12)
    yield run(store, 0.35, 12)


@contextmanager
def app(store: Store) -> Iterator[str]:
    """Serve the app on a free port; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "app.py", "--server.port", str(port)]
    environment = {**os.environ, "MERGELENS_STORE": str(store.root)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        while process.poll() is None:  # it has printed its address when it listens
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def first_paint(address: str) -> float:
    """Seconds from navigation to the drawn feature view of the example, in a new browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        started = time.perf_counter()
        page.goto(address)
        page.locator("canvas[data-panel]").first.wait_for(timeout=60_000)
        seconds = time.perf_counter() - started
        browser.close()
    return seconds


def first_paint_of_all(times: int = 5) -> float:
    """Median of the first paint as `make app` gives it: a new store, the engine launched just before the app."""
    found = []
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="mergelens-") as folder:
            store = Store(folder)
            try:
                ensure_service(store)
                with app(store) as address:
                    found.append(first_paint(address))
            finally:
                stop_service(store)
    return statistics.median(found)


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="mergelens-") as folder:
        store = Store(folder)
        try:
            seconds = list(measure_engine(store))
            if CHROMIUM:
                with app(store) as address:
                    seconds.append(statistics.median(first_paint(address) for _ in range(5)))
                seconds.append(first_paint_of_all())
        finally:
            stop_service(store)
    versions = f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores"
    print(f"\n{versions}\n\n| what | seconds | goal |\n|---|---|---|")
    for (what, goal), value in zip(ROWS, seconds, strict=False):
        print(f"| {what} | {value:.1f} | {goal:g} |")


if __name__ == "__main__":
    main()
