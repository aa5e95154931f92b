"""Every page, in both themes: no error, nothing wider than a phone, no serious barrier; and every page on texts.

Barriers are found by axe-core from the npm registry. It is fetched once into the user's cache, by ``npm`` as that is
configured; ``MERGELENS_AXE`` names an ``axe.min.js`` instead. Without either, its tests are skipped.
"""

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app import SECTIONS
from tests.e2e.conftest import PATIENCE, WIDE, Watch, settle, turn

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PAGES = [name for section in SECTIONS.values() for name, *_ in section]
STATES = {"learn": "learn?lesson=what-merging-breaks&step=3", "lab": ""}  # pages by a more telling address
TEXTS = "run=text-task-arithmetic"  # the example on the zoo mini_text
OWN = {"lab": f"?{TEXTS}", "learn": "learn?lesson=the-same-in-text&step=3", "zoo": "zoo?zoo=mini_text"}
OF_THE_RUN = {"lab", "representations", "accuracy", "diagnose", "calibrate", "salience", "weights", "learn", "zoo"}
TASK = re.compile("Reviews|Headlines|What follows")
AXE = "4.10.3"
PHONE = {"width": 390, "height": 844}
RULES = {"light": [], "dark": ["color-contrast"]}  # all, and the one that a theme can break
GROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}
GROUND = "(colour) => getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor === colour"
STILL = """() => document.getAnimations().every(
    (moving) => moving.playState !== 'running' || moving.effect.getTiming().iterations === Infinity
)"""
# What is left out, because Streamlit draws it and no theme can change it.
LABELS = "[data-testid=stElementContainer]:has(input:disabled) [data-testid=stWidgetLabel]"  # faint, as what they label
FINDINGS = """async ([excluded, only]) => {
    const exclude = [...document.querySelectorAll(excluded)];
    const rules = only.length ? { runOnly: { type: 'rule', values: only } } : {};
    const found = await axe.run({ include: document, exclude }, { resultTypes: ['violations'], ...rules });
    return found.violations
        .filter((rule) => ['serious', 'critical'].includes(rule.impact))
        .flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.html.slice(0, 160)} ${node.failureSummary}`));
}"""
TOO_WIDE = """() => {
    const main = document.querySelector('[data-testid=stMain]');
    return [document.documentElement.scrollWidth - innerWidth, main.scrollWidth - main.clientWidth];
}"""


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    named = os.environ.get("MERGELENS_AXE")
    if named:
        return Path(named).read_text("utf-8")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mergelens" / f"axe-core-{AXE}"
    if not (cache / "axe.min.js").is_file():
        fetch_axe(cache)
    return (cache / "axe.min.js").read_text("utf-8")


def fetch_axe(cache: Path) -> None:
    """Fetch axe-core with npm, or skip."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("No npm to fetch axe-core with; install it or let MERGELENS_AXE name an axe.min.js.")
    cache.mkdir(parents=True, exist_ok=True)
    command = [npm, "pack", f"axe-core@{AXE}", "--silent"]
    done = subprocess.run(command, cwd=cache, capture_output=True, text=True, timeout=120)
    archive = cache / f"axe-core-{AXE}.tgz"
    if done.returncode or not archive.is_file():
        pytest.skip(f"npm could not fetch axe-core: {done.stderr.strip()[-200:]}")
    with tarfile.open(archive) as packed:
        source = packed.extractfile("package/axe.min.js")
        assert source is not None
        (cache / "axe.min.js").write_bytes(source.read())
    archive.unlink()


@pytest.fixture(scope="module")
def visit(profile, app_address) -> Iterator[tuple[Any, Watch]]:
    """A browser page with the app in it, and what goes wrong there."""
    opened, watch = profile(viewport=WIDE).new_page(), Watch()
    watch.follow(opened)
    opened.set_default_timeout(PATIENCE)
    opened.goto(f"{app_address}/{PAGES[-1]}")
    settle(opened)
    yield opened, watch
    settle(opened)
    opened.close()
    assert not watch.problems


@pytest.fixture(scope="module", params=PAGES)
def page(request, visit, app_address) -> Any:
    """Each page, turned to once; in the end nothing has gone wrong in it."""
    opened, watch = visit
    opened.set_viewport_size(WIDE)
    turn(opened, f"{app_address}/{STATES.get(request.param, request.param)}")
    yield opened
    assert not watch.problems


def show(page, theme: str, size: dict[str, int]) -> None:
    """Give a page a theme and a size, and wait until it follows."""
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size(size)
    page.wait_for_function(GROUND, arg=GROUNDS[theme])
    settle(page)
    page.wait_for_function(STILL)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_has_no_serious_barrier(page, axe, theme):
    show(page, theme, WIDE)
    page.evaluate(axe)
    found = page.evaluate(FINDINGS, [LABELS, RULES[theme]])
    assert not found, "\n".join(found)


def test_a_page_fits_a_phone_in_the_dark(page):
    title = page.get_by_role("heading", level=1).inner_text()
    show(page, "dark", PHONE)
    expect(page.get_by_role("heading", level=1)).to_have_text(title)
    page.wait_for_function(f"() => Math.max(...({TOO_WIDE})()) <= 0")  # charts follow the new width
    expect(page.get_by_text("Something unexpected went wrong")).to_have_count(0)


def test_every_page_is_filled_on_texts(visit, app_address):
    """On a store without runs; one browser page goes from one to the next, as a visitor does."""
    opened, watch = visit
    opened.set_viewport_size(WIDE)
    for name in PAGES:
        turn(opened, f"{app_address}/{OWN.get(name, f'{name}?{TEXTS}')}")
        main = opened.get_by_test_id("stMain")
        expect(main.get_by_test_id("stSkeleton")).to_have_count(0)
        expect(opened.get_by_text("Something unexpected went wrong")).to_have_count(0)
        expect(main.get_by_test_id("stAlertContentError")).to_have_count(0)
        expect(main.get_by_text("No run yet")).to_have_count(0)
        said = main.inner_text()
        assert len(said) > 150, f"{name} is empty: {said}"
        assert name not in OF_THE_RUN or TASK.search(said), f"{name} shows no task of sentences: {said[:500]}"
    assert not watch.problems


def test_a_choice_longer_than_its_box_ends_in_dots(app_page, app_address):
    app_page.goto(app_address)
    box = app_page.get_by_role("combobox", name="Merge method", exact=True)
    assert box.evaluate("(box) => getComputedStyle(box).textOverflow") == "ellipsis"
