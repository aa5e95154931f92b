"""Text models on the page for one's own checkpoints: folders, tables of texts, classes, check, the zoo."""

import pytest
from streamlit.testing.v1 import AppTest

from engine.manifest import read_manifest
from tests.made_text_models import NOUNS, classifiers, texts
from tests.pages.test_bring import carry_out
from tests.pages.test_lab import problems
from tests.pages.test_lab import texts as said


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A configured folder with a BERT, two classifiers tuned from it, and their texts."""
    root = tmp_path / "models"
    base, experts = classifiers("bert", root)
    base.rename(root / "bert-base-uncased")
    (root / "texts").mkdir()
    texts(root / "texts" / "nouns.jsonl", NOUNS)
    texts(root / "texts" / "answers.jsonl", ("y", "n"), pair=True)
    monkeypatch.setenv("MERGELENS_ROOTS", str(root))
    return root, {name: folder for name, folder in experts.items()}


def with_texts(app, root):
    app.segmented_control(key="bring.step").set_value("images").run()
    app.segmented_control(key="bring.w.place.images").set_value("server").run()
    app.text_input(key="bring.w.images.place").set_value(str(root / "texts")).run()
    app.button(key="bring.images.add").click().run()
    return app


def test_from_text_models_to_a_zoo(workspace, at, models):
    root, _ = models
    app = at("models")
    app.button(key="bring.add_all").click().run()
    assert [s.value for s in app.selectbox if s.label == "Role"].count("base") == 1
    assert app.segmented_control(key="bring.step").options[1] == "2 Texts"
    with_texts(app, root)
    assert not problems(app)
    assert "answers.jsonl: 18 test, 6 val, 18 adapt texts of 2 classes" in said(app).replace("\\", "")
    app.segmented_control(key="bring.step").set_value("classes").run()
    assert not app.exception
    assert "In the order of the classifier" in said(app)
    names = next(part.value for part in app.dataframe if "Class" in part.value)
    assert list(names["Class"]) == ["yes", "no"]
    assert list(names["Texts"]) == [9, 9]
    app.segmented_control(key="bring.step").set_value("check").run()
    assert not any(box.key == "bring.w.preprocess" for box in app.selectbox)
    app.number_input(key="bring.w.length").set_value(12).run()
    app.button(key="bring.check.button").click().run()
    carry_out(workspace.store)
    app.run()
    assert not problems(app)
    app.button(key="bring.import").click().run()
    carry_out(workspace.store)
    app.run()
    assert not problems(app)
    manifest = read_manifest(workspace.store.zoos.list()[0])
    assert {task.name: len(task.classes) for task in manifest.tasks} == {"nouns": 3, "answers": 2}
    assert manifest.modality == "text"
    assert "on the texts of" in said(app)
    assert app.button(key="bring.run")


def test_many_texts_and_packed_ones_are_not_read_by_the_page(workspace, at, models, monkeypatch):
    root, _ = models
    monkeypatch.setattr("engine.zoo.modalities.texts.LOOKED_AT", 1000)
    (root / "texts" / "nouns.jsonl").rename(root / "texts" / "words.jsonl")
    app = at("models")
    app.button(key="bring.add_all").click().run()
    with_texts(app, root)
    assert not app.exception
    assert said(app).count("whose texts are counted when the zoo is checked") == 2
    app.segmented_control(key="bring.step").set_value("classes").run()
    names = next(part.value for part in app.dataframe if "Class" in part.value)
    assert list(names["Class"]) == ["yes", "no"]  # of the expert's config
    assert "Texts" not in names
    app.segmented_control(key="bring.w.classes.of").set_value(list(app.session_state["bring.images"])[1]).run()
    assert "Classes are read from these texts when the zoo is checked" in said(app)


@pytest.mark.parametrize("later", [["negative", "positive"], ["negative", "neutral", "positive"]])
def test_a_table_of_classes_follows_what_it_was_made_of(later):
    """An expert that names its classes is added after the classes were looked at."""

    def script():
        import pandas as pd
        import streamlit as st

        from pages.sections.bring_classes import _edited

        found = _edited("mood", pd.DataFrame({"Class": st.session_state["names"]}))
        st.write(", ".join(found["Class"]))

    app = AppTest.from_function(script)
    for names in (["0", "1"], later, later):
        app.session_state["names"] = names
        app.run()
        assert not app.exception
        assert app.markdown[-1].value == ", ".join(names)
