"""Diagnose: what is selected, the answers of the shipped example, and what stands in for answers that are not there."""

import re
import shutil
from types import SimpleNamespace

import pytest

from engine.figures.diagnosis.answer import QUESTIONS, Scope
from engine.figures.diagnosis.document import diagnosis_document
from engine.figures.diagnosis.lost import worst_task
from engine.manifest import ASSETS
from engine.pipeline.viewing.shipped import shipped_name
from pages.sections.diagnose_answers import _class_of, answers_of
from pages.sections.diagnose_views import IMAGES, QUESTIONS_WITH_VIEWS
from pages.shared.selection import CLASS, TASK
from pages.shared.state import open_run

EXAMPLE = "task-arithmetic"


@pytest.fixture
def shipped(workspace, monkeypatch):
    """The app with the examples that come with it."""
    monkeypatch.setattr("pages.shared.state.EXAMPLES", ASSETS / "examples")
    return workspace


def said(app):
    kinds = ("title", "subheader", "markdown", "caption", "error")
    return "\n".join(item.value for kind in kinds for item in getattr(app, kind))


def test_the_worst_task_of_the_example_is_answered_seven_times(shipped, open_app):
    app = open_app("diagnose", run=EXAMPLE)
    assert not app.exception
    assert not app.error
    assert app.title[0].value == r"Why does Vehicles lose 65\.4 points?"
    assert [part.value[4:] for part in app.subheader] == list(QUESTIONS)
    assert not [button for button in app.button if button.label.startswith(("Answer", "Compute"))]
    assert app.query_params[TASK] == "vehicles"


def test_a_class_is_remembered_on_other_visits(shipped, open_app):
    app = open_app("diagnose", run=EXAMPLE, task="vehicles")
    choice = next(box for box in app.selectbox if box.label == "Class")
    choice.set_value(choice.options.index("van") - 1).run()
    assert app.title[0].value == r"What happens to van \(Vehicles\)?"
    assert app.query_params[CLASS] == "van"
    app.switch_page("pages/accuracy.py").run()
    app.switch_page("pages/diagnose.py").run()
    assert app.title[0].value == r"What happens to van \(Vehicles\)?"


def test_a_click_on_a_bar_finds_its_class_by_the_name_that_is_drawn(monkeypatch):
    asked = []
    monkeypatch.setattr("pages.sections.diagnose_answers.choose", lambda report, *what: asked.append(what))
    scope = SimpleNamespace(task="shops", classes=("Books", "Home & <b>Kitchen</b>"))
    pick = _class_of(SimpleNamespace(report=None), scope)
    assert pick({"y": "Home &amp; &lt;b&gt;Kitchen&lt;/b&gt;"})
    assert not pick({"y": "Gardens"})
    assert asked == [("shops", 1)]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"task": "nonsense"}, "this run has no expert of"),
        ({"task": "vehicles", "class": "horse"}, "this task does not have"),
        ({"task": "vehicles", "images": "1,x"}, "something else than numbers"),
    ],
    ids=str,
)
def test_an_address_that_names_what_is_not_there_is_told(shipped, open_app, query, words):
    app = open_app("diagnose", run=EXAMPLE, **query)
    assert not app.exception
    assert any(words in toast.value for toast in app.toast)
    assert "Vehicles" in app.title[0].value


def test_images_that_nothing_measured_are_told_in_every_answer(shipped, open_app):
    app = open_app("diagnose", run=EXAMPLE, task="vehicles", images="99999")
    assert not app.exception
    assert len(app.error) == 7


def test_a_remedy_goes_into_the_recipe(shipped, open_app):
    app = open_app("diagnose", run=EXAMPLE, task="vehicles")
    box = next(box for box in app.selectbox if box.label == "Remedy")
    box.set_value(next(option for option in box.options if "0.225" in option).replace("λ", "λ")).run()
    next(button for button in app.button if button.label == "Put it into the recipe").click().run()
    assert app.session_state["form.recipe"]["merge"]["params"]["scaling"] == 0.225


def test_a_run_without_answers_offers_to_compute_them(workspace, open_app):
    row = workspace.finished("Own")
    app = open_app("diagnose", run=row.id)
    assert not app.exception
    labels = [button.label for button in app.button]
    assert [f"Answer: {question}" for question in QUESTIONS[2:]] == [one for one in labels if one.startswith("Answer")]
    (quick,) = workspace.store.runs.list(states=("queued",))
    assert quick.kind == QUESTIONS_WITH_VIEWS[2].name, "it passes nothing through models, so nobody has to ask for it"
    next(button for button in app.button if button.label == "Compute all answers").click().run()
    asked = workspace.store.runs.list(kinds=tuple(view.name for view in QUESTIONS_WITH_VIEWS.values()))
    assert len(asked) == len(QUESTIONS_WITH_VIEWS)
    assert {row.kind for row in asked} == {view.name for view in QUESTIONS_WITH_VIEWS.values()}
    assert all(row.request.get("images", IMAGES) == IMAGES for row in asked)
    assert not [button for button in app.button if button.label.startswith("Compute")]


def test_shipped_views_are_found_by_what_is_asked_for_alone(shipped, open_app, tmp_path, monkeypatch):
    folder = tmp_path / "copied"
    shutil.copytree(ASSETS / "examples", folder, ignore=shutil.ignore_patterns("films", "projections"))
    monkeypatch.setattr("pages.shared.state.EXAMPLES", folder)
    for place in (folder / EXAMPLE / "views").glob("blame-*"):
        shutil.rmtree(place)
    app = open_app("diagnose", run=EXAMPLE)
    assert [button.label for button in app.button if button.label.startswith("Answer")] == ["Answer: Who does it?"]


def test_names_of_shipped_views_tell_requests_apart(workspace):
    view = QUESTIONS_WITH_VIEWS[4]
    recipe = workspace.recipe()
    names = {shipped_name(view, view.ask(recipe, task=task, images=20)) for task in ("digits", "signs")}
    assert len(names) == 2
    assert names == {shipped_name(view, view.ask(recipe, task=task, images=20)) for task in ("digits", "signs")}


def test_a_saved_diagnosis_of_texts_speaks_of_texts():
    run = open_run("text-task-arithmetic")
    scope = Scope.of(run.report, worst_task(run.report))
    answers = {theme: answers_of(run, scope, theme) for theme in ("light", "dark")}
    assert len(answers["light"]) > 4
    document = diagnosis_document(run.report, run.id, scope, answers)
    words = re.sub(r"<pre>.*?</pre>|<th>.*?</th>|<script[^>]*>.*?</script>", "", document, flags=re.DOTALL)
    assert re.findall(r"[^<>]*\b[Ii]mages?\b[^<>]*", words) == []
    assert "texts the expert knows" in words
