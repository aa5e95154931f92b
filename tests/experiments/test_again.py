"""Results that are judged again: by other checks, in other words, from the images that were right."""

import pytest

from engine.errors import RecipeError
from engine.experiments import Check, Measure, judge_again, pool
from tests.experiments.made_results import SPEC, result

SIZES = {"d": 128, "w": 128, "blocks": 8}


def asking(*checks, **changes):
    return SPEC.model_copy(update={"checks": checks, **changes})


def barrier(**changes):
    found = {"text": "Left is lower.", "measure": "barrier", "left": "left", "relation": "below", "right": "right"}
    return Check(**{**found, **changes})


@pytest.fixture
def earlier():
    """Return a result whose barriers had values by image, which it does not hold."""
    found = result(1, {"left": 0.9, "right": 0.7})
    lower = found.findings[1].model_copy(update={"basis": "images", "low": 0.03, "high": 0.05, "outcome": "seen"})
    return found.model_copy(update={"findings": (found.findings[0], lower)})


def test_a_result_is_judged_by_the_checks_that_there_are_now(earlier):
    above, below = (
        Check(text=f"Of width {{d}} left is {name}.", measure="accuracy", left="left", relation=name, right="right")
        for name in ("above", "below")
    )
    spec = asking(above, below)
    found = judge_again(spec, earlier, SIZES)
    assert found.form == spec.digest() != earlier.form
    assert [each.outcome for each in found.findings] == ["seen", "opposite seen"]
    assert found.findings[0].text == "Of width 128 left is above."
    assert (found.findings[0].low, found.findings[0].high) == (earlier.findings[0].low, earlier.findings[0].high)
    assert found.verdict == "differs by clause"
    assert judge_again(SPEC, found.model_copy(update={"findings": earlier.findings}), SIZES).verdict == earlier.verdict


def test_points_are_called_as_they_are_now(earlier):
    points = tuple(point.model_copy(update={"title": f"{{d}} {point.name}", "control": True}) for point in SPEC.points)
    found = judge_again(SPEC.model_copy(update={"points": points}), earlier, SIZES)
    assert [(point.title, point.control) for point in found.points] == [("128 left", True), ("128 right", True)]


def test_a_number_without_values_by_image_keeps_the_interval_that_it_had(earlier):
    found = judge_again(asking(barrier(relation="above"), barrier(margin=0.06, relation="near")), earlier, SIZES)
    assert [each.outcome for each in found.findings] == ["seen", "seen"]
    assert {(each.low, each.high, each.basis) for each in found.findings} == {(0.03, 0.05, "images")}
    turned = judge_again(asking(barrier(left="right", right="left")), earlier, SIZES).findings[0]
    assert (turned.outcome, turned.low, turned.high) == ("seen", -0.05, -0.03)
    assert (turned.left, turned.right) == (earlier.findings[1].right, earlier.findings[1].left)
    new = asking(barrier(left="left", right="left"))
    with pytest.raises(RecipeError, match=r"'Left is lower\.' compares numbers whose values by image are not kept"):
        judge_again(new, earlier, SIZES)


def test_what_measures_something_else_is_not_judged_again(earlier):
    assert SPEC.model_copy(update={"claim": "Otherwise."}).measured() == SPEC.measured()
    for changes in ({"base": {"probe": {"samples_per_task": 50}}}, {"seeds": 4}, {"points": SPEC.points[:1]}):
        with pytest.raises(RecipeError, match="not measured with the base, points and seeds"):
            judge_again(SPEC.model_copy(update=changes), earlier, SIZES)
    with pytest.raises(RecipeError, match="cannot be judged again"):
        judge_again(SPEC, earlier.model_copy(update={"measured": ""}), SIZES)


def test_accuracies_of_tasks_are_had_from_the_images_and_other_numbers_are_not(earlier):
    digits = Measure(name="digits", title="Digits", path="accuracy.{state}.digits")
    above = Check(text="Left is above.", measure="digits", left="left", relation="above", right="right")
    found = judge_again(asking(above, measures=(digits,)), earlier, SIZES)
    assert [set(point.cells) for point in found.points] == [{"digits"}, {"digits"}]
    values = [point.cells["digits"].values for point in found.points]
    assert values == [pytest.approx(point.cells["accuracy"].values) for point in earlier.points]
    assert (found.findings[0].outcome, found.findings[0].basis) == ("seen", "images")
    absent = digits.model_copy(update={"path": "accuracy.{state}.nothing"})
    assert judge_again(asking(above, measures=(absent,)), earlier, SIZES).findings[0].outcome == "not measured"
    for changed in (SPEC.measures[1].model_copy(update={"path": "other"}), digits.model_copy(update={"path": "bias"})):
        with pytest.raises(RecipeError, match="The result does not hold"):
            judge_again(asking(measures=(changed,)), earlier, SIZES)


def test_pooled_sets_are_judged_again_where_each_has_one_seed():
    sets = [result(number, {"left": 0.9, "right": 0.7}) for number in (1, 2)]
    pooled = pool(SPEC, sets)
    assert judge_again(SPEC, pooled, SIZES).findings == pooled.findings
    with pytest.raises(RecipeError, match="pools 3 sets of experts with several seeds each"):
        judge_again(SPEC, pooled.model_copy(update={"sets": 3}), SIZES)
