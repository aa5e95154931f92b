"""The linked feature view in a real browser: brushing, keys, hover, themes, small screens."""

import csv
import os
import re
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.conftest import PAINTED, PATIENCE, ROOT, saved, serve, settle

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = pytest.mark.browser

PANELS = ("Merged", "Corrected", "Expert")
PIXEL_SHARE = """(points, [r, g, b]) => {
    const { data } = points.getContext('2d').getImageData(0, 0, points.width, points.height);
    let hits = 0;
    for (let i = 0; i < data.length; i += 4)
        hits += Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 12;
    return hits / (points.width * points.height);
}"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of the small app."""
    with serve(
        "tests/e2e/scatter_app.py", {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}"}
    ) as found:
        yield found


@pytest.fixture
def visit(address, profile) -> Iterator[Callable]:
    """Open the app; afterwards, nothing may have failed and no request may have left the host."""
    pages, faults = [], []

    def open_page(query: str = "", **options):
        page = profile(**{"viewport": {"width": 1280, "height": 900}, **options}).new_page()
        pages.append(page)
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: faults.append(f"page: {error}"))
        page.on("console", lambda line: faults.append(f"console: {line.text}") if line.type == "error" else None)
        page.on("request", lambda request: faults.append(request.url) if not is_local(request.url, address) else None)
        page.goto(f"{address}/?{query}")
        expect(view(page)).to_have_attribute("data-draw-ms", re.compile(r"\d"))
        settle(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not faults


def is_local(url: str, address: str) -> bool:
    return url.startswith((address, address.replace("http", "ws"), "data:", "blob:"))


def view(page):
    return page.locator(".scatter")


def overlay(page, panel: str):
    return page.locator(f".points[data-panel='{panel}'] + .overlay")


def drag(page, panel: str, path: list[tuple[float, float]], release: bool = True) -> None:
    """Drag along a path of shares of the panel's width and height."""
    box = overlay(page, panel).bounding_box()  # read just before the drag: the layout shifts
    spots = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in path]
    page.mouse.move(*spots[0])
    page.mouse.down()
    for spot in spots[1:]:
        page.mouse.move(*spot, steps=4)
    if release:
        page.mouse.up()
    page.evaluate(PAINTED)  # what a gesture changes is drawn with the next frame


def selected(page) -> int:
    return int(view(page).get_attribute("data-selected"))


def expect_python(page, **values) -> None:
    """Wait until the app, in Python, reports these values."""
    for name, value in values.items():
        expect(page.get_by_text(re.compile(rf"\b{name}={re.escape(str(value))}(\s|$)"))).to_be_visible()


def pixel_share(page, panel: str, rgb: tuple[int, int, int]) -> float:
    """Share of a panel's pixels that have about this colour."""
    return page.locator(f".points[data-panel='{panel}']").evaluate(PIXEL_SHARE, list(rgb))


RIGHT_SIDE = [(0.55, 0.1), (0.98, 0.9)]
DIGITS = (0x33, 0x22, 0x88)
SHAPES_TASK = (0xDD, 0xCC, 0x77)


def test_box_brush_links_all_panels_while_dragging_and_reaches_python_once(visit):
    page = visit()
    expect_python(page, SELECTED=0, RUNS=1)
    before = {panel: pixel_share(page, panel, DIGITS) for panel in PANELS}
    drag(page, "Expert", RIGHT_SIDE, release=False)
    expect(view(page)).not_to_have_attribute("data-selected", "0")
    during = selected(page)
    assert 100 < during < 500
    for panel in PANELS:  # digits are selected and now opaque, shapes on the other side have faded, in every panel
        assert pixel_share(page, panel, DIGITS) > 1.2 * before[panel]
        assert pixel_share(page, panel, SHAPES_TASK) == pytest.approx(0, abs=1e-3)
    expect_python(page, SELECTED=0, RUNS=1)
    page.mouse.up()
    expect_python(page, SELECTED=during, REVISION=1, RUNS=2)
    expect(view(page)).to_have_attribute("data-commits", "1")
    expect(page.get_by_role("status").filter(has_text=f"{during} of 800 images selected")).to_be_attached()


