"""A whole visit: the finished example, another λ, a run, a reload in the middle of it, its result."""

import re

import pytest

from tests.e2e.conftest import serve_app, settle

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]

RUN = 600_000  # ms; about a minute on two free cores
SETTLED = 3000  # ms after which no message of the progress can be under way any more
QUICK_STEPS = (0, 50, 300, 300, 50, 600, 300, 0, 150, 300)  # ms after each


def headline(page):
    return page.get_by_role("heading", level=1)


def press(slider, times=1):
    """Move a slider by keys, a step each; returns where it is once the page says so."""
    slider.focus()
    for _ in range(times):
        before = slider.input_value()
        slider.press("ArrowRight")
        expect(slider).not_to_have_value(before)
        expect(slider.page.get_by_text(f"→ {slider.input_value()}")).to_be_visible()
    return slider.input_value()


def test_first_open_shows_the_finished_example(app_page, app_address):
    app_page.goto(app_address)
    expect(headline(app_page)).to_contain_text("experts reach")
    expect(app_page.get_by_role("button", name="Run", exact=True)).to_be_in_viewport()
    expect(app_page.get_by_test_id("stMetric").filter(has_text=re.compile("^Merged"))).to_be_visible()
    expect(app_page.locator("canvas[data-panel]").first).to_be_visible()
    expect(app_page.locator(".js-plotly-plot").first).to_be_visible()
    expect(app_page).to_have_url(re.compile(r"\?run=\w"))
    expect(app_page.get_by_text("Not run yet")).to_have_count(0)
    expect(app_page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("alone", [False, True])
def test_the_first_address_of_a_fresh_server_may_be_any_page(app_page, tmp_path, alone):
    with serve_app(tmp_path / "store", alone=alone) as address:
        app_page.goto(f"{address}/runs")
        expect(headline(app_page)).to_have_text("Runs")
        expect(app_page.get_by_role("link", name="Lab", exact=True)).to_be_visible()
        expect(app_page.get_by_role("link", name="chrome")).to_have_count(0)
        app_page.goto("about:blank")  # before the server ends


def test_a_coefficient_set_in_quick_steps_and_typed_before_a_click_stays(app_page, app_address):
    app_page.goto(app_address)
    expect(headline(app_page)).to_contain_text("experts reach")
    settle(app_page)
    app_page.get_by_text("Images and seeds").click()
    slider = app_page.get_by_role("slider").first
    field = app_page.get_by_role("spinbutton", name=f"{slider.get_attribute('aria-label')}, typed")
    start = float(slider.input_value())
    slider.focus()
    for pause in QUICK_STEPS:  # on the way there and back, the page draws a value that is left behind already
        slider.press("ArrowRight")
        app_page.wait_for_timeout(pause)
    app_page.wait_for_timeout(SETTLED)
    moved = f"{start + len(QUICK_STEPS) / 100:g}"
    expect(slider).to_have_value(moved)
    expect(field).to_have_value(moved)
    field.fill("0.42")
    app_page.get_by_text("As in the papers", exact=True).click()  # leaves the field, whose value is on its way
    app_page.wait_for_timeout(SETTLED)
    expect(app_page.get_by_text("→ 0.42")).to_be_visible()
    expect(slider).to_have_value("0.42")
    expect(field).to_have_value("0.42")


def test_pages_keep_the_run_and_the_settings(app_page, app_address):
    app_page.goto(app_address)
    expect(headline(app_page)).to_be_visible()
    settle(app_page)
    chosen = press(app_page.get_by_role("slider").first)
    expect(app_page.get_by_text("Not run yet")).to_be_visible()
    for name in ("Accuracy", "Runs"):
        app_page.get_by_role("link", name=name, exact=True).click()
        expect(headline(app_page)).to_contain_text(name)
        expect(app_page.get_by_role("alert")).to_have_count(0)
    app_page.get_by_role("link", name="Lab", exact=True).click()
    expect(app_page.get_by_role("slider").first).to_have_value(chosen)
    expect(app_page).to_have_url(re.compile(r"run="))


def test_change_lambda_run_reload_and_see_the_result(app_page, app_address, request):
    app_page.goto(app_address)
    expect(headline(app_page)).to_contain_text("experts reach")
    before = headline(app_page).inner_text()
    settle(app_page)
    app_page.get_by_text("Images and seeds").click()
    images = app_page.get_by_role("spinbutton", name="Images a task, at most")
    images.fill("40")
    images.press("Enter")
    expect(app_page.get_by_text("samples per task all → 40")).to_be_visible()
    seeds = app_page.get_by_role("textbox", name="Training seeds")
    seeds.fill("0")
    seeds.press("Enter")
    expect(app_page.get_by_text("→ [0]")).to_be_visible()
    slider = app_page.get_by_role("slider").first
    chosen = press(slider, getattr(request.node, "execution_count", 1))  # a second try finds the first one's result
    expect(app_page.get_by_text("Not run yet")).to_be_visible()

    app_page.get_by_role("button", name="Run", exact=True).click()
    cancel = app_page.get_by_role("button", name="Cancel")
    expect(cancel).to_be_visible()
    expect(app_page.get_by_role("progressbar").first).to_be_visible()
    expect(app_page).to_have_url(re.compile(r"job="))
    expect(headline(app_page)).to_have_text(before)  # the old result stays in the meantime

    app_page.reload()
    expect(cancel).to_be_visible()
    expect(app_page.get_by_text("These settings are running")).to_be_visible()
    expect(slider).to_have_value(chosen)

    expect(cancel).to_have_count(0, timeout=RUN)
    expect(headline(app_page)).not_to_have_text(before)
    expect(app_page.get_by_text(f"Task Arithmetic λ {chosen}").first).to_be_visible()
    expect(app_page).not_to_have_url(re.compile(r"job="))
    expect(app_page.get_by_text("Not run yet")).to_have_count(0)
    expect(app_page.get_by_text("failed")).to_have_count(0)

    after, address = headline(app_page).inner_text(), app_page.url
    expect(app_page.locator("canvas[data-panel]").first).to_be_visible()  # the projection, asked for after the result
    app_page.wait_for_timeout(SETTLED)
    expect(headline(app_page)).to_have_text(after)  # nothing brings the run shown before back
    expect(app_page).to_have_url(address)
