"""From a bar, a cell and an image to the causes: in at most three clicks, by keyboard, in the dark, on a phone."""

import re

import pytest

from tests.e2e.conftest import settle

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ANSWERS = (
    "of 500 images the expert knows",
    "The merged feature is",
    "Read out after every block",
    "gains most",
    "put back into the merged model",
    "look at the same places",
    "helps most",
)
PICTURES = "[data-testid=stPlotlyChart] .main-svg"


def answered(page):
    """Wait for the seven answers; returns their cards."""
    cards = page.locator("[class*=st-key-answer-]")
    expect(cards).to_have_count(7)
    for number in range(7):
        expect(cards.nth(number).locator(PICTURES).first).to_be_visible()
    settle(page)
    return cards


def test_a_click_on_a_bar_answers_why_with_seven_pictures(app_page, app_address):
    app_page.goto(f"{app_address}/accuracy?run=task-arithmetic")
    chart = app_page.locator("[class*=st-key-accuracy-bars]").first
    expect(chart.locator(".bars .point").first).to_be_visible()
    settle(app_page)
    merged = chart.locator(".barlayer .trace").nth(1)  # pretrained, merged …
    merged.locator(".point").nth(4).click(force=True)  # below the layer that notes drags; vehicles: the fifth task
    expect(app_page.get_by_role("heading", name=re.compile("Why does Vehicles lose 65.4 points"))).to_be_visible()
    cards = answered(app_page)
    for number, text in enumerate(ANSWERS):
        expect(cards.nth(number).get_by_text(re.compile(text)).first).to_be_visible()
    expect(app_page).to_have_url(re.compile("task=vehicles"))
    worst = cards.nth(0).locator(".bars .point").last  # the class that loses most is drawn on top
    worst.click(force=True)
    expect(app_page.get_by_role("heading", name=re.compile(r"^What happens to .+ \(Vehicles\)\?$"))).to_be_visible()
    expect(app_page).to_have_url(re.compile("class="))


def test_a_click_on_a_cell_answers_for_its_class(app_page, app_address):
    app_page.goto(f"{app_address}/accuracy?run=task-arithmetic&task=vehicles")
    chart = app_page.locator("[class*=st-key-accuracy-confusion-merged]").first
    expect(chart.locator(".scatterlayer .point").first).to_be_attached()
    settle(app_page)
    cells = chart.locator(".heatmaplayer image")
    cells.scroll_into_view_if_needed()
    box = cells.bounding_box()
    app_page.mouse.click(box["x"] + box["width"] * 0.55, box["y"] + box["height"] * 0.25)
    expect(app_page.get_by_role("heading", name=re.compile(r"^What happens to .+ \(Vehicles\)\?$"))).to_be_visible()


def test_one_image_goes_through_all_seven_answers(app_page, app_address):
    app_page.goto(f"{app_address}/diagnose?run=task-arithmetic&task=vehicles&images=1")
    cards = answered(app_page)
    expect(cards.nth(0).get_by_text("A picture of pickup: the expert says pickup")).to_be_visible()
    expect(cards.nth(3).get_by_text(re.compile("the chosen image gains most"))).to_be_visible()
    for number in range(7):
        expect(cards.nth(number).get_by_text(re.compile("n = 1 of 1 "))).not_to_have_count(0)
    with app_page.expect_download() as download:
        app_page.get_by_role("button", name="Save this diagnosis").click()
    text = download.value.path().read_text("utf-8")
    assert text.count("<h2>") >= 9
    assert "http" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL).replace("http-equiv", "")


@pytest.mark.parametrize("width", [390])
def test_by_keyboard_in_the_dark_on_a_phone(profile, app_address, width):
    page = profile(viewport={"width": width, "height": 844}, color_scheme="dark").new_page()
    page.goto(f"{app_address}/diagnose?run=task-arithmetic")
    answered(page)
    page.get_by_role("combobox", name="Class").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.type("boat")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="What happens to boat (Vehicles)?")).to_be_visible()
    answered(page)
    joined = page.get_by_role("radio", name="Joined")
    joined.focus()
    page.keyboard.press("Space")
    expect(page.get_by_text(re.compile("against the merge of the task's own expert alone"))).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()
