"""Visits from end to end: a lesson, a comparison, a copied link, a mask, a visit by keyboard alone."""

import csv
import re
from pathlib import Path

import pytest

from tests.e2e.conftest import PAINTED, Watch, settle

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LESSON = "what-merging-breaks"


def headline(page):
    return page.get_by_role("heading", level=1)


def test_a_lesson_from_start_to_end_with_a_wrong_and_a_right_prediction(app_page, app_address):
    app_page.goto(f"{app_address}/learn")
    expect(headline(app_page)).to_have_text("Learn")
    settle(app_page)
    app_page.get_by_role("button", name="Start").first.click()
    expect(headline(app_page)).to_have_text("One expert a task")
    expect(app_page).to_have_url(re.compile(f"lesson={LESSON}.*step=1"))
    expect(app_page.get_by_role("button", name="Back")).to_be_disabled()

    settle(app_page)  # until then nothing listens to keys
    headline(app_page).click()
    app_page.keyboard.press("n")  # the key steps on
    expect(headline(app_page)).to_have_text("One model instead of many")
    settle(app_page)
    expect(app_page.get_by_text("Choose one; then the measured answer appears.")).to_be_visible()
    expect(app_page.locator(".js-plotly-plot")).to_have_count(0)  # the answer is not given away
    app_page.get_by_role("radio", name="above 80 %").click()
    verdict = app_page.get_by_test_id("stAlert")
    expect(verdict).to_contain_text("You said above 80 %; measured was")
    right = re.search(r"measured was ([^.]+)\.", verdict.inner_text())[1]
    expect(app_page.locator(".js-plotly-plot").first).to_be_visible()
    app_page.get_by_role("radio", name=right).click()
    expect(verdict).to_contain_text(f"You said {right}, and so it is.")

    settle(app_page)
    headline(app_page).click()
    app_page.keyboard.press("b")
    expect(headline(app_page)).to_have_text("One expert a task")
    settle(app_page)
    app_page.keyboard.press("n")
    expect(verdict).to_contain_text("and so it is")  # the answer is remembered
    app_page.reload()
    expect(headline(app_page)).to_have_text("One model instead of many")

    titles = []
    for _ in range(5):
        settle(app_page)  # until then the button of the step before is there too
        app_page.get_by_role("button", name="Next").click()
        expect(headline(app_page)).not_to_have_text(titles[-1] if titles else "One model instead of many")
        titles.append(headline(app_page).inner_text())
    assert titles == ["How much to add", "Where the accuracy went", "A small repair", "Is it repair?", "Now you"]
    settle(app_page)
    app_page.get_by_role("button", name="Open this run in the Lab").click()
    expect(headline(app_page)).to_contain_text("experts reach")
    expect(app_page).to_have_url(re.compile(r"run=task-arithmetic(&|$)"))


def test_compare_two_runs_and_export(app_page, app_address):
    app_page.goto(f"{app_address}/compare?runs=task-arithmetic,ties")
    expect(headline(app_page)).to_have_text("Runs side by side")
    expect(app_page.get_by_role("heading", name="What differs in the recipes")).to_be_visible()
    expect(app_page.get_by_role("listitem").filter(has_text=re.compile("^[AB] ?"))).to_have_count(2)
    with app_page.expect_download() as caught:
        app_page.get_by_role("button", name=re.compile("Comparison, CSV")).click()
    rows = list(csv.reader(Path(caught.value.path()).read_text("utf-8").splitlines()))
    assert caught.value.suggested_filename.endswith(".csv")
    text = " ".join(" ".join(row) for row in rows)
    assert "Task Arithmetic" in text
    assert "TIES" in text
    assert "digits" in text.lower()
    with app_page.expect_download() as caught:
        app_page.get_by_role("button", name=re.compile("Report of B")).click()
    document = Path(caught.value.path()).read_text("utf-8")
    assert document.lstrip().lower().startswith("<!doctype html>")
    assert "TIES" in document
    expect(app_page.get_by_role("alert")).to_have_count(0)


def test_a_copied_link_opens_the_same_view_in_another_browser(app_page, app_address, chromium):
    app_page.goto(f"{app_address}/representations?run=ties")
    expect(app_page.locator("canvas[data-panel]").first).to_be_visible()
    settle(app_page)
    app_page.get_by_role("radio", name="Shift").click()
    expect(app_page).to_have_url(re.compile(r"colour="))
    app_page.get_by_role("combobox", name="Show", exact=True).click()
    app_page.get_by_role("option", name="Handwritten digits").click()
    expect(app_page.get_by_text(re.compile(r"of them shown"))).to_be_visible()
    expect(app_page).to_have_url(re.compile("digits"))
    settle(app_page)  # the address comes before what it names is drawn
    caption = app_page.get_by_text("of them shown").inner_text()

    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    other, watch = context.new_page(), Watch()
    watch.follow(other)
    other.goto(app_page.url)
    expect(other.get_by_text("of them shown")).to_have_text(caption)
    expect(other.get_by_role("combobox", name="Run shown")).to_have_value(re.compile("TIES"))
    expect(other).to_have_url(app_page.url)
    context.close()
    assert not watch.problems


