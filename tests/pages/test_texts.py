"""Every page on a run over texts: what it shows of them, and what it leaves out."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from engine.manifest import read_manifest
from engine.pipeline.local import make_view, run_recipe
from engine.pipeline.views.attention import ATTENTION
from engine.pipeline.views.measures import TASK_MEASURES
from engine.pipeline.views.occlusion import OCCLUSION
from engine.pipeline.views.shift import SHIFT
from engine.recipe import parse_recipe
from engine.store import Store
from engine.zoo.modalities import MODALITIES
from pages.features.packing import Sentences, sentence_packet
from pages.features.texts import few_texts, matches, task_splits
from pages.features.words import IMAGES, marked
from pages.sections.diagnose_views import IMAGES as LOOKED_AT
from pages.shared.nouns import called
from tests.pages.test_packing import unpack
from tests.pages.views import open_page, texts
from tests.tiny_text_zoo import make_text_zoo

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.stem for path in (ROOT / "pages").glob("[a-z]*.py"))
CALIBRATORS = [{"method": name, "params": {"steps": 3, "batch_size": 8}} for name in ("surgery", "prob_surgery")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A store with a finished run on a small zoo of texts, its projection and two views."""
    folder = tmp_path_factory.mktemp("texts")
    zoo = make_text_zoo(folder / "zoo")
    store = Store(folder / "store")
    recipe = parse_recipe({"zoo": str(zoo), "calibrators": CALIBRATORS})
    report = run_recipe(recipe, store, view={"method": "tsne"})
    make_view(SHIFT, SHIFT.ask(report.recipe), store)
    make_view(OCCLUSION, OCCLUSION.ask(report.recipe, task="alpha", images=IMAGES), store)
    make_view(ATTENTION, ATTENTION.ask(report.recipe, task="alpha", images=LOOKED_AT), store)
    make_view(TASK_MEASURES, TASK_MEASURES.ask(report.recipe), store)
    return folder


@pytest.fixture
def opened(place, monkeypatch):
    """Open a page on that store."""
    monkeypatch.setenv("MERGELENS_STORE", str(place / "store"))
    monkeypatch.setenv("MERGELENS_ROOTS", f"{place}:{ROOT}")
    monkeypatch.setattr("pages.shared.service.ensure_service", lambda store: "not started in tests")
    monkeypatch.setattr("pages.shared.state.EXAMPLES", place / "no examples")
    return open_page


def test_every_page_opens_on_texts_and_speaks_of_texts(opened, place):
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120).run()
    for page in PAGES:
        app = app.switch_page(f"pages/{page}.py").run()
        assert not app.exception, page
        assert not app.error, page
        said = texts(app)
        assert "test images" not in said, page
        if page in ("lab", "accuracy", "representations", "calibrate"):
            assert "texts a task" in said.lower(), page


@pytest.mark.parametrize(
    ("page", "view"),
    [
        ("calibrate", ""),
        ("representations", ""),
        *(("weights", view) for view in ("Learned coefficients", "Between two models")),
        *(("premerging", view) for view in ("Over λ", "Disentanglement", "Sharpness", "Subspaces", "Spawning")),
    ],
)
def test_what_pages_explain_and_ask_for_is_said_of_texts(opened, page, view):
    app = opened(page, **({f"{page}.view": view} if view else {}))
    assert not app.exception
    asked = [*app.number_input, *app.selectbox, *app.button, *app.toggle]
    said = [texts(app), *(item.value for item in app.info), *(f"{item.label} {item.proto.help}" for item in asked)]
    assert not [line for text in said for line in text.splitlines() if re.search(r"\bimages?\b", line, re.IGNORECASE)]


def test_every_tasks_own_measure_is_shown_beside_accuracy(opened, place):
    store = Store(place / "store")
    row = next(row for row in store.runs.list(kinds=("measures",)))
    found = json.loads((store.find(row.result) / "measures.json").read_text())
    assert found["of"] == "mean accuracy"
    app = opened("accuracy")
    assert "In-domain mean accuracy" in texts(app).replace("\\", "")
    table = next(part.value for part in app.dataframe if "Measure" in part.value)
    assert set(table["Measure"]) == {"Accuracy"}
    assert table["n"].tolist() == [found["tasks"][task]["samples"] for task in found["tasks"]]


def test_selected_texts_are_listed_with_every_models_answer(opened):
    app = opened("representations", list="shifted")
    said = texts(app)
    assert "texts selected" in said
    assert any(word in said for word in ("circle", "square", "star"))


def test_texts_are_found_by_their_words(opened):
    app = opened("representations")
    field = next(item for item in app.text_input if item.label == "Find texts")
    field.set_value("it is here").run()
    assert not app.exception
    assert "hold “it is here”" in texts(app).replace("\\", "")
    assert "texts selected" in texts(app)


