"""The zoo page: images by class, experts, prompts, licences, of bundled zoos, made ones and descriptions."""

import shutil

import pytest
import yaml

from engine.pipeline.executor import run_inline
from engine.pipeline.plan import plan_request
from tests.image_files import CLASSES, write_folders
from tests.made_run import TASKS


def texts(app):
    return " ".join(str(part.value) for part in [*app.markdown, *app.caption, *app.title])


def shown(app):
    assert not app.exception
    assert not app.error
    return texts(app)


def test_the_bundled_zoo_opens_with_its_images(open_app):
    app = open_app("zoo", zoo="mini8")
    text = shown(app)
    assert "Eight small drawings" in text
    assert "**zero**" in text
    assert app.selectbox(key="zoo.task").value == "digits"
    app.selectbox(key="zoo.task").set_value("scenes").run()
    assert "**bedroom**" in shown(app)
    app.multiselect(key="zoo.classes.scenes").set_value(["beach"]).run()
    assert "**bedroom**" not in shown(app)


def test_experts_show_the_accuracies_of_the_run_shown(workspace, open_app):
    workspace.example()
    app = open_app("zoo", zoo=str(workspace.zoo), **{"zoo.view": "Experts"})
    report = next(iter(TASKS))
    assert f"**{report}**" in shown(app)
    assert "Accuracies of the run shown: A made example" in texts(app).replace("\\", "")
    assert "expert **" in texts(app)
    other = open_app("zoo", zoo="mini8", **{"zoo.view": "Experts"})
    assert "run a recipe in the lab" in shown(other)


def test_prompts_are_templates_with_a_class(open_app):
    app = open_app("zoo", zoo="mini8", **{"zoo.view": "Prompts", "zoo.task": "Traffic signs"})
    app.selectbox(key="zoo.prompt.signs").set_value("no entry").run()
    shown(app)
    assert "a photo of no entry" in app.dataframe[0].value["prompt"].tolist()


def test_licences_are_listed(open_app):
    app = open_app("zoo", zoo="mini8", **{"zoo.view": "Licences"})
    shown(app)
    table = app.dataframe[0].value
    assert len(table) == 8 + 12
    assert "Apache-2.0" in table["licence"].tolist()


def test_a_description_says_how_to_fetch_it(open_app, monkeypatch, tmp_path):
    monkeypatch.setenv("MERGELENS_CACHE", str(tmp_path / "cache"))
    app = open_app("zoo", zoo="clip-vit-b32-ta8")
    assert "zoo fetch clip-vit-b32-ta8" in texts(app).replace("\\", "")
    app.segmented_control(key="zoo.view").set_value("Prompts").run()
    assert not app.exception


def test_an_unknown_zoo_is_explained(open_app):
    app = open_app("zoo", zoo="nowhere")
    assert not app.exception
    assert "There is no zoo 'nowhere'" in " ".join(error.value for error in app.error).replace("\\", "")


@pytest.fixture
def folders(workspace):
    """The made zoo with one task as class folders."""
    write_folders(workspace.zoo / "data" / "pictures", each=3)
    document = yaml.safe_load((workspace.zoo / "zoo.yaml").read_text())
    document["tasks"][0] |= {"data": "data/pictures", "classes": list(CLASSES)}
    (workspace.zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    return document["tasks"][0]["name"]


def test_images_in_folders_are_looked_at_on_demand(workspace, open_app, folders):
    address = {"zoo": str(workspace.zoo), "zoo.task": folders}
    app = open_app("zoo", **address)
    shown(app)
    app.button(key=f"zoo.images.{folders}.compute").click().run()
    row = workspace.store.runs.list(kinds=("register",))[0]
    assert row.state == "queued"
    plan = plan_request(row.kind, row.request, workspace.store)
    run_inline(plan, workspace.store)
    again = workspace.store.runs.submit("register", row.request, name="made", owner="test")
    workspace.store.runs.finish(again.id, plan.result)
    app = open_app("zoo", **address)
    assert "**circle** :small[3 images]" in shown(app)
    assert "a sample of each class, seed 0" in texts(app)
    shutil.rmtree(workspace.zoo / "data" / "pictures" / "star")
    (workspace.zoo / "data" / "pictures" / "x").mkdir()
    app = open_app("zoo", **address)
    assert app.button(key=f"zoo.images.{folders}.compute")


def test_views_on_a_run_ask_for_pictures_of_encoded_images(workspace, open_app, folders):
    write_folders(workspace.zoo / "data" / "pictures", each=20)
    workspace.example()
    app = open_app("representations")
    assert not app.exception
    rows = workspace.store.runs.list(kinds=("register",))
    assert [(row.request["task"], row.request["per_class"]) for row in rows] == [(folders, None)]
    plan = plan_request("register", rows[0].request, workspace.store)
    run_inline(plan, workspace.store)
    again = workspace.store.runs.submit("register", rows[0].request, name="made", owner="test")
    workspace.store.runs.finish(again.id, plan.result)
    for page in ("representations", "lab"):
        app = open_app(page)
        assert not app.exception
        assert not app.error
    assert len(workspace.store.runs.list(kinds=("register",))) == 2
