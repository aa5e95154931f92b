"""The first page's film: a key on the slider moves points, bars and lists, and going back shows the same again."""

import re

import pytest

from tests.e2e.conftest import PAINTED

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
    app_page.wait_for_timeout(500)
    first = state(app_page)

    slider.focus()
    for _ in range(8):
        slider.press("ArrowRight")
    expect(view).to_have_attribute("data-frame", "14")
    expect(app_page.locator(".film-value")).to_have_text("0.7")
    moved = state(app_page)
    assert all(one != other for one, other in zip(first, moved, strict=True))
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