def test_words_that_move_features_are_shown_where_they_were_hidden(opened):
    app = opened("diagnose", task="alpha")
    assert "8 · Which words?" in texts(app)
    assert "green moves the expert" in texts(app).replace(":green-background[green]", "green")
    assert "in its place; n = 1 of 24 test texts" in texts(app).replace("\\", "")


def test_where_models_look_is_shown_on_the_words(opened):
    app = opened("diagnose", task="alpha")
    assert not app.exception
    said = texts(app)
    assert "6 · Where in the text?" in said
    assert "look at the same words with r = " in said
    assert "image" not in said.split("6 · Where in the text?")[1].split("7 · ")[0]


def test_shifts_of_texts_are_those_of_words(opened):
    said = texts(opened("calibrate"))
    assert "misspelt" in said
    assert "negatives" not in said


def test_a_zoo_of_texts_shows_sentences_by_class(opened, place):
    app = opened("zoo", zoo=str(place / "zoo"))
    assert "**circle** :small[8 texts]" in texts(app)
    assert [option for option in app.get("button_group")[0].options if "Prompts" in str(option)] == []


def test_cards_say_how_experts_of_texts_were_trained(opened, place):
    record = {
        "config": {"steps": 4, "batch_size": 8, "learning_rate": 0.001, "seed": 0},
        "images": {"train": 24, "validation": 12},
        "validation_accuracy": {"base": 50, "expert": 75},
    }
    (place / "zoo" / "build.json").write_text(json.dumps({"finetuned": {"alpha": record}}))
    said = texts(opened("zoo", zoo=str(place / "zoo"), **{"zoo.view": "Experts"})).replace("\\", "")
    assert "Recipe: Standard; 4 steps of 8 of 24 texts" in said
    assert "on 12 validation texts." in said


def test_matches_are_whole_words_in_their_order():
    lines = ["the room was not good", "Not  good at all", "a knot good", "good, not bad"]
    assert matches(lines, "not good").tolist() == [0, 1]
    assert matches(lines, "GOOD").tolist() == [0, 1, 2, 3]
    assert matches(lines, "(").tolist() == []


def test_a_few_texts_are_of_different_classes(place):
    task = read_manifest(place / "zoo").task_table["alpha"]
    found = task_splits(place / "zoo", MODALITIES["text"], task)
    few = few_texts(place / "zoo", MODALITIES["text"], task, 3)
    labels = [int(found["test"].labels[list(found["test"].texts).index(text)]) for text in few]
    assert sorted(labels) == [0, 1, 2]
    assert found["adapt"].labels is None


def test_sentences_are_said_of_other_data():
    text = MODALITIES["text"]
    assert called("An image, an image and images.", text) == "A text, a text and texts."
    assert called("Images, one imagination", text) == "Texts, one imagination"
    assert called("An image", MODALITIES["image"]) == "An image"


def test_words_are_marked_by_whom_they_move():
    text = {"words": ["a", "red", "star", "!"], "expert": [0.0, 0.1, 0.9, 0.0], "merged": [0.5, 0.0, 0.6, 0.1]}
    said = marked(text)
    assert said.startswith(":orange-background[a]")
    assert ":green-background[red]" in said
    assert "**:violet-background[star]**" in said


def test_texts_travel_in_place_of_thumbnails():
    header, columns = unpack(sentence_packet(Sentences("x", ["one ⟶ two", "drei"])))
    assert header["texts"] == ["one ⟶ two", "drei"]
    assert header["images"] == 2
    assert columns == {}


def test_hidden_words_leave_a_distance_each(place):
    store = Store(place / "store")
    row = next(row for row in store.runs.list(kinds=("occlusion",)))
    part = OCCLUSION.read(store.find(row.result))["tasks"]["alpha"]
    for text in part["texts"]:
        assert len(text["words"]) == len(text["expert"]) == len(text["merged"]) == len(text["pretrained"])
        assert np.min(text["merged"]) >= 0
    assert set(part["alike"]) == {"merged", "pretrained"}


def test_the_same_words_are_looked_for_again_among_other_texts():
    def script():
        import numpy as np
        import streamlit as st

        from pages.features.packing import Sentences
        from pages.features.texts import search

        shown = np.array(st.session_state["shown"])
        search(Sentences("k", ["the one", "the two", "three", "the four"]), shown, "texts", "f")
        st.write(str(st.session_state.pop("f.picked", None)))

    app = AppTest.from_function(script)
    app.session_state["shown"] = [True, True, False, False]
    app.run()
    app.text_input[0].set_value("the").run()
    assert app.markdown[-1].value == "(0, 1)"
    app.run()
    assert app.markdown[-1].value == "None"
    app.session_state["shown"] = [False, False, True, True]
    app.run()
    assert app.markdown[-1].value == "(3,)"


def test_signs_are_found_where_no_word_begins_or_ends():
    assert matches(["Is it so?", "It is."], "?").tolist() == [0]
    assert matches(["Is it so?", "so?!"], "so?").tolist() == [0, 1]
    assert matches(["season", "a sea"], "sea").tolist() == [1]
