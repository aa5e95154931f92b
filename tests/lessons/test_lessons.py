"""Lessons: every number they ask for was measured, every answer follows from one."""

import pytest

from engine.errors import RecipeError, StoreError
from engine.experiments import read_experiment, read_result
from engine.experiments.spec import FOLDER as EXPERIMENTS
from engine.lessons import Lesson, Numbers, Prediction, lesson_names, read_lesson
from engine.manifest import ASSETS
from engine.report import read_report

CASES = {"options": ("low", "high"), "question": "?", "because": "So."}


def experiments_of(lesson):
    known = {path.stem for path in EXPERIMENTS.glob("*.yaml")}
    numbers = Numbers(read_report(ASSETS / "examples" / lesson.run), {})
    texts = [text for step in lesson.steps for text in texts_of(step)]
    named = {place.split(".")[0] for text in texts for place in numbers.places(text)}
    for step in lesson.steps:
        named |= {step.experiment} if step.experiment else set()
        named |= {step.control.experiment} if step.control else set()
        for place in (step.predict.value, step.predict.minus, *step.predict.largest) if step.predict else ():
            named |= {place.split(".")[0]} if place else set()
    return named & known, named - known - {"run"}


def texts_of(step):
    yield from (step.text, step.equation, step.after)
    if step.predict:
        yield from (step.predict.question, step.predict.because, *step.predict.options)


@pytest.fixture(params=lesson_names())
def lesson(request):
    return read_lesson(request.param)


@pytest.fixture
def numbers(lesson):
    names, unknown = experiments_of(lesson)
    assert unknown == set()
    results = {name: read_result(EXPERIMENTS / f"{name}.json") for name in names}
    return Numbers(read_report(ASSETS / "examples" / lesson.run), results)


def test_there_are_five_lessons_in_order():
    assert len(lesson_names()) >= 5
    assert lesson_names()[0] == "what-merging-breaks"


def test_every_number_was_measured(lesson, numbers):
    for step in lesson.steps:
        for text in texts_of(step):
            filled = numbers.fill(text)
            assert not numbers.places(filled)
        if step.predict:
            assert 0 <= numbers.answer(step.predict) < len(step.predict.options)
        if step.control:
            for preset in step.control.presets:
                for measure in step.control.measures:
                    numbers.value(f"{step.control.experiment}.{preset.point}.{measure}")
        if step.figure == "points":
            spec = read_experiment(step.experiment)
            assert step.measure in [measure.name for measure in spec.measures]


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
    mean = sum(report.bias["merged"].l1.values()) / len(report.bias["merged"].l1)
    assert numbers.value("run.bias.merged.l1") == pytest.approx(mean)
    asked = Prediction.model_validate({**CASES, "value": "run.average.merged.in", "edges": [within]})
    assert numbers.answer(asked) == 1
    by_size = {**CASES, "largest": ["run.average.expert.in", "run.average.merged.in"]}
    assert numbers.answer(Prediction.model_validate(by_size)) == 0
    with pytest.raises(StoreError, match=r"scaling\.at_030\.accuracy"):
        numbers.value("scaling.at_030.accuracy")