def test_shift_adds_alt_removes_and_escape_takes_a_drag_back(visit):
    page = visit()
    drag(page, "Expert", [(0.6, 0.1), (0.98, 0.9)])
    first = selected(page)
    page.keyboard.down("Shift")
    drag(page, "Expert", [(0.02, 0.1), (0.3, 0.9)])
    page.keyboard.up("Shift")
    both = selected(page)
    assert both > first
    page.keyboard.down("Alt")
    drag(page, "Expert", [(0.6, 0.1), (0.98, 0.9)])
    page.keyboard.up("Alt")
    assert selected(page) == both - first
    drag(page, "Merged", RIGHT_SIDE, release=False)
    page.keyboard.press("Escape")
    expect(view(page)).to_have_attribute("data-selected", str(both - first))
    page.mouse.up()
    expect_python(page, SELECTED=both - first, REVISION=3)


def test_lasso_selects_inside_its_outline_only(visit):
    page = visit()
    page.get_by_role("button", name="Lasso").click()
    triangle = [(0.52, 0.5), (0.98, 0.05), (0.98, 0.95), (0.54, 0.52)]
    drag(page, "Expert", triangle)
    inside = selected(page)
    expect_python(page, SELECTED=inside)
    page.get_by_role("button", name="Box").click()
    drag(page, "Expert", [(0.52, 0.05), (0.98, 0.95)])
    assert 0 < inside < selected(page)


def test_click_selects_one_and_double_click_or_button_clears(visit):
    page = visit()
    drag(page, "Expert", RIGHT_SIDE)
    page.get_by_role("button", name="Clear").click()
    expect_python(page, SELECTED=0, REVISION=2)
    expect(page.get_by_role("button", name="Clear")).to_be_hidden()
    overlay(page, "Expert").click(position=spot_of(page, "Expert", 0.875, 0.48))
    expect(view(page)).to_have_attribute("data-selected", "1")
    overlay(page, "Expert").dblclick(position=spot_of(page, "Expert", 0.5, 0.5))
    expect_python(page, SELECTED=0)


def spot_of(page, panel: str, x: float, y: float) -> dict[str, float]:
    box = overlay(page, panel).bounding_box()
    return {"x": box["width"] * x, "y": box["height"] * y}


def test_recolouring_and_filtering_keep_selection_and_zoom(visit):
    page = visit()
    drag(page, "Expert", RIGHT_SIDE)
    count = selected(page)
    page.get_by_role("button", name="Zoom in").click()
    expect(view(page)).to_have_attribute("data-zoom", "1.35")
    page.get_by_text("shift", exact=True).click()
    expect(page.get_by_role("img", name=re.compile("Shift from"))).to_be_visible()
    expect(page.get_by_role("button", name="digits")).to_have_count(0)
    page.get_by_text("Hide the second half").click()
    expect_python(page, SELECTED=count, REVISION=1, RUNS=4)
    expect(view(page)).to_have_attribute("data-selected", str(count))
    expect(view(page)).to_have_attribute("data-zoom", "1.35")
    expect(view(page)).to_have_attribute("data-commits", "1")


def test_the_page_may_select_and_a_later_gesture_replaces_it(visit):
    page = visit()
    drag(page, "Expert", RIGHT_SIDE)
    page.get_by_role("button", name="Select rows 1 to 3").click()
    expect_python(page, SELECTED=3, FIRST="[1, 2, 3]", REVISION=2)
    expect(view(page)).to_have_attribute("data-selected", "3")
    drag(page, "Expert", RIGHT_SIDE)
    assert selected(page) > 3
    expect_python(page, SELECTED=selected(page), REVISION=3)
    expect(view(page)).to_have_attribute("data-revision", "3")


def test_what_the_page_selects_is_not_hidden_behind_a_focus(visit):
    page = visit()
    letters = page.get_by_role("button", name="letters")
    letters.click()
    expect(letters).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Select rows 1 to 3").click()
    expect(view(page)).to_have_attribute("data-selected", "3")
    expect(letters).to_have_attribute("aria-pressed", "false")
    expect(page.locator(".category.dimmed")).to_have_count(0)


def test_a_view_that_comes_back_remembers(visit):
    page = visit()
    drag(page, "Expert", RIGHT_SIDE)
    count = selected(page)
    page.get_by_role("button", name="Lasso").click()
    page.get_by_role("button", name="Zoom in").click()
    expect_python(page, SELECTED=count)
    page.get_by_text("Show the view").click()
    expect(view(page)).to_have_count(0)
    page.get_by_text("Show the view").click()
    expect(view(page)).to_have_attribute("data-selected", str(count))
    expect(view(page)).to_have_attribute("data-mode", "lasso")
    expect(view(page)).to_have_attribute("data-zoom", "1.35")
    expect_python(page, SELECTED=count, REVISION=1)


