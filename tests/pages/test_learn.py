"""Lessons: the list, predictions right and wrong, steps, the classroom."""

import pytest

from engine.lessons import lesson_names, read_lesson
from engine.manifest import ASSETS

FIRST = "what-merging-breaks"


def texts(app):
    kinds = ("markdown", "caption", "title", "success", "warning", "error")
    return "\n".join(item.value for kind in kinds for item in getattr(app, kind)).replace("\\", "")


@pytest.fixture
def lesson_app(open_app, workspace, monkeypatch):
    """A lesson opened at a step, on the examples that come with the app."""
    monkeypatch.setattr("pages.shared.state.EXAMPLES", ASSETS / "examples")

    def start(lesson, step):
        app = open_app("learn")
        app.query_params["lesson"] = lesson
        app.query_params["step"] = str(step)
        return app.run()

    return start


def test_all_lessons_are_listed_and_start(lesson_app):
    app = lesson_app("nothing", 1)
    assert not app.exception
    for name in lesson_names():
        assert read_lesson(name).title in texts(app)
    app.button(key=f"learn.start.{FIRST}").click().run()
    assert app.title[0].value == read_lesson(FIRST).steps[0].title


@pytest.mark.parametrize("name", lesson_names())
def test_every_step_of_every_lesson_is_drawn(lesson_app, name):
    app = lesson_app(name, 1)
    for number, step in enumerate(read_lesson(name).steps, 1):
        assert not app.exception
        assert not app.error
        assert app.title[0].value.replace("\\", "") == step.title
        assert "{" not in "".join(item.value for item in app.markdown)
        if number < len(read_lesson(name).steps):
            app.button(key="learn.next").click().run()
    assert app.button(key="learn.lab")


def test_a_prediction_comes_before_its_answer_and_is_set_beside_it(lesson_app):
    app = lesson_app(FIRST, 3)
    asked = read_lesson(FIRST).steps[2].predict
    assert not app.get("select_slider")
    assert "measured was" not in texts(app)
    app.button_group(key=f"learn.answer.{FIRST}.3").set_value(3).run()  # λ = 1.0 is wrong
    assert "measured was" in texts(app)
    assert asked.options[1] in texts(app)
    assert app.select_slider(key=f"learn.control.{FIRST}.3")
    app.button_group(key=f"learn.answer.{FIRST}.3").set_value(1).run()
    assert "and so it is" in texts(app)


def test_a_control_shows_what_was_measured_at_its_preset(lesson_app):
    app = lesson_app(FIRST, 3)
    app.button_group(key=f"learn.answer.{FIRST}.3").set_value(1).run()
    before = [item.value for item in app.metric]
    app.select_slider(key=f"learn.control.{FIRST}.3").set_value(6).run()
    assert not app.exception
    assert [item.value for item in app.metric] != before


def test_a_step_that_does_not_exist_is_the_nearest_one(lesson_app):
    assert lesson_app(FIRST, 99).title[0].value == "Now you"


def test_the_classroom_is_part_of_the_address(lesson_app):
    app = lesson_app(FIRST, 2)
    app.toggle(key="learn.class").set_value(True).run()
    assert not app.exception
    assert app.query_params["class"] in ("1", ["1"])
