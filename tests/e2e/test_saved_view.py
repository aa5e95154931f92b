"""Pictures saved of the linked feature view, and films of tasks without accuracies, in a real browser."""

import re
from itertools import groupby
from xml.etree import ElementTree

import pytest

from tests.e2e.conftest import SVG, saved
from tests.e2e.test_scatter import RIGHT_SIDE, address, drag, selected, view, visit  # noqa: F401

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = pytest.mark.browser

WRITTEN = """() => {
    const { fillText } = CanvasRenderingContext2D.prototype;
    globalThis.written = [];
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        globalThis.written.push(text);
        return fillText.call(this, text, ...rest);
    };
}"""


def marks_of(page, panel: str) -> list[tuple[str, dict[str, str]]]:
    """Save the view and return the marks of a panel in the order in which they are drawn, by tag."""
    picture = ElementTree.fromstring(saved(page, "SVG"))
    (part,) = [part for part in picture.findall(f"{SVG}g") if part.find(f"{SVG}text").text.startswith(panel)]
    return [(mark.tag.removeprefix(SVG), mark.attrib) for mark in part.find(f"{SVG}g")]


def drawn_groups(marks: list[tuple[str, dict[str, str]]]) -> list[tuple[str, float, float, int]]:
    """Return what follows each other in a picture: tag, radius or width, opacity, and how many."""
    looks = [
        (
            tag,
            float(mark.get("r", mark.get("stroke-width"))),
            float(mark.get("fill-opacity", mark.get("stroke-opacity"))),
        )
        for tag, mark in marks
        if tag != "text"
    ]
    return [(*look, len(list(alike))) for look, alike in groupby(looks)]


def test_a_saved_morph_is_drawn_as_the_screen_is(visit):  # noqa: F811
    """Greyed points, trails, the other points, trails of selected points, and those with their rim above all."""
    page = visit("morph=1")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("slider", name="Position between the states").evaluate(
        "(slider) => { slider.value = '0.4'; slider.dispatchEvent(new Event('input')) }"
    )
    page.get_by_role("button", name="letters").click()
    greyed, trails, plain = drawn_groups(marks_of(page, "Morph"))
    assert [(tag, count) for tag, *_, count in (greyed, trails, plain)] == [
        ("circle", 700),
        ("polyline", 100),
        ("circle", 100),
    ]
    _, radius, alpha, _ = plain
    assert greyed[1:3] == (pytest.approx(0.85 * radius, abs=0.01), pytest.approx(0.3 * alpha, abs=0.01))
    assert trails[1:3] == (1, pytest.approx(0.35, abs=0.01))
    bends = [mark["points"].count(" ") for tag, mark in marks_of(page, "Morph") if tag == "polyline"]
    assert set(bends) == {1}, "from the first state to where each point is"

    drag(page, "Expert", RIGHT_SIDE)
    count = selected(page)
    assert 0 < count < 100
    marks = marks_of(page, "Morph")
    behind, under, faded, over, *above = drawn_groups(marks)
    assert (behind, under[2:]) == (greyed, (0.05, 100))
    assert faded[1:] == (radius, pytest.approx(0.2 * alpha, abs=0.01), 100 - count)
    assert over[2:] == (pytest.approx(0.63, abs=0.01), count)
    rims, chosen = above[::2], above[1::2]
    assert rims == [("circle", pytest.approx(1.15 * radius + 1, abs=0.01), 0.9, 1)] * count
    assert chosen == [("circle", pytest.approx(1.15 * radius, abs=0.01), 1, 1)] * count
    assert {mark["opacity"] for tag, mark in marks if tag == "text"} == {"0.6"}
    page.get_by_role("button", name="Go to Expert").click()
    bends = [mark["points"].count(" ") for tag, mark in marks_of(page, "Morph") if tag == "polyline"]
    assert set(bends) == {2}, "through the states passed"


@pytest.mark.parametrize(("kind", "known"), [("graded", True), ("unscored", False)])
def test_a_film_goes_without_accuracies_where_answers_are_numbers(visit, kind, known):  # noqa: F811
    page = visit(f"film={kind}")
    label = page.locator(".film-curve").get_attribute("aria-label")
    assert (
        re.search(r"Merged \d+\.\d %", label) if known else label.endswith(": Merged –; Surgery –; Expert – throughout")
    )
    expect(page.locator(".plot .note").first).to_have_text(
        re.compile(r"^\d.* % in-domain" if known else "^– in-domain")
    )
    assert page.locator(".film-number").first.inner_text() == "–"
    page.evaluate(WRITTEN)
    page.locator(".film-slider").press("ArrowRight")
    expect(view(page)).to_have_attribute("data-frame", "7")
    levels = [text for text in page.evaluate("() => globalThis.written") if text.endswith("%")]
    assert all(re.fullmatch(r"\d+ %", level) for level in levels)
    assert bool(levels) == known


def test_so_many_selected_points_as_have_no_rim_on_the_screen_have_none_in_a_picture(visit):  # noqa: F811
    page = visit("n=8000&thumbs=0")
    drag(page, "Merged", [(0.01, 0.01), (0.99, 0.99)])
    page.get_by_role("button", name="Save", exact=True).click()
    (chosen,) = [group for group in drawn_groups(marks_of(page, "Merged")) if group[2] > 0.8]
    assert chosen[2:] == (1, selected(page))
    assert selected(page) > 6000
