"""The page for one's own checkpoints: choose, correct, check, import, open in the lab. The engine's part is real."""

import pytest

from engine.pipeline.executor import run_inline
from engine.pipeline.planners import plan_request
from tests.made_checkpoints import clip, moved, visual_of, write_hf
from tests.pages.test_lab import problems, texts


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A configured folder with a base and two experts in Hugging Face's form."""
    root = tmp_path / "models"
    base = visual_of(clip())
    write_hf(root / "clip-vit-base-patch32", base)
    for number, name in enumerate(("dtd", "stanford-cars")):
        write_hf(root / f"clip-vit-base-patch32_{name}", moved(base, number, keep=("visual.proj",)))
    monkeypatch.setenv("MERGELENS_ROOTS", str(root))
    return root


def carry_out(store):
    """Do what the engine would do with the newest row."""
    row = store.runs.claim_next("service:test", kinds=("import",))
    plan = plan_request("import", row.request, store)
    run_inline(plan, store)
    store.runs.finish(row.id, plan.result)
    return row


def test_an_empty_page_says_what_it_is_for(workspace, open_app, files):
    app = open_app("bring")
    assert not app.exception
    assert "Nothing chosen yet" in texts(app)


def test_from_files_to_the_lab(workspace, open_app, files):
    app = open_app("bring")
    app.button(key="bring.add_all").click().run()
    assert [s.value for s in app.selectbox if s.label == "Role"] == ["base", "expert", "expert"]
    names = [t for t in app.text_input if t.label == "Name"]
    assert [name.value for name in names] == ["", "dtd", "stanford_cars"]
    names[1].set_value("textures").run()
    app.text_input(key="bring.title").set_value("My zoo").run()
    app.selectbox(key="bring.preprocess").set_value("openai").run()
    assert app.button(key="bring.import").disabled
    app.button(key="bring.check.button").click().run()
    carry_out(workspace.store)
    app.run()
    assert not problems(app)
    table = app.dataframe[0].value
    assert list(table["Name"]) == ["base", "textures", "stanford_cars"]
    assert set(table["Format"]) == {"Hugging Face CLIP"}
    app.button(key="bring.import").click().run()
    carry_out(workspace.store)
    app.run()
    assert not problems(app)
    assert workspace.store.zoos.list() == [workspace.store.root / "zoos" / "my_zoo"]
    app.button(key="bring.lab").click().run()
    assert not app.exception
    app.switch_page("pages/lab.py").run()
    zoo = app.selectbox(key="form.w.zoo")
    assert zoo.value == str(workspace.store.root / "zoos" / "my_zoo")
    assert "My zoo (my_zoo)" in zoo.options
    assert not app.button(key="form.run").disabled


def test_what_is_wrong_is_shown_and_not_imported(workspace, open_app, files):
    (files / "broken.pt").write_bytes(b"PK\x03\x04 cut off")
    app = open_app("bring")
    app.button(key="bring.add_all").click().run()
    app.button(key="bring.check.button").click().run()
    carry_out(workspace.store)
    app.run()
    assert any("broken" in text for text in problems(app))
    assert app.button(key="bring.import").disabled


def test_what_no_file_says_is_asked_for(workspace, open_app, files):
    app = open_app("bring")
    app.button(key="bring.add_all").click().run()
    app.button(key="bring.check.button").click().run()
    carry_out(workspace.store)
    app.run()
    assert any("preprocessing" in text for text in problems(app))
    app.selectbox(key="bring.preprocess").set_value("inception").run()
    app.button(key="bring.check.button").click().run()
    carry_out(workspace.store)
    app.run()
    assert not problems(app)
    assert any(
        "mean=R" not in text and "preprocess" in text and "given" in text for text in [c.value for c in app.caption]
    )


def test_a_change_needs_a_new_check(workspace, open_app, files):
    app = open_app("bring")
    app.button(key="bring.add_all").click().run()
    app.selectbox(key="bring.preprocess").set_value("openai").run()
    app.button(key="bring.check.button").click().run()
    carry_out(workspace.store)
    app.run()
    assert not app.button(key="bring.import").disabled
    app.text_input(key="bring.title").set_value("Another").run()
    assert app.button(key="bring.import").disabled


def test_the_address_follows_a_running_import_and_cancels_it(workspace, open_app, files):
    document = {"base": str(files / "clip-vit-base-patch32"), "name": "x", "out": str(files / "x")}
    document["experts"] = [{"path": str(files / "clip-vit-base-patch32_dtd")}]
    row = workspace.store.runs.submit("import", document, name="Import of x", requested_by="page")
    app = open_app("bring", **{"import": row.id})
    app.button(key="bring.cancel").click().run()
    assert workspace.store.runs.get(row.id).state == "cancelled"
    assert not app.exception


def test_a_folder_outside_is_refused(workspace, open_app, files, tmp_path):
    app = open_app("bring")
    app.session_state["bring.folder"] = str(tmp_path / "store")
    app.run()
    assert not app.exception
    assert any("outside the folders" in text for text in problems(app))
