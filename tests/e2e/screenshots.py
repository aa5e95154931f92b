"""Pictures of every page, in both themes, wide and narrow: ``python tests/e2e/screenshots.py [--readme]``."""

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.e2e.conftest import PATIENCE, Watch, open_browser, serve_app, settle  # noqa: E402

SIZES = {"1280": (1280, 800), "390": (390, 844)}
STILL = 700  # ms that a page keeps its height before it counts as drawn
DRAWN = """() => {
    const charts = [...document.querySelectorAll('[data-testid=stPlotlyChart]')];
    return !document.querySelector('[data-testid=stSkeleton]')
        && charts.every((chart) => chart.querySelector('.main-svg'))
        && [...document.images].every((image) => image.complete);
}"""
HEIGHT = "() => document.querySelector('[data-testid=stMain]').scrollHeight"
TALLEST = 6000


def main() -> int:
    """Take them all; returns 1 when a page reported an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "screenshots")
    parser.add_argument("--readme", action="store_true", help="also write assets/screenshot.webp")
    parser.add_argument("--store", type=Path, help="a store to show; default an empty one")
    parser.add_argument("--pages", nargs="*", help="only these")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = [path.stem for path in sorted((ROOT / "pages").glob("[a-z]*.py"))]
    watch = Watch()
    with (
        tempfile.TemporaryDirectory() as scratch,
        serve_app(options.store or Path(scratch)) as address,
        open_browser() as browser,
    ):
        for name, theme, label in itertools.product(
            names if options.pages is None else options.pages, ("light", "dark"), SIZES
        ):
            target = options.out / f"{name}-{theme}-{label}.png"
            take(browser, f"{address}/{'' if name == 'lab' else name}", SIZES[label], theme, target, watch)
        if options.readme:
            picture = options.out / "readme.png"
            take(browser, address, (1280, 1000), "light", picture, watch, whole=False)
            few = Image.open(picture).convert("RGB").quantize(256, dither=Image.Dither.NONE)  # a third of the bytes
            few.convert("RGB").save(ROOT / "assets" / "screenshot.webp", lossless=True, quality=100, method=6)
    sys.stdout.writelines(f"{problem}\n" for problem in watch.problems)
    return 1 if watch.problems else 0


def take(
    browser: Any, url: str, size: tuple[int, int], theme: str, target: Path, watch: Watch, *, whole: bool = True
) -> None:
    """Take one picture; ``whole`` makes the window as tall as the page."""
    width, height = size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
    watch.follow(page)
    page.goto(url)
    height_of_drawn(page)
    if whole:
        for _ in range(2):  # a taller window may draw more
            tall = height_of_drawn(page)
            page.set_viewport_size({"width": width, "height": min(max(tall + 8, height), TALLEST)})
        height_of_drawn(page)
    page.screenshot(path=target)
    page.close()
    sys.stdout.write(f"{target.name}\n")


def height_of_drawn(page: Any) -> int:
    """Height of a page once its charts are drawn and it no longer grows."""
    before, now = -1, 0
    while before != now:
        settle(page)
        page.wait_for_function(DRAWN, timeout=PATIENCE)
        before = now
        page.wait_for_timeout(STILL)
        now = page.evaluate(HEIGHT)
    return now


if __name__ == "__main__":
    sys.exit(main())
