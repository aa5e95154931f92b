"""A change of the form is previewed without Run, the next one takes its place, and going back ends it."""

import re

import pytest

from tests.e2e.conftest import settle

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SENTENCE = re.compile(r"^Preview: (\d+\.\d)\s%")


def previewed(panel):
    """Return the sentence of a preview that is there, and not one of the settings before.

    Where other work made earlier previews slow, the panel offers a button in place of the preview; it is pressed.
    """
    told, ask = panel.locator("p").filter(has_text=SENTENCE), panel.get_by_role("button", name="Preview", exact=True)
    expect(panel.get_by_text("Previewing")).to_have_count(0)
    expect(told.or_(ask)).to_have_count(1)  # while the page draws, the sentence before may still be there
    if ask.count():
        ask.click()
        expect(ask).to_have_count(0)
        expect(panel.get_by_text("Previewing")).to_have_count(0)
        expect(told).to_have_count(1)
    return told.inner_text()


def test_a_change_is_previewed_without_run(app_page, app_address):
    app_page.goto(app_address)
    settle(app_page)
    panel = app_page.locator(".st-key-preview-panel")
    expect(panel).to_have_count(0)
    slider = app_page.get_by_role("slider", name="Scaling coefficient λ").first
    slider.focus()
    slider.press("ArrowRight")
    expect(panel).to_be_visible()
    first = previewed(panel)
    assert "the run shown" in first
    assert "on the same images" in first
    expect(panel.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    expect(panel.get_by_text("not the run's number: n = 32 of 300–500 test images a task")).to_be_visible()

    for _ in range(6):
        slider.press("ArrowRight")
    expect(panel.get_by_text(first, exact=True)).to_have_count(0)
    moved = previewed(panel)
    assert SENTENCE.match(moved)[1] != SENTENCE.match(first)[1]
    expect(app_page.get_by_role("button", name="Run", exact=True)).to_be_enabled()

    app_page.get_by_role("button", name="Back to the settings of the run shown").click()
    expect(panel).to_have_count(0)
