"""Lessons: everything that they name exists, every number that was measured is found, every answer follows from one."""

import pytest

from engine.catalog.titles import ROWS
from engine.errors import RecipeError, StoreError
from engine.lessons import Lesson, Numbers, Prediction, check_lesson, lesson_names, quoted, read_lesson, shipped_results
from engine.lessons.numbers import places_in
from engine.lessons.spec import FOLDER, Control, Step
from engine.manifest import ASSETS
from engine.report import read_report

CASES = {"options": ("low", "high"), "question": "?", "because": "So."}


@pytest.fixture(params=lesson_names())
def lesson(request):
    return read_lesson(request.param)


@pytest.fixture
def numbers(lesson):
    return Numbers(read_report(ASSETS / "examples" / lesson.run), shipped_results(quoted(lesson)))


def test_the_lessons_are_in_order_and_each_has_a_place_of_its_own():
    names = lesson_names()
    assert names[0] == "what-merging-breaks"
    orders = [read_lesson(name).order for name in names]
    assert orders == sorted(set(orders))


def test_everything_that_a_lesson_names_exists(lesson):
    found, problems = check_lesson(FOLDER / f"{lesson.name}.yaml")
    assert found == lesson
    assert [str(problem) for problem in problems if problem.fault] == []


def test_a_papers_venue_is_the_same_in_lessons_and_in_the_catalog(lesson):
    venue = lesson.paper.partition("; ")[0].rpartition(", ")[2]
    for row in ROWS.values():
        if lesson.url and row.url == lesson.url:
            assert f", {venue}, " in row.source, row.name


def test_every_number_of_what_was_measured_is_there(lesson, numbers):
    for step in lesson.steps:
        for place in numbers.missing(step):
            name, point, *_ = place.split(".")
            assert name != "run", place
            result = numbers.results.get(name)
            assert result is None or any(one.name == point and one.failed for one in result.points), place
        for _, text in step.texts():
            assert not places_in(numbers.fill(text))
        if step.predict and numbers.decided(step.predict):
            right = numbers.answer(step.predict)
            assert numbers.fill(step.predict.because_of(right))
            assert 0 <= right < len(step.predict.options)


def test_each_lesson_asks_and_ends_in_free_exploration(lesson):
    assert sum(step.predict is not None for step in lesson.steps) >= 2
    assert lesson.steps[-1].title == "Now you"


def test_a_wrong_lesson_is_refused():
    with pytest.raises(RecipeError, match="Did you mean 'uncertainty'"):
        read_lesson("uncertainity")
    with pytest.raises(ValueError, match="2 options need 1 edges"):
        Prediction.model_validate({**CASES, "value": "run.average.merged.in", "edges": [1, 2]})
    with pytest.raises(ValueError, match="decided either"):
        Prediction.model_validate(CASES)
    with pytest.raises(ValueError, match="one number an option"):
        Prediction.model_validate({**CASES, "largest": ["a.b.c"]})
    with pytest.raises(ValueError, match="one for each of the 2 options"):
        Prediction.model_validate({**CASES, "largest": ["a.b.c", "a.b.d"], "because": ["One."]})
    presets = [{"label": "a", "point": "a"}, {"label": "b", "point": "b"}]
    with pytest.raises(ValueError, match="there are 2 presets"):
        Control.model_validate({"label": "", "experiment": "e", "measures": ["m"], "presets": presets, "start": 2})
    with pytest.raises(ValueError, match="needs a measure"):
        Step.model_validate({"title": "", "text": "", "figure": "points", "experiment": "scaling"})
    with pytest.raises(ValueError, match="those of the figure 'accuracy'"):
        Step.model_validate({"title": "", "text": "", "figure": "bias", "states": ["merged"]})
    with pytest.raises(ValueError, match="at least 5 items"):
        Lesson.model_validate(
            {"name": "a", "order": 1, "title": "", "summary": "", "run": "", "paper": "", "steps": []}
        )


def test_places_are_looked_up_and_answers_follow():
    report = read_report(ASSETS / "examples" / "task-arithmetic")
    numbers = Numbers(report, {})
    within = report.average["merged"].within
    assert numbers.fill("{run.average.merged.in} and {run.average.merged.in:0}") == f"{within:.1f} and {within:.0f}"
    assert numbers.fill(r"\mathrm{ReLU}(x)") == r"\mathrm{ReLU}(x)"
    assert numbers.fill("{run.experts:0} experts") == f"{len(report.experts)} experts"
    inside = report.tasks_of("in")
    mean = sum(report.bias["merged"].l1[task] for task in inside) / len(inside)
    assert numbers.value("run.bias.merged.l1") == pytest.approx(mean)
    asked = Prediction.model_validate({**CASES, "value": "run.average.merged.in", "edges": [within]})
    assert numbers.answer(asked) == 1
    by_size = {**CASES, "largest": ["run.average.expert.in", "run.average.merged.in"], "because": ["Up.", "Down."]}
    ordered = Prediction.model_validate(by_size)
    assert ordered.because_of(numbers.answer(ordered)) == "Up."
    assert numbers.right(ordered) == [0]
    assert numbers.right(Prediction.model_validate({**by_size, "near": 100})) == [0, 1]
    with pytest.raises(StoreError, match=r"scaling\.at_030\.accuracy"):
        numbers.value("scaling.at_030.accuracy")


def test_what_was_not_measured_is_a_dash_and_decides_nothing():
    numbers = Numbers(read_report(ASSETS / "examples" / "task-arithmetic"), {})
    step = read_lesson("what-merging-breaks").steps[2]
    assert not numbers.decided(step.predict)
    assert "scaling.at_010.accuracy" in numbers.missing(step)
    assert numbers.fill("{scaling.at_010.accuracy} % and {-scaling.at_010.l1:2}") == "– % and –"


def test_the_networks_of_the_lesson_on_matching_came_out_as_their_controls_demand():
    result = shipped_results(["re-basin"])["re-basin"]
    assert all(len(point.seeds) == 5 and not point.failed for point in result.points)
    assert result.cell("unshuffled", "found").values == (100.0,) * 5
    assert result.cell("unshuffled", "barrier").mean < 1e-4 < result.cell("shuffled", "barrier").mean
