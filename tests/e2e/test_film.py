"""The first page's film: a key on the slider moves points, bars and lists, and going back shows the same again."""

import csv
import io
import re
from xml.etree import ElementTree

import pytest
from PIL import Image

from tests.e2e.conftest import PAINTED, SVG, saved

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PIXELS = "(canvas) => canvas.toDataURL()"
BARS = "(bars) => bars.map((bar) => bar.style.transform).join()"


def state(page):
    """Return all that the film shows: points, bars, and how many images are lost, repaired and broken."""
    page.evaluate(PAINTED)
    page.evaluate(PAINTED)
    points = page.locator(".points[data-panel='Merged']").evaluate(PIXELS)
    bars = page.locator(".film-bar").evaluate_all(BARS)
    return points, bars, page.locator(".film-list-head").all_inner_texts()


def test_keys_on_the_slider_move_points_bars_and_lists_and_back(app_page, app_address):
    app_page.emulate_media(reduced_motion="reduce")  # frames follow each other at once
    app_page.goto(app_address)
    view, slider = app_page.locator(".scatter"), app_page.locator(".film-slider")
    expect(view).to_have_attribute("data-frame", "6")
    expect(app_page.locator(".film-value")).to_have_text("0.3")
    expect(app_page.locator(".film-image canvas").first).to_be_visible()  # pictures of lost images are at hand
    note = app_page.locator(".plot .note").first
    expect(note).to_have_text(re.compile(r"% in-domain · trust 0\.\d\d$"))
    heading = note.inner_text()
    app_page.wait_for_timeout(500)
    first = state(app_page)

    slider.focus()
    for _ in range(8):
        slider.press("ArrowRight")
    expect(view).to_have_attribute("data-frame", "14")
    expect(app_page.locator(".film-value")).to_have_text("0.7")
    moved = state(app_page)
    assert all(one != other for one, other in zip(first, moved, strict=True))
    assert all(one != other for one, other in zip(heading.split(" · "), note.inner_text().split(" · "), strict=True))
    expect(app_page).to_have_url(re.compile(r"[?&]at=0\.7\b"))

    for _ in range(8):
        slider.press("ArrowLeft")
    expect(view).to_have_attribute("data-frame", "6")
    expect(app_page).not_to_have_url(re.compile(r"[?&]at="))
    assert state(app_page) == first


def test_between_frames_the_picture_says_so_and_the_address_leads_to_a_frame(app_page, app_address):
    app_page.goto(f"{app_address}/?run=task-arithmetic&at=0.6")
    view = app_page.locator(".scatter")
    expect(view).to_have_attribute("data-frame", "12")
    app_page.locator(".film-slider").evaluate(
        "(slider) => { slider.value = '3.4'; slider.dispatchEvent(new Event('input')); }"
    )
    expect(app_page.locator(".film-note")).to_have_text("between 0.15 and 0.2: points interpolated, numbers at 0.15")
    expect(app_page.locator(".film-value")).to_have_text("0.15")
    app_page.locator(".film-slider").dispatch_event("change")  # let go: it settles on the nearest frame
    expect(view).to_have_attribute("data-film", "3.000")
    assert float(view.get_attribute("data-scrub-ms")) >= 0


def test_a_film_that_comes_back_tells_where_it_stands_again(app_page, app_address):
    app_page.goto(f"{app_address}/?run=task-arithmetic")
    view = app_page.locator(".scatter")
    for film in ("Experts merged", None):
        expect(view).to_have_attribute("data-frame", "6")
        app_page.locator(".film-slider").evaluate(
            "(slider) => { slider.value = '12'; slider.dispatchEvent(new Event('input')); "
            "slider.dispatchEvent(new Event('change')); }"
        )
        expect(app_page).to_have_url(re.compile(r"[?&]at=0\.6"))
        if film:
            app_page.get_by_role("radio", name=film).click()
            expect(app_page).not_to_have_url(re.compile(r"[?&]at=0\.6"))
            app_page.get_by_role("radio", name="Scaling coefficient").click()


def test_the_linked_view_is_saved_as_picture_and_table(app_page, app_address):
    app_page.goto(app_address)
    view = app_page.locator(".scatter")
    expect(view).to_have_attribute("data-frame", "6")
    app_page.get_by_role("button", name="Save", exact=True).click()
    rows = list(csv.reader(saved(app_page, "CSV").decode().splitlines()))
    assert len(rows) == 1 + int(view.get_attribute("data-points"))
    assert rows[0][:2] == ["point", "selected"]
    assert "Merged: x" in rows[0]
    assert {len(row) for row in rows} == {len(rows[0])}

    picture = ElementTree.fromstring(saved(app_page, "SVG"))
    words = [text.text for text in picture.iter(f"{SVG}text")]
    assert any(text.startswith("Merged") for text in words)
    merged = next(part for part in picture.findall(f"{SVG}g") if part.find(f"{SVG}text").text.startswith("Merged"))
    marks = [mark for mark in merged.find(f"{SVG}g") if mark.get("fill-opacity")]
    assert len(marks) == sum(row[rows[0].index("Merged: x")] != "" for row in rows[1:])
    image = Image.open(io.BytesIO(saved(app_page, "PNG")))
    assert image.size == (3 * int(picture.get("width")), 3 * int(picture.get("height")))
    assert len(image.convert("RGB").getcolors(10_000_000)) > 50, "it is not empty"


def test_a_film_plays_by_keyboard_in_the_dark_on_a_phone(profile, app_address):
    page = profile(viewport={"width": 390, "height": 844}, color_scheme="dark").new_page()
    page.goto(f"{app_address}/?run=task-arithmetic")
    view, slider = page.locator(".scatter"), page.locator(".film-slider")
    expect(view).to_have_attribute("data-frame", "6")
    slider.focus()
    page.keyboard.press("Home")
    expect(view).to_have_attribute("data-frame", "0")
    expect(page.locator(".film-value")).to_have_text("0")
    page.keyboard.press("ArrowRight")
    expect(view).to_have_attribute("data-frame", "1")
    page.keyboard.press("End")
    expect(view).to_have_attribute("data-frame", "20")
    page.keyboard.press("Home")
    page.get_by_role("button", name="Play").focus()
    page.keyboard.press("Enter")
    expect(view).to_have_attribute("data-frame", re.compile("^([5-9]|1[0-9]|20)$"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ink = page.locator(".film-value").evaluate("(part) => getComputedStyle(part).color")
    assert min(map(int, re.findall(r"\d+", ink)[:3])) > 128, "light letters on a dark page"
    page.close()
