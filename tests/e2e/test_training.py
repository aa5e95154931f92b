"""A newcomer's walk: train two experts by SAFT on the bundled zoo, merge them, and see λ-curves of both kinds."""

import re

import pytest

from tests.e2e.conftest import settle

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]

STEPS, BATCH = 8, 32
WORK = 420_000  # ms that copying or training may take where many work on few cores


def fill(page, name, value):
    field = page.get_by_role("spinbutton", name=name, exact=isinstance(name, str))
    field.fill(str(value))
    field.press("Enter")
    settle(page)


def test_from_the_bundled_zoo_to_curves_of_both_kinds(app_page, app_address):
    app_page.goto(f"{app_address}/zoo?zoo=mini8")
    settle(app_page)
    app_page.get_by_text("Train experts", exact=True).click()
    expect(app_page.get_by_text("stays as it is")).to_be_visible()
    app_page.get_by_role("button", name="Make a copy to train in").click()
    train = app_page.get_by_role("button", name=re.compile("^Train (the|[0-9]+) expert"))
    expect(train).to_be_visible(timeout=WORK)
    expect(app_page).to_have_url(re.compile("mini8-trained"))
    expect(app_page.get_by_text("SAM that climbs further along large weights")).to_be_visible()
    tasks = app_page.get_by_role("combobox", name=re.compile("Tasks"))
    for _ in range(6):
        tasks.press("Backspace")
        settle(app_page)
    expect(app_page.get_by_text("In the zoo: digits-saft, signs-saft")).to_be_visible()
    fill(app_page, "Steps", STEPS)
    fill(app_page, "Batch size", BATCH)
    expect(app_page.get_by_text(re.compile("About .* for 2 experts"))).to_be_visible()
    train.click()
    expect(app_page.get_by_role("button", name="Cancel")).to_be_visible()
    expect(app_page.get_by_text("2 experts in the zoo")).to_be_visible(timeout=WORK)
    app_page.get_by_role("button", name="Merge them in the lab").click()
    expect(app_page.get_by_role("heading", level=1)).to_contain_text("experts reach")
    settle(app_page)
    app_page.get_by_text("Images and seeds").click()
    fill(app_page, re.compile("Images a task"), 24)
    seeds = app_page.get_by_role("textbox", name="Training seeds")
    seeds.fill("0")
    seeds.press("Enter")
    settle(app_page)
    app_page.get_by_role("button", name="Run", exact=True).click()
    expect(app_page.get_by_role("button", name="Cancel")).to_be_visible()
    expect(app_page.get_by_role("button", name="Cancel")).to_have_count(0, timeout=WORK)
    expect(app_page.get_by_text("mini8-trained").first).to_be_visible()
    app_page.get_by_role("link", name="Before merging", exact=True).click()
    expect(app_page.get_by_role("heading", level=1)).to_contain_text("trained")
    follow = app_page.get_by_role("button", name="Follow λ")
    curves = app_page.locator(".js-plotly-plot:not([class*='st-key-example'] *)")
    expect(follow.or_(curves).or_(app_page.get_by_role("button", name="Cancel")).first).to_be_visible()
    if follow.is_visible():  # a machine on which it takes a moment only is not asked
        follow.click()
    expect(curves.first).to_be_visible(timeout=WORK)
    legend = curves.locator(".legendtext")
    for kind in ("SAFT", "Standard"):
        expect(legend.filter(has_text=kind).first).to_be_visible()
    expect(legend.filter(has_text="linearised").first).to_be_visible()
    expect(app_page.get_by_role("alert")).to_have_count(0)
