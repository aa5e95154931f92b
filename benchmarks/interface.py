"""Time the app's interface: first paint, page switch, rerun, brush, preview, film, memory over 200 interactions.

    python benchmarks/interface.py           # the table; about four minutes on two free cores
    python benchmarks/interface.py --quick   # few repetitions, to see that everything works

Headless Chromium with software drawing on the same machine as the app. A brush step is from the pointer's event to the
end of drawing in all panels, as the feature view itself takes it; a scrub step is the work between two frames of the
screen. Made points come from ``tests/e2e/scatter_app.py``.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from engine.pipeline.views.film import FILM  # noqa: E402
from engine.recipe import parse_recipe  # noqa: E402
from engine.store import Store  # noqa: E402
from tests.e2e.conftest import Watch, open_browser, serve, serve_app, settle  # noqa: E402

SWITCHES = {
    "Accuracy": "Accuracy, task by task",
    "Salience": "Which layers matter",
    "Runs": "Runs",
    "Representations": "Where merging moves",
}  # link and the beginning of its page's title
LATER = 60_000  # ms
PAINTED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
CHARTED = "() => [...document.querySelectorAll('.js-plotly-plot')].some((plot) => plot.querySelector('.main-svg'))"


@dataclass(frozen=True)
class Effort:
    """Numbers of repetitions."""

    paints: int = 5
    switches: int = 12
    reruns: int = 30
    steps: int = 40
    brushes: int = 6
    interactions: int = 200
    previews: int = 10


QUICK = Effort(2, 4, 4, 8, 2, 20, 3)
Row = tuple[str, list[float], str, str]  # what, measurements, unit, goal


def main() -> int:
    """Print the table; returns 1 when a page reported an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    effort = QUICK if parser.parse_args().quick else Effort()
    watch, rows = Watch(), []
    with open_browser() as browser:
        chromium = browser.version
        for row in measure(browser, effort, watch):
            print(f"{row[0]}: {statistics.median(row[1]):.3g} {row[2]}", file=sys.stderr, flush=True)
            rows.append(row)
    print(table(rows, chromium))
    print(*watch.problems, sep="\n", file=sys.stderr)
    return 1 if watch.problems else 0


def measure(browser: Any, effort: Effort, watch: Watch) -> Iterator[Row]:
    """All rows."""
    with tempfile.TemporaryDirectory(prefix="mergelens-") as folder, serve_app(Path(folder), alone=True) as address:
        paints = [first_paint(browser, address, watch) for _ in range(effort.paints)]
        yield "first paint of the finished example, new browser", paints, "s", "≤ 4"
        page = open_page(browser, address, watch)
        yield "page switch, to the new page's title", list(switches(page, effort.switches)), "s", "≤ 0.5"
        page.goto(f"{address}/salience")
        yield "widget rerun, η slider to its mask's caption", list(reruns(page, effort.reruns)), "s", "≤ 0.3"
        page.goto(f"{address}/representations")
        grids, steps = brushes(page, effort, to_images)
        yield "brush step, 3 × 256 points of the example", steps, "ms", "≤ 150"
        yield "brush end to image grid", grids, "s", "≤ 0.5"
        page.goto(address)
        yield "scrub step, film of 3 × 384 points of the example", list(scrubs(page, effort.steps)), "ms", "≤ 16"
        yield "preview, key on λ to its numbers and points", list(previews(page, effort.previews)), "s", "≤ 1"
        seconds, megabytes = film(Store(folder))
        yield "film over λ by the engine, 21 frames × 32 images of 14 tasks, Surgery", [seconds], "s", "≤ 12"
        yield "size of that film", [megabytes], "MB", "≤ 2"
        yield "memory of app and engine gained in interactions", [growth(page, effort.interactions)], "MB", "flat"
        page.goto("about:blank")  # before the server ends
        page.close()
    with serve("tests/e2e/scatter_app.py", {**os.environ, "PYTHONPATH": str(ROOT)}) as address:
        page = open_page(browser, f"{address}/?n=8000&film=1", watch)
        yield "scrub step, film of 3 × 8,000 made points", list(scrubs(page, effort.steps)), "ms", "≤ 33"
        page.goto("about:blank")
        page.close()
        for count, goal in ((8_000, "≤ 150"), (20_000, "usable")):
            page = open_page(browser, f"{address}/?n={count}&thumbs=0", watch)
            answers, steps = brushes(page, effort, to_python)
            yield f"brush step, 3 × {count:,} made points", steps, "ms", goal
            yield f"brush end to Python and back, 3 × {count:,} made points", answers, "s", "≤ 0.5"
            page.goto("about:blank")
            page.close()


