"""Lessons: the list, predictions right and wrong, steps, missing numbers, one's own zoo and files, the classroom."""

import json
from types import SimpleNamespace

import pytest

from engine.lessons import lesson_names, read_lesson
from engine.manifest import ASSETS
from pages.sections import lesson_numbers
from tests.lessons.test_check import GOOD

FIRST = "what-merging-breaks"
NETWORKS = "when-networks-connect"  # its numbers belong to no zoo and come with the app


def texts(app):
    kinds = ("markdown", "caption", "title", "success", "warning", "error", "info")
    return "\n".join(item.value for kind in kinds for item in getattr(app, kind)).replace("\\", "")


@pytest.fixture
def lesson_app(open_app, workspace, monkeypatch):
    """A lesson opened at a step, on the examples that come with the app."""
    monkeypatch.setattr("pages.shared.state.EXAMPLES", ASSETS / "examples")
    monkeypatch.delenv("MERGELENS_LESSONS", raising=False)

    def start(lesson, step):
        app = open_app("learn")
        app.query_params["lesson"] = lesson
        app.query_params["step"] = str(step)
        return app.run()

    return start


@pytest.fixture
def nothing_measured(monkeypatch, tmp_path):
    """As if no experiment had been run."""
    monkeypatch.setattr("engine.lessons.measured.EXPERIMENTS", tmp_path)


def test_all_lessons_are_listed_and_start(lesson_app):
    app = lesson_app("nothing", 1)
    assert not app.exception
    for name in lesson_names():
        assert read_lesson(name).title in texts(app)
    assert "Your own lessons" not in [item.value for item in app.subheader]
    app.button(key=f"learn.start.{FIRST}").click().run()
    assert app.title[0].value == read_lesson(FIRST).steps[0].title


@pytest.mark.parametrize("name", lesson_names())
def test_every_step_of_every_lesson_is_drawn(lesson_app, name):
    app = lesson_app(name, 1)
    steps = read_lesson(name).steps
    for number, step in enumerate(steps, 1):
        assert not app.exception
        assert not app.error
        assert app.title[0].value.replace("\\", "") == step.title
        if step.predict:
            app.button_group(key=f"learn.answer.{name}.{number}").set_value(0).run()
            assert not app.exception
            assert not app.error
        assert "{" not in "".join(item.value for item in app.markdown)
        if number < len(steps):
            app.button(key="learn.next").click().run()
    assert app.button(key="learn.lab")


def test_a_prediction_comes_before_its_answer_and_is_set_beside_it(lesson_app):
    app = lesson_app(NETWORKS, 4)
    asked = read_lesson(NETWORKS).steps[3].predict
    assert not app.get("select_slider")
    assert "measured was" not in texts(app)
    app.button_group(key=f"learn.answer.{NETWORKS}.4").set_value(0).run()  # the narrowest network is wrong
    assert "measured was" in texts(app)
    assert asked.options[2] in texts(app)
    assert app.select_slider(key=f"learn.control.{NETWORKS}.4")
    app.button_group(key=f"learn.answer.{NETWORKS}.4").set_value(2).run()
    assert "and so it is" in texts(app)


def test_a_control_shows_what_was_measured_at_its_preset(lesson_app):
    app = lesson_app(NETWORKS, 4)
    app.button_group(key=f"learn.answer.{NETWORKS}.4").set_value(1).run()
    before = [item.value for item in app.metric]
    app.select_slider(key=f"learn.control.{NETWORKS}.4").set_value(2).run()
    assert not app.exception
    assert [item.value for item in app.metric] != before


def test_a_control_is_a_film_where_the_run_has_one(lesson_app):
    app = lesson_app(FIRST, 3)
    app.button_group(key=f"learn.answer.{FIRST}.3").set_value(1).run()
    assert not app.exception
    assert not app.get("select_slider")
    assert app.button_group(key="filmcolour").value == "correct"
    assert "between two frames points are interpolated" in texts(app)


def test_the_lesson_on_bias_shows_the_film_over_the_rank(lesson_app):
    app = lesson_app("representation-bias", 4)
    app.button_group(key="learn.answer.representation-bias.4").set_value(1).run()
    assert not app.exception
    assert not app.get("select_slider")
    assert "between two frames points are interpolated" in texts(app)


def test_a_lesson_whose_numbers_are_missing_opens_and_says_so(lesson_app, nothing_measured, monkeypatch):
    monkeypatch.setattr("pages.sections.lesson_steps.films_of", lambda run: [])
    app = lesson_app("representation-bias", 4)
    app.button_group(key="learn.answer.representation-bias.4").set_value(1).run()
    assert not app.exception
    assert not app.error
    assert "The answer has not been measured here yet" in texts(app)
    assert "Not measured yet on this zoo: prob-surgery-width" in texts(app)
    assert "python -m engine experiment prob-surgery-width" in texts(app)
    assert {item.value for item in app.metric} == {"–"}


def test_a_lesson_runs_on_ones_own_zoo(lesson_app, workspace):
    merged = {"method": "task_arithmetic", "params": {"scaling": 0.4}}
    row = workspace.finished("Mine", merge=merged)
    workspace.finished("Another method", merge={"method": "weight_average"})
    app = lesson_app(FIRST, 2)
    chooser = app.selectbox(key="on")
    assert len(chooser.options) == 2  # the example, and the run that merges as it does
    app.selectbox(key="on").set_value(row.id).run()
    assert not app.exception
    assert not app.error
    assert "λ = 0.40" in texts(app)
    app.query_params["step"] = "3"
    app.run()
    app.button_group(key=f"learn.answer.{FIRST}.3").set_value(1).run()
    assert "Not measured yet on this zoo: scaling" in texts(app)
    app.button(key="learn.measure").click().run()
    asked = [run.request for run in workspace.store.runs.list(kinds=("experiment",))]
    assert [(one["name"], one["zoo"], one["quick"]) for one in asked] == [("scaling", str(workspace.zoo), True)]