def test_hidden_and_greyed_points_are_not_brushed(visit):
    page = visit()
    page.get_by_text("Hide the second half").click()
    expect_python(page, RUNS=2)
    drag(page, "Merged", [(0.01, 0.01), (0.99, 0.99)])
    expect(view(page)).to_have_attribute("data-selected", "400")
    page.get_by_role("button", name="letters").click()
    drag(page, "Merged", [(0.01, 0.01), (0.99, 0.99)])
    expect(view(page)).to_have_attribute("data-selected", "50")
    expect(page.get_by_role("button", name="letters")).to_have_attribute("aria-pressed", "true")


def test_the_status_line_counts_selected_images_that_are_shown(visit):
    page = visit()
    status = page.locator(".status")
    drag(page, "Merged", [(0.01, 0.01), (0.99, 0.99)])
    expect(status).to_have_text("800 of 800 images selected")
    page.get_by_text("Hide the second half").click()
    expect(status).to_have_text("400 of 400 images selected")
    expect(status).to_have_attribute("title", "400 hidden by filters, 400 of them selected")
    page.get_by_text("Hide the second half").click()
    expect(status).to_have_text("800 of 800 images selected")
    expect(status).to_have_attribute("title", "")


def test_keys_walk_select_and_zoom(visit):
    page = visit()
    page.get_by_role("application", name="Linked feature view").focus()
    page.keyboard.press("ArrowRight")
    first = view(page).get_attribute("data-cursor")
    page.keyboard.press("ArrowRight")
    assert view(page).get_attribute("data-cursor") != first
    expect(page.get_by_role("status").filter(has_text="True class")).to_be_attached()
    expect_python(page, SELECTED=0, RUNS=1)
    page.keyboard.press("Enter")
    expect_python(page, SELECTED=1)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+Enter")
    expect_python(page, SELECTED=2)
    page.keyboard.press("+")
    expect(view(page)).to_have_attribute("data-zoom", "1.35")
    page.keyboard.press("0")
    expect(view(page)).to_have_attribute("data-zoom", "1.00")
    page.keyboard.press("Escape")
    expect_python(page, SELECTED=0, REVISION=3)


def test_what_a_filter_hides_is_not_selected_by_keys(visit):
    page = visit()
    page.get_by_role("application", name="Linked feature view").focus()
    page.keyboard.press("ArrowRight")
    while int(view(page).get_attribute("data-cursor")) < 400:
        page.keyboard.press("ArrowRight")
    page.get_by_text("Hide the second half").click()
    expect_python(page, RUNS=2)
    page.get_by_role("application", name="Linked feature view").focus()
    page.keyboard.press("Enter")
    assert selected(page) == 0


def test_a_touch_that_the_system_takes_away_leaves_no_finger_behind(visit):
    page = visit()
    box = overlay(page, "Merged").bounding_box()
    hand = page.context.new_cdp_session(page)
    for end in ("touchCancel", "touchEnd"):
        for kind, share in (("touchStart", 0.02), ("touchMove", 0.98)):
            place = {"x": box["x"] + box["width"] * share, "y": box["y"] + box["height"] * share}
            hand.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [place]})
        hand.send("Input.dispatchTouchEvent", {"type": end, "touchPoints": []})
    page.evaluate(PAINTED)
    assert selected(page) == 800, "the second touch draws a box"


def test_a_saved_table_holds_numbers_of_measured_colours(visit):
    page = visit("colour=shift")
    page.get_by_role("button", name="Save", exact=True).click()
    rows = list(csv.reader(saved(page, "CSV").decode().splitlines()))
    place = next(number for number, name in enumerate(rows[0]) if name.startswith("Merged: ") and number > 3)
    values = [float(row[place]) for row in rows[1:]]
    assert len({round(value, 6) for value in values}) > 700, "not three digits"