def open_page(browser: Any, address: str, watch: Watch) -> Any:
    """Open a page of a new browser context, with the feature view drawn."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    watch.follow(page)
    page.goto(address)
    view_of(page)
    return page


def view_of(page: Any) -> Any:
    """Find the feature view, once it is drawn."""
    view = page.locator(".scatter[data-draw-ms]").first
    view.wait_for(timeout=LATER)
    return view


def first_paint(browser: Any, address: str, watch: Watch) -> float:
    """Seconds from navigation to the drawn feature view."""
    started = time.perf_counter()
    page = open_page(browser, address, watch)
    seconds = time.perf_counter() - started
    page.wait_for_function(CHARTED, timeout=LATER)
    page.goto("about:blank")
    page.context.close()
    return seconds


def switches(page: Any, times: int) -> Iterator[float]:
    """Seconds from a click on a page's link to its title."""
    for name, title in islice(cycle(SWITCHES.items()), times):
        settle(page)
        link = page.get_by_role("link", name=name, exact=True)
        started = time.perf_counter()
        link.click()
        page.get_by_role("heading", level=1, name=re.compile(f"^{title}")).wait_for(timeout=LATER)
        yield time.perf_counter() - started


def reruns(page: Any, times: int) -> Iterator[float]:
    """Seconds from a key on the η slider to the caption of the mask that belongs to it."""
    slider = page.get_by_role("slider", name="Pruning ratio η")
    slider.wait_for(timeout=LATER)
    settle(page)
    half = times // 2  # to values not seen before, and back over them
    for key in ["ArrowRight"] * half + ["ArrowLeft"] * (times - half):
        started = time.perf_counter()
        slider.press(key)
        page.get_by_text(f"Layers kept at η = {float(slider.input_value()):.2f}").wait_for(timeout=LATER)
        yield time.perf_counter() - started
        page.wait_for_timeout(150)


