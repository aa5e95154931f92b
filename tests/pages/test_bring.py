"""The page for one's own checkpoints: choose, correct, check, import, open in the lab. The engine's part is real."""

import hashlib

import numpy as np
import pytest

from engine.pipeline.executor import run_inline
from engine.pipeline.planners import plan_request
from pages.shared.uploads import uploads
from tests.fake_hub import FakeHub
from tests.image_files import CLASSES, write_folders, write_zip
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


def carry_out(store, kind="import"):
    """Do what the engine would do with the newest row."""
    row = store.runs.claim_next("service:test", kinds=(kind,))
    plan = plan_request(kind, row.request, store)
    run_inline(plan, store)
    store.runs.finish(row.id, plan.result)
    return row


def facts_of(app):
    """The table of facts as it is read on the page, by the names of the facts."""
    found = next(part.value for part in app.table if "Fact" in part.value)
    return found.map(lambda text: text.replace("\\", "")).set_index("Fact")


def brought(path, name, person=""):
    """A file that came into the visit's folder, as an upload leaves it."""
    tray = uploads().new_tray(person)
    data = path.read_bytes()
    sha = hashlib.sha256(data).hexdigest()
    uploads().offer(tray, name, len(data), sha)
    with uploads().append(tray, sha, len(data), 0) as write:
        write(data)
    uploads().finish(tray, sha, len(data))
    uploads().offer(tray, name, len(data), sha)
    return tray


def test_an_empty_page_says_what_it_is_for(workspace, open_app, files):
    app = open_app("bring")
    assert not app.exception
    assert "Nothing chosen yet" in texts(app)
    assert app.button(key="bring.next").disabled
    assert app.query_params["files"]


def test_from_files_to_the_lab(workspace, at, files):
    app = at()
    app.button(key="bring.add_all").click().run()
    assert [s.value for s in app.selectbox if s.label == "Role"] == ["base", "expert", "expert"]
    names = [t for t in app.text_input if t.label == "Name"]
    assert [name.value for name in names] == ["", "dtd", "stanford_cars"]
    names[1].set_value("textures").run()
    app.segmented_control(key="bring.step").set_value("check").run()
    app.text_input(key="bring.w.title").set_value("My zoo").run()
    app.selectbox(key="bring.w.preprocess").set_value("openai").run()
    assert app.button(key="bring.import").disabled
    app.button(key="bring.check.button").click().run()
    carry_out(workspace.store)
    app.run()
    assert not problems(app)
    table = next(part.value for part in app.dataframe if "Format" in part.value)
    assert list(table["Name"]) == ["base", "textures", "stanford_cars"]
    assert set(table["Format"]) == {"Hugging Face CLIP"}
    assert {part.proto.placeholder for part in app.dataframe if "Format" in part.value} == {"–"}
    facts = facts_of(app)
    assert "given" in facts.loc["Preprocessing", "How it is known"]
    app.button(key="bring.import").click().run()
    carry_out(workspace.store)
    app.run()
    assert not problems(app)
    assert workspace.store.zoos.list() == [workspace.store.root / "zoos" / "my_zoo"]
    assert "no images, so nothing can be scored" in texts(app)
    app.query_params["job"] = workspace.failed("another zoo's", "It went wrong.").id
    app.run()
    assert not problems(app), "the run that the address names is of another zoo"
    own = workspace.store.runs.submit("run", {"recipe": {"zoo": str(workspace.store.zoos.list()[0])}}, owner="test")
    workspace.store.runs.fail(own.id, "It has no images", "ZooError")
    app.query_params["job"] = own.id
    app.run()
    assert problems(app) == ["It has no images"]
    app.button(key="bring.run.again").click().run()
    app.button(key="bring.lab").click().run()
    assert not app.exception
    app.switch_page("pages/lab.py").run()
    zoo = app.selectbox(key="form.w.zoo")
    assert zoo.value == str(workspace.store.root / "zoos" / "my_zoo")
    assert "My zoo (my_zoo)" in zoo.options
    assert not app.button(key="form.run").disabled


def test_what_is_wrong_is_shown_and_not_imported(workspace, at, files):
    (files / "broken.pt").write_bytes(b"PK\x03\x04 cut off")
    app = at("check")
    app.button(key="bring.check.button").click().run()
    carry_out(workspace.store)
    app.run()
    assert any("broken" in text for text in problems(app))
    assert app.button(key="bring.import").disabled


def test_a_change_needs_a_new_check_and_steps_keep_what_was_set(workspace, at, files):
    app = at("check")
    app.selectbox(key="bring.w.preprocess").set_value("openai").run()
    app.button(key="bring.check.button").click().run()
    carry_out(workspace.store)
    app.run()
    assert not app.button(key="bring.import").disabled
    app.button(key="bring.previous").click().run()
    assert app.segmented_control(key="bring.step").value == "classes"
    app.button(key="bring.next").click().run()
    assert app.selectbox(key="bring.w.preprocess").value == "openai"
    assert not app.button(key="bring.import").disabled
    app.text_input(key="bring.w.title").set_value("Another").run()
    assert app.button(key="bring.import").disabled