def test_in_the_classroom_a_figure_fits_the_page_and_comes_before_the_text(app_page, app_address):
    app_page.goto(f"{app_address}/learn?lesson=what-merging-breaks&step=1&class=1")
    figure, page = app_page.locator(".js-plotly-plot .main-svg").first, app_page.get_by_test_id("stMainBlockContainer")
    expect(figure).to_be_visible()
    settle(app_page)
    inside, around = figure.bounding_box(), page.bounding_box()
    assert around["x"] <= inside["x"]
    assert inside["x"] + inside["width"] <= around["x"] + around["width"]
    assert inside["width"] > 0.8 * around["width"]
    assert inside["y"] < app_page.get_by_text("started from the same pretrained model").bounding_box()["y"]
    expect(app_page.get_by_test_id("stHeader")).to_be_hidden()


def test_another_pruning_ratio_gives_another_mask(app_page, app_address):
    app_page.goto(f"{app_address}/salience")
    slider = app_page.get_by_role("slider", name="Pruning ratio η")
    kept = app_page.get_by_test_id("stMetric").filter(has_text="Parameters kept")
    expect(kept).to_contain_text("%")
    before, heading = kept.inner_text(), headline(app_page).inner_text()
    slider.focus()
    slider.press("End")
    expect(kept).not_to_have_text(before)
    expect(kept).to_contain_text("0.0 %")
    expect(app_page.get_by_text(re.compile("Layers kept at η = 1.00"))).to_be_visible()
    slider.press("Home")
    expect(kept).to_contain_text("100.0 %")
    expect(app_page.get_by_text(re.compile("Layers kept at η = 0.00"))).to_be_visible()
    assert headline(app_page).inner_text() == heading


FOCUSED = """() => {
    let found = document.activeElement;
    while (found.shadowRoot?.activeElement) found = found.shadowRoot.activeElement;
    return (found.ariaLabel || found.innerText).trim().split('\\n').at(-1);  // icons come before words
}"""


def tab_to(page, name: str, most: int) -> None:
    """Press Tab until something of this name has the focus."""
    passed = []
    while len(passed) < most and name not in passed:
        page.keyboard.press("Tab")
        passed.append(page.evaluate(FOCUSED))
    assert passed[-1] == name, passed


def test_the_first_page_by_keyboard_alone(app_page, app_address):
    app_page.goto(app_address)
    expect(app_page.locator(".js-plotly-plot").first).to_be_visible()
    settle(app_page)
    tab_to(app_page, "Skip to main content", 1)
    tab_to(app_page, "Run", 3)
    tab_to(app_page, "Scaling coefficient λ", 8)
    before = app_page.get_by_role("slider").first.input_value()
    app_page.keyboard.press("ArrowRight")
    expect(app_page.get_by_text("Not run yet")).to_be_visible()
    expect(app_page.get_by_role("slider").first).not_to_have_value(before)

    app_page.reload()
    expect(app_page.locator(".js-plotly-plot").first).to_be_visible()
    settle(app_page)
    tab_to(app_page, "Skip to main content", 1)
    app_page.keyboard.press("Enter")  # past the recipe and the list of pages
    tab_to(app_page, "Run shown", 2)
    tab_to(app_page, "Linked feature view", 60)
    app_page.keyboard.press("ArrowRight")
    expect(app_page.get_by_role("status").filter(has_text="True class")).to_be_attached()


SAVES = """[...document.querySelectorAll('.js-plotly-plot')].map(
    (plot) => plot._context.toImageButtonOptions.format
)"""  # the formats that the page's figures would be saved in


def test_a_figure_is_saved_as_svg_and_as_png(app_page, app_address):
    app_page.goto(f"{app_address}/calibrate")
    settle(app_page)
    figure = app_page.get_by_role("figure").first
    camera = figure.get_by_role("button", name="Download plot")
    for form, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        if form == "PNG":
            app_page.get_by_text("Table and download").first.click()
            app_page.get_by_role("radio", name="PNG, for slides").click()
            app_page.wait_for_function("() => !SAVES.includes('svg')".replace("SAVES", SAVES))
        settle(app_page)  # a figure that is drawn anew loses the pointer
        figure.hover()
        with app_page.expect_download() as caught:
            camera.click()
        assert caught.value.suggested_filename.endswith(f".{form.lower()}")
        assert Path(caught.value.path()).read_bytes().startswith(start)


