"""Pictures of every page, in both themes, wide and narrow: ``python tests/e2e/screenshots.py [--readme]``."""

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.e2e.conftest import Watch, open_browser, serve_app  # noqa: E402

SIZES = {"1280": (1280, 800), "390": (390, 844)}
SETTLE = 3000  # ms for charts and canvases after the headline
TALLEST = 6000


def main() -> int:
    """Take them all; returns 1 when a page reported an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "screenshots")
    parser.add_argument("--readme", action="store_true", help="also write assets/screenshot.png")
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
        for name, theme, label in itertools.product(options.pages or names, ("light", "dark"), SIZES):
            target = options.out / f"{name}-{theme}-{label}.png"
            take(browser, f"{address}/{'' if name == 'lab' else name}", SIZES[label], theme, target, watch)
        if options.readme:
            take(browser, address, (1280, 1000), "light", ROOT / "assets" / "screenshot.png", watch, whole=False)
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
    page.get_by_role("heading", level=1).wait_for(timeout=60_000)
    page.wait_for_timeout(SETTLE)
    if whole:
        tall = page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollHeight")
        page.set_viewport_size({"width": width, "height": min(max(tall + 8, height), TALLEST)})
        page.wait_for_timeout(SETTLE)
    page.screenshot(path=target)
    page.close()
    sys.stdout.write(f"{target.name}\n")


if __name__ == "__main__":
    sys.exit(main())