def test_hover_card_names_class_and_predictions(visit):
    page = visit()
    card = page.locator(".card")
    expect(card).to_be_hidden()
    overlay(page, "Expert").hover(position=spot_of(page, "Expert", 0.875, 0.48))
    expect(card).to_be_visible()
    for words in ("True class", *PANELS):
        expect(card.get_by_text(words, exact=True)).to_be_visible()
    expect(card.locator(".thumbnail")).to_have_js_property("width", 32)
    row = int(view(page).get_attribute("data-hover"))
    expect(card.locator("strong")).to_have_text(f"Image {70_000 + row}")
    expect_python(page, RUNS=1)


def test_the_wheel_scrolls_the_page_until_the_view_is_clicked(visit):
    page = visit()
    overlay(page, "Expert").hover()
    page.mouse.wheel(0, -200)
    expect(page.get_by_text("to zoom with the wheel")).to_be_visible()
    expect(view(page)).to_have_attribute("data-zoom", "1.00")
    overlay(page, "Expert").click(position=spot_of(page, "Expert", 0.5, 0.5))
    page.mouse.wheel(0, -200)
    expect(view(page)).not_to_have_attribute("data-zoom", "1.00")
    expect_python(page, RUNS=1)


def test_morph_moves_points_and_is_brushed_like_a_panel(visit):
    page = visit("morph=1")
    slider = page.get_by_role("slider", name="Position between the states")
    page.get_by_role("button", name="Go to Corrected").click()
    expect(slider).to_have_attribute("aria-valuetext", "Corrected")
    expect(view(page)).to_have_attribute("data-morph", "1.00")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(view(page)).to_have_attribute("data-morph", "1.01")
    page.get_by_role("button", name="Play the movement").click()
    expect(slider).to_have_attribute("aria-valuetext", "Expert")
    drag(page, "Morph", RIGHT_SIDE)
    count = selected(page)
    expect_python(page, SELECTED=count, RUNS=2)
    page.get_by_role("button", name="Morph", exact=True).click()
    expect(slider).to_have_count(0)
    assert selected(page) == count


def test_dark_theme_lifts_dark_colours(visit):
    page = visit(color_scheme="dark")
    expect(view(page)).to_have_attribute("data-theme", "dark")
    assert pixel_share(page, "Expert", DIGITS) == 0
    drag(page, "Expert", RIGHT_SIDE)
    assert pixel_share(page, "Expert", (0x8A, 0x7B, 0xE8)) > 0.005


def test_a_narrow_screen_wraps_panels_and_never_scrolls_sideways(visit):
    page = visit(viewport={"width": 390, "height": 844})
    boxes = {panel: overlay(page, panel).bounding_box() for panel in PANELS}
    assert boxes["Expert"]["y"] > boxes["Merged"]["y"] + boxes["Merged"]["height"]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes.values())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    drag(page, "Merged", RIGHT_SIDE)
    expect_python(page, SELECTED=selected(page))


@pytest.mark.parametrize(("query", "canvases"), [("", 3), ("film=plain", 4)])
def test_canvases_are_drawn_anew_on_a_screen_of_other_pixels(visit, query, canvases):
    page = visit(query)
    drawn = page.locator(".overlay, .film-curve")
    sizes = "(all) => all.map((own) => [own.width, own.clientWidth]).filter(([, width]) => width)"
    before = drawn.evaluate_all(sizes)
    assert len(before) == canvases
    screen = page.context.new_cdp_session(page)
    for ratio, height in ((2, 901), (1.5, 902), (1, 900)):  # a browser under test tells of a ratio with a size alone
        shown = {"width": 1280, "height": height, "deviceScaleFactor": ratio, "mobile": False}
        screen.send("Emulation.setDeviceMetricsOverride", shown)
        page.wait_for_function("(ratio) => devicePixelRatio === ratio", arg=ratio)
        page.evaluate(PAINTED)
        after = drawn.evaluate_all(sizes)
        assert [width for _, width in after] == [width for _, width in before], "no size in css px changes"
        assert all(across == pytest.approx(ratio * width, abs=1) for across, width in after)


def test_brushing_many_points_stays_linked_and_sends_one_bit_a_point(visit):
    page = visit("n=8000&thumbs=0")
    drag(page, "Merged", [(0.01, 0.01), (0.99, 0.99)])
    expect(view(page)).to_have_attribute("data-selected", re.compile(r"^(79\d\d|8000)$"))
    expect_python(page, SELECTED=selected(page), REVISION=1, RUNS=2)
    assert float(view(page).get_attribute("data-draw-ms")) > 0