def test_ones_own_lessons_are_listed_and_a_faulty_one_says_what_is_wrong(lesson_app, workspace):
    folder = workspace.store.root / "lessons"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(GOOD, "utf-8")
    (folder / "broken.yaml").write_text(GOOD.replace("title: Mine", "titel: Mine"), "utf-8")
    (folder / "uncertainty.yaml").write_text(GOOD.replace("name: mine", "name: uncertainty"), "utf-8")
    app = lesson_app("nothing", 1)
    assert not app.exception
    assert "Your own lessons" in [item.value for item in app.subheader]
    said = " ".join(item.value for item in app.error).replace("\\", "")
    assert "unknown key 'titel'" in said
    assert "needs a name of its own" in said
    app.button(key="learn.start.mine").click().run()
    assert not app.exception
    assert app.title[0].value == "Half way"
    assert "lesson check broken.yaml" in texts(lesson_app("broken", 1))


def test_a_step_that_does_not_exist_is_the_nearest_one(lesson_app):
    assert lesson_app(FIRST, 99).title[0].value == "Now you"
    for odd in ("²", "9" * 5000, "-1", "x"):
        app = lesson_app(FIRST, odd)
        assert not app.error
        assert app.title[0].value == read_lesson(FIRST).steps[0].title


def test_in_the_classroom_the_figure_comes_first_and_no_navigation(lesson_app):
    app = lesson_app(FIRST, 1)

    def places():
        nodes = list(app.main)
        text = read_lesson(FIRST).steps[0].text.partition("{")[0]
        words = next(at for at, node in enumerate(nodes) if node.type == "markdown" and node.value.startswith(text))
        return next(at for at, node in enumerate(nodes) if node.type == "plotly_chart"), words

    figure, words = places()
    assert figure > words
    assert not hidden(app)
    app.toggle(key="learn.class").set_value(True).run()
    figure, words = places()
    assert figure < words
    assert hidden(app)
    assert not app.exception


def hidden(app):
    return any("stHeader" in item.proto.body and "display: none" in item.proto.body for item in app.get("html"))


def test_no_step_shows_what_a_later_one_asks(lesson_app):
    app = lesson_app(FIRST, 1)
    spec = json.loads(app.get("plotly_chart")[0].proto.spec)
    assert [bar["name"] for bar in spec["data"]] == ["Pretrained", "Expert"]
    app = lesson_app(FIRST, 2)
    assert not app.get("plotly_chart")
    app.button_group(key=f"learn.answer.{FIRST}.2").set_value(1).run()
    spec = json.loads(app.get("plotly_chart")[0].proto.spec)
    assert [bar["name"] for bar in spec["data"]] == ["Pretrained", "Merged", "Expert"]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (
            2,
            "prob-surgery-accuracy on mini8; n = 300–500 test images a task; split seed 0; means over up to 5",
        ),
        (3, "calibrators after 1,000 updates a task"),
        (5, "calibrators after 5,000 updates a task"),
    ],
)
def test_numbers_of_a_step_say_what_they_were_measured_on_and_how_long_calibrators_were_trained(lesson_app, step, said):
    app = lesson_app("uncertainty", step)
    app.button_group(key=f"learn.answer.uncertainty.{step}").set_value(0).run()
    assert not app.exception
    assert texts(app).count(said) == 1


def test_figures_and_numbers_of_a_lessons_run_say_how_it_is_calibrated(lesson_app):
    app = lesson_app("representation-bias", 3)
    app.button_group(key="learn.answer.representation-bias.3").set_value(1).run()
    assert "Surgery (training steps 1000, rank 16), ProbSurgery (training steps 1000, hidden width 128)." in texts(app)
    app = lesson_app("representation-bias", 1)
    assert "Numbers of the run; n = 300–500 of 300–500 test images a task" in texts(app)
    app = lesson_app("representation-bias", 4)
    app.button_group(key="learn.answer.representation-bias.4").set_value(1).run()
    assert "Experiment prob-surgery-width" in texts(app)
    assert "calibrators after 1,000 or 5,000 updates a task" in texts(app)


def test_the_classroom_is_part_of_the_address(lesson_app):
    app = lesson_app(FIRST, 2)
    app.toggle(key="learn.class").set_value(True).run()
    assert not app.exception
    assert app.query_params["class"] in ("1", ["1"])


def test_a_lesson_on_ones_own_zoo_takes_the_long_result(monkeypatch):
    long, quick = (SimpleNamespace(zoo_digest="d", name=name) for name in ("long", "quick"))
    there = {"results": lambda spec: [(long, None), (quick, None)], "quoted": lambda lesson: ["scaling"]}
    there |= {"read_networks": lambda name: None, "source_of": lambda name: None, "fits": lambda spec, result: True}
    there |= {"Numbers": lambda report, results: SimpleNamespace(results=results)}
    for name, stand_in in there.items():
        monkeypatch.setattr(lesson_numbers, name, stand_in)
    run = SimpleNamespace(example=False, report=SimpleNamespace(zoo=SimpleNamespace(digest="d")))
    assert lesson_numbers.numbers_of_lesson(None, run).results["scaling"] is long