def test_a_brush_a_worklist_and_the_inspector_agree_on_the_images(app_page, app_address):
    app_page.goto(f"{app_address}/representations?run=task-arithmetic")
    view = app_page.locator(".scatter[data-draw-ms]")
    expect(view).to_be_visible()
    settle(app_page)
    app_page.get_by_role("button", name="Lasso").click()
    area = app_page.locator(".points[data-panel='Merged'] + .overlay")
    box = area.bounding_box()
    corners = [(0.1, 0.1), (0.9, 0.1), (0.9, 0.6), (0.1, 0.6)]
    spots = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in corners]
    app_page.mouse.move(*spots[0])
    app_page.mouse.down()
    for spot in spots[1:]:
        app_page.mouse.move(*spot, steps=3)
    app_page.mouse.up()
    app_page.evaluate(PAINTED)
    count = int(view.get_attribute("data-selected"))
    assert 10 < count < 320
    expect(app_page.get_by_role("heading", name=f"{count} images selected")).to_be_visible()
    expect(app_page.get_by_role("img", name=re.compile("^An image of"))).to_have_count(12)

    worklist = app_page.get_by_role("button", name=re.compile(r"^Repaired by ProbSurgery \([\d,]+; \d+ shown\)"))
    repaired = int(re.search(r"; (\d+) shown\)", worklist.inner_text())[1])
    worklist.click()
    expect(view).to_have_attribute("data-selected", str(repaired))
    expect(app_page.get_by_role("heading", name=f"{repaired} images selected")).to_be_visible()
    settle(app_page)
    app_page.get_by_text("Table and download").first.click()
    with app_page.expect_download() as caught:
        app_page.get_by_role("button", name="Download CSV").first.click()
    rows = list(csv.DictReader(Path(caught.value.path()).read_text("utf-8").splitlines()))
    assert len(rows) == repaired
    assert all(row["merged prediction"] != row["true class"] for row in rows)


def test_a_link_to_brushed_images_selects_them_in_another_browser(app_page, app_address, chromium):
    app_page.goto(f"{app_address}/representations?run=task-arithmetic")
    view = app_page.locator(".scatter[data-draw-ms]")
    expect(view).to_be_visible()
    settle(app_page)
    area = app_page.locator(".points[data-panel='Merged'] + .overlay")
    box = area.bounding_box()
    app_page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.2 * box["height"])
    app_page.mouse.down()
    app_page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.5 * box["height"], steps=3)
    app_page.mouse.up()
    selected = app_page.get_by_role("heading", name=re.compile("^[0-9]+ images? selected"))
    expect(selected).to_be_visible()
    expect(app_page).to_have_url(re.compile("picked="))
    brushed = view.get_attribute("data-selected")
    expect(selected).to_have_text(re.compile(rf"^{brushed} images? selected"))
    settle(app_page)

    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    other = context.new_page()
    other.goto(app_page.url)
    expect(other.locator(".scatter[data-draw-ms]")).to_have_attribute("data-selected", brushed)
    expect(other.get_by_role("heading", name=selected.inner_text())).to_be_visible()
    context.close()

    app_page.get_by_role("button", name="Clear").click()
    expect(selected).to_have_count(0)
    expect(app_page).not_to_have_url(re.compile("picked="))


def test_the_first_page_leads_to_the_drift_a_broken_image_and_a_layer(app_page, app_address):
    def ask(question):
        app_page.goto(app_address)
        expect(app_page.locator(".scatter[data-draw-ms]")).to_be_visible()
        settle(app_page)
        app_page.get_by_role("link", name=re.compile(question)).click()
        expect(headline(app_page)).not_to_contain_text("experts reach")

    ask("How far did the features of Vehicles drift")
    expect(app_page.get_by_text(re.compile("The merged feature is .* from the expert's"))).to_be_visible()
    expect(app_page.get_by_text(re.compile("Read out after every block"))).to_be_visible()

    ask("Which images did ProbSurgery break")
    cards = app_page.get_by_role("img", name=re.compile("^An image of"))
    expect(cards.first).to_be_visible()
    selected = app_page.get_by_role("heading", name=re.compile("^[0-9]+ images? selected"))
    settle(app_page)
    assert int(selected.inner_text().split()[0]) == cards.count()
    expect(app_page).to_have_url(re.compile("list=broken"))
    app_page.get_by_role("button", name="Neighbours").first.click()
    expect(app_page.get_by_text("Nearest in feature space")).to_be_visible()
    expect(app_page).not_to_have_url(re.compile("list=broken"))

    ask("Which layer matters most")
    expect(app_page.get_by_text(re.compile("^To .* the layer .* matters most"))).to_be_in_viewport()
    app_page.get_by_role("combobox", name="Expert").click()
    app_page.get_by_role("option", name="Vehicles", exact=True).click()
    expect(app_page.get_by_text(re.compile("^To Vehicles the layer .* matters most"))).to_be_visible()