def brushes(page: Any, effort: Effort, answered: Callable[[Any, int], None]) -> tuple[list[float], list[float]]:
    """Seconds from a brush's end to the answer, and milliseconds of its steps."""
    view, ends, steps = view_of(page), [], []
    settle(page)
    share = max(effort.steps // effort.brushes, 2)
    for number in range(effort.brushes):
        area = page.locator(".points[data-panel] + .overlay").first
        area.scroll_into_view_if_needed()
        box = area.bounding_box()
        left, top = box["x"] + box["width"] * 0.1, box["y"] + box["height"] * 0.1
        far = 0.5 + 0.3 * (number % 2)  # another selection each time
        page.mouse.move(left, top)
        page.mouse.down()
        for step in range(1, share + 1):
            page.mouse.move(left + box["width"] * far * step / share, top + box["height"] * 0.8 * step / share)
            page.evaluate(PAINTED)
            steps.append(float(view.get_attribute("data-step-ms")))
        selected = int(view.get_attribute("data-selected"))
        started = time.perf_counter()
        page.mouse.up()
        answered(page, selected)
        ends.append(time.perf_counter() - started)
        page.wait_for_timeout(300)
    return ends, steps


def scrubs(page: Any, times: int) -> Iterator[float]:
    """Yield milliseconds of work of the film's slider, from its event to drawn panels, bars and curve."""
    view, slider = view_of(page), page.locator(".film-slider")
    settle(page)
    last = float(slider.get_attribute("max"))
    for step in range(times):
        move = "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }"
        slider.evaluate(move, str(last * (step + 0.5) / times))
        page.evaluate(PAINTED)
        yield float(view.get_attribute("data-scrub-ms"))


def previews(page: Any, times: int) -> Iterator[float]:
    """Yield seconds from a key on the form's λ to its preview's numbers, figures and caption; the first is left out."""
    slider = page.get_by_role("slider", name="Scaling coefficient λ").first
    panel, before = page.locator(".st-key-preview-panel"), ""
    told = """(before) => {
        const text = document.querySelector(".st-key-preview-panel")?.innerText ?? "";
        return text.includes("not the run's number") && !text.includes("Previewing") && text !== before;
    }"""
    settle(page)
    for number in range(times + 1):  # the first one reads the zoo
        started = time.perf_counter()
        slider.press("ArrowRight")
        page.wait_for_function(told, arg=before, timeout=LATER)
        page.evaluate(PAINTED)
        if number:
            yield time.perf_counter() - started
        page.wait_for_timeout(500)
        before = panel.inner_text()
    page.get_by_role("button", name="Back to the settings of the run shown").click()
    panel.wait_for(state="detached", timeout=LATER)


def film(store: Store) -> tuple[float, float]:
    """Return the seconds that the engine takes for a film of 21 frames over λ with Surgery, and its megabytes."""
    asked = FILM.ask(parse_recipe({"zoo": "mini8", "calibrators": [{"method": "surgery"}]}))
    row = store.runs.wait(store.runs.submit(FILM.name, asked.model_dump(mode="json")).id, LATER / 100)
    if row.state != "finished":
        raise RuntimeError(f"The film is {row.state}. {row.error}")
    folder = store.find(row.result)
    return row.elapsed, sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def to_images(page: Any, selected: int) -> None:
    """Wait until the inspector shows images of this selection."""
    words = re.compile(rf"^{selected:,} images? selected")
    page.get_by_role("heading", name=words).wait_for(timeout=LATER)
    page.get_by_role("img", name=re.compile("^An image of")).first.wait_for(timeout=LATER)


def to_python(page: Any, selected: int) -> None:
    """Wait until the small app has the selection in Python and says so."""
    page.get_by_text(re.compile(rf"\bSELECTED={selected}\s")).wait_for(timeout=LATER)


def growth(page: Any, times: int) -> float:
    """Megabytes that the servers' memory grew by over interactions, after a quarter as many to warm them."""
    interact(page, max(times // 4, 8))
    before = memory()
    interact(page, times)
    return memory() - before


def interact(page: Any, times: int) -> None:
    """Switch pages and move sliders; a third of what is counted is a switch."""
    done = 0
    while done < times:
        done += len(list(switches(page, 2)))  # the second is Salience
        done += len(list(reruns(page, 4)))


def memory() -> float:
    """Resident megabytes of the app and of the engine with its workers: all processes of ours but the browser."""
    own = psutil.Process().children(recursive=True)
    return sum(process.memory_info().rss for process in own if "python" in process.name()) / 2**20


def table(rows: list[Row], chromium: str) -> str:
    """All of it as Markdown."""
    lines = [
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"Streamlit {version('streamlit')}, Chromium {chromium} headless",
        "",
        "| what | median | worst | of | goal |",
        "|---|---|---|---|---|",
    ]
    for what, found, unit, goal in rows:
        middle, worst = statistics.median(found), max(found)
        digits = 0 if unit == "ms" or worst >= 10 else 2
        lines.append(f"| {what} | {middle:.{digits}f} {unit} | {worst:.{digits}f} | {len(found)} | {goal} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