def test_what_no_file_says_is_given_in_the_form(workspace, at, files):
    app = at("check")
    app.button(key="bring.check.button").click().run()
    carry_out(workspace.store)
    app.run()
    (asked,) = [said for said in problems(app) if "preprocessing cannot be known" in said]
    assert "In this form it is “Preprocessing”" in asked
    app.selectbox(key="bring.w.preprocess").set_value("own").run()
    app.button(key="bring.check.button").run()
    assert app.button(key="bring.check.button").disabled
    assert "need three numbers each" in texts(app)
    app.text_input(key="bring.w.own.mean").set_value("0.5, 0.4, 0.5").run()
    app.text_input(key="bring.w.own.std").set_value("0.27, 0.27, 0.3").run()
    assert app.number_input(key="bring.w.scale").disabled, "no heads are brought that it could be of"
    app.number_input(key="bring.w.heads").set_value(16).run()
    app.button(key="bring.check.button").click().run()
    carry_out(workspace.store)
    app.run()
    assert not problems(app)
    facts = facts_of(app)
    assert facts.loc["Preprocessing", "Value"].endswith("mean 0.5/0.4/0.5, std 0.27/0.27/0.3")
    assert facts.loc["Preprocessing", "How it is known"].startswith("given")
    assert "Logit scale" not in facts.index
    assert tuple(facts.loc["Width of attention heads"]) == ("16 (2 heads)", "given")


def test_uploaded_files_are_listed_and_removed_with_their_entry(workspace, open_app, files, tmp_path):
    tray = brought(write_zip(tmp_path / "shapes.zip"), "shapes.zip")
    app = open_app("bring", files=tray)
    app.segmented_control(key="bring.step").set_value("images").run()
    assert "shapes.zip: 12 test images of 3 classes" in texts(app).replace("\\", "")
    task = next(part for part in app.selectbox if part.label == "Task")
    assert task.value == "shapes"
    next(button for button in app.button if button.label == "Remove").click().run()
    assert "No images yet" in texts(app)
    assert list(uploads().folder(tray).iterdir()) == []


def test_classes_and_prompts_are_asked_for_as_they_were_set(workspace, at, files, tmp_path):
    folder = write_folders(files / "shapes")
    app = at("images")
    app.segmented_control(key="bring.w.place.images").set_value("server").run()
    app.text_input(key="bring.w.images.place").set_value(str(folder)).run()
    app.button(key="bring.images.add").click().run()
    app.segmented_control(key="bring.step").set_value("classes").run()
    assert "CLIP's usual template" in texts(app).replace("\\", "")
    sets = next(part for part in app.segmented_control if part.label == "Templates")
    sets.set_value("general").run()
    assert "OpenAI's 80 templates for ImageNet" in texts(app).replace("\\", "")
    app.segmented_control(key="bring.step").set_value("check").run()
    app.selectbox(key="bring.w.preprocess").set_value("openai").run()
    app.button(key="bring.check.button").click().run()
    asked = workspace.store.runs.list(kinds=("import",))[0].request["prompts"]["shapes"]
    assert asked["classes"] == list(CLASSES)
    assert len(asked["templates"]) == 80
    assert not problems(app)


def test_a_set_that_a_data_set_lacks_is_named(workspace, at, files):
    np.savez(files / "svhn.npz", test_x=np.zeros((20, 16, 16, 3), np.uint8), test_y=np.arange(20) % 10)
    app = at("images")
    app.segmented_control(key="bring.w.place.images").set_value("server").run()
    app.text_input(key="bring.w.images.place").set_value(str(files / "svhn.npz")).run()
    app.button(key="bring.images.add").click().run()
    app.segmented_control(key="bring.step").set_value("classes").run()
    words = texts(app).replace("\\", "")
    assert "In use: FusionBench's 1 template. There is none of OpenAI's for it." in words


def test_a_repository_of_the_hub_comes_into_the_visits_folder(workspace, open_app, files, tmp_path, monkeypatch):
    source = tmp_path / "hub" / "models" / "own" / "clip-vit-base-patch32"
    source.parent.mkdir(parents=True)
    (files / "clip-vit-base-patch32").rename(source)
    hub = FakeHub(tmp_path / "hub")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("MERGELENS_CACHE", str(tmp_path / "cache"))
    app = open_app("bring")
    app.segmented_control(key="bring.w.place.models").set_value("hub").run()
    app.text_input(key="bring.w.hub.models").set_value("own/clip-vit-base-patch32").run()
    app.button(key="bring.hub.models.go").click().run()
    carry_out(workspace.store, "hub")
    hub.close()
    app.run()
    assert [s.value for s in app.selectbox if s.label == "Role"] == ["base"]
    folder = uploads().folder(app.session_state["files"]) / "own--clip-vit-base-patch32"
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in source.iterdir())


def test_the_address_follows_a_running_import_and_cancels_it(workspace, open_app, files):
    document = {"base": str(files / "clip-vit-base-patch32"), "name": "x", "out": str(files / "x")}
    document["experts"] = [{"path": str(files / "clip-vit-base-patch32_dtd")}]
    row = workspace.store.runs.submit("import", document, name="Import of x", requested_by="page")
    app = open_app("bring", **{"import": row.id})
    app.button(key="bring.cancel").click().run()
    assert workspace.store.runs.get(row.id).state == "cancelled"
    assert not app.exception


def test_a_folder_outside_is_refused(workspace, at, files, tmp_path):
    app = at()
    app.session_state["bring.folder"] = str(tmp_path / "store")
    app.run()
    assert not app.exception
    assert any("outside the folders" in text for text in problems(app))
