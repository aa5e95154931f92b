"""The zoo page: images by class, experts, prompts, licences, of bundled zoos, made ones and descriptions."""

import shutil

import pytest
import yaml

from engine.manifest import ASSETS
from engine.pipeline.executor import run_inline
from engine.pipeline.planners import plan_request
from pages.features import images
from tests.image_files import CLASSES, write_folders, write_parquet, write_table, write_zip
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
    app.selectbox(key="zoo.task").set_value("flowers").run()
    assert "**daisy**" in shown(app)
    app.multiselect(key="zoo.classes.flowers").set_value(["tulip"]).run()
    assert "**daisy**" not in shown(app)


def test_experts_show_the_accuracies_of_the_run_shown(workspace, open_app):
    workspace.example()
    app = open_app("zoo", zoo=str(workspace.zoo), **{"zoo.view": "Experts"})
    report = next(iter(TASKS))
    assert f"**{report}**" in shown(app)
    assert "Accuracies of the run shown: A made example" in texts(app).replace("\\", "")
    assert "expert **" in texts(app)
    other = open_app("zoo", zoo="mini8", **{"zoo.view": "Experts"})
    assert "run a recipe in the lab" in shown(other)


def publish(workspace):
    path = workspace.zoo / "zoo.yaml"
    accuracy = {"expert": {"digits": 95.2, "signs": 99.5}, "pretrained": {"digits": 30.0}}
    published = {"source": "Their paper, Table 1", "accuracy": accuracy}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "published": published}))


def test_published_accuracies_stand_beside_measured_ones(workspace, open_app):
    publish(workspace)
    workspace.example()
    app = open_app("zoo", zoo=str(workspace.zoo), **{"zoo.view": "Experts"})
    text = shown(app).replace("\\", "")
    assert "Published 95.2\u00a0%, measured -0.2 points" in text
    assert "Published accuracies: Their paper, Table 1." in text
    accuracy = open_app("accuracy")
    assert not accuracy.exception
    assert "differ from the published ones by -1.4 points" in texts(accuracy).replace("\\", "")
    table = next(part.value for part in accuracy.dataframe if "Published (%)" in part.value)
    assert table["Published (%)"].tolist() == [95.2, 99.5, 30.0]
    assert table["Difference"].round(2).tolist() == [-0.2, -2.5, 0.0]


def test_prompts_are_templates_with_a_class(open_app):
    app = open_app("zoo", zoo="mini8", **{"zoo.view": "Prompts", "zoo.task": "Traffic signs"})
    app.selectbox(key="zoo.prompt.signs").set_value("no entry").run()
    shown(app)
    assert "a photo of no entry" in app.dataframe[0].value["prompt"].tolist()


def test_licences_are_listed(open_app):
    app = open_app("zoo", zoo="mini8", **{"zoo.view": "Licences"})
    shown(app)
    table = app.dataframe[0].value
    assert len(table) == 8 + 14
    assert "Apache-2.0" in table["licence"].tolist()


def test_a_description_says_how_to_fetch_it(open_app, monkeypatch, tmp_path):
    monkeypatch.setenv("MERGELENS_CACHE", str(tmp_path / "cache"))
    app = open_app("zoo", zoo="clip-vit-b32-ta8")
    assert "zoo fetch clip-vit-b32-ta8" in texts(app).replace("\\", "")
    app.segmented_control(key="zoo.view").set_value("Prompts").run()
    assert not app.exception
    assert "FusionBench's 2 templates" in texts(app)
    assert "fusion_bench 0.2.33" in texts(app).replace("\\", "")


@pytest.mark.parametrize("form", ["{}", "{}/zoo.yaml", "{}/../zoo", "{}/link"])
def test_an_address_opens_no_folder_outside_the_roots(workspace, open_app, monkeypatch, tmp_path, form):
    roots = tmp_path / "roots"
    roots.mkdir()
    (roots / "link").symlink_to(workspace.zoo)
    monkeypatch.setenv("MERGELENS_ROOTS", str(roots))
    app = open_app("zoo", zoo=form.format(roots if "link" in form else workspace.zoo))
    assert not app.exception
    assert "lies outside the folders that this app may read" in " ".join(error.value for error in app.error)
    assert "A made zoo" not in texts(app)


def test_every_fact_is_shown_with_its_source(workspace, open_app):
    document = yaml.safe_load((workspace.zoo / "zoo.yaml").read_text())
    document["backbone"]["quick_gelu"] = True
    document["backbone"]["origins"] = {
        "head_width": "32 (4 heads) (read: config.json of expert 'digits')",
        "logit_scale": "100 (given)",
        "preprocess": "32 px, bicubic, shortest (decided by images of digits (90.0 %))",
    }
    (workspace.zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    app = open_app("zoo", zoo=str(workspace.zoo))
    assert not app.table
    app.session_state["zoo.facts"] = True
    app.run()
    shown(app)
    table = app.table[0].value.map(lambda text: text.replace("\\", ""))
    rows = {row["Fact"]: (row["Value"], row["How it is known"]) for _, row in table.iterrows()}
    assert rows["Width of attention heads"] == ("32 (4 heads)", "read: config.json of expert 'digits'")
    assert rows["Logit scale"] == ("100", "given")
    assert rows["Preprocessing"] == ("32 px, bicubic, shortest", "decided by images of digits (90.0 %)")
    assert rows["Activation"] == ("QuickGELU", "stated in zoo.yaml")
    assert rows["Architecture"][1] == "stated in zoo.yaml"


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
    carry_out(workspace.store, row)
    app = open_app("zoo", **address)
    assert "**circle** :small[3 images]" in shown(app)
    assert "a sample of each class, seed 0" in texts(app)
    shutil.rmtree(workspace.zoo / "data" / "pictures" / "star")
    (workspace.zoo / "data" / "pictures" / "x").mkdir()
    app = open_app("zoo", **address)
    assert app.button(key=f"zoo.images.{folders}.compute")


FORMS = {
    "folders": lambda data: write_folders(data / "pictures", each=20).name,
    "archive": lambda data: write_zip(data / "pictures.zip", each=20).name,
    "shards": lambda data: write_parquet(data / "shards" / "test-0.parquet", [0, 1, 2] * 20).parent.name,
    "table": lambda data: write_table(data, 20).name,
}


@pytest.fixture(params=FORMS)
def encoded_task(workspace, request):
    """The made zoo with its first task's images in one of the forms that have to be decoded."""
    document = yaml.safe_load((workspace.zoo / "zoo.yaml").read_text())
    name = FORMS[request.param](workspace.zoo / "data")
    document["tasks"][0] |= {"data": f"data/{name}", "classes": list(CLASSES)}
    (workspace.zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    return document["tasks"][0]["name"]


def carry_out(store, row):
    """Carry out a queued row, as the engine would."""
    plan = plan_request(row.kind, row.request, store)
    run_inline(plan, store)
    again = store.runs.submit(row.kind, row.request, name="made", owner="test")
    store.runs.finish(again.id, plan.result)


def images_on(app):
    return [part for part in app.main if part.type == "image"]


def test_every_form_has_pictures_on_every_page(workspace, open_app, encoded_task):
    workspace.example()
    app = open_app("representations")
    assert "The images themselves are being made ready" in texts(app)
    rows = workspace.store.runs.list(kinds=("register",))
    assert [(row.request["task"], row.request["per_class"]) for row in rows] == [(encoded_task, None)]
    before = len(images_on(open_app("lab")))
    carry_out(workspace.store, rows[0])
    app = open_app("representations")
    assert "themselves" not in shown(app)
    app = open_app("lab")
    shown(app)
    assert len(images_on(app)) == before + 1  # the card of the task has its strip
    assert len(workspace.store.runs.list(kinds=("register",))) == 2
    address = {"zoo": str(workspace.zoo), "zoo.task": encoded_task}
    open_app("zoo", **address).button(key=f"zoo.images.{encoded_task}.compute").click().run()
    carry_out(workspace.store, workspace.store.runs.list(kinds=("register",))[0])
    app = open_app("zoo", **address)
    assert "**circle** :small[20 images]" in shown(app)
    assert len(images_on(app)) == len(CLASSES)


def test_large_arrays_have_pictures_once_they_are_made(workspace, open_app, monkeypatch):
    monkeypatch.setattr("pages.sections.cards.MAX_BYTES", 0)
    monkeypatch.setattr("engine.zoo.images.thumbnails.CHUNK_BYTES", 4)  # nothing is so small that it is quickly made
    workspace.example()
    open_app("lab")
    images.atlases().wait()
    app = open_app("lab")
    shown(app)
    assert len(images_on(app)) == 2  # the in-domain tasks' cards


def test_experts_offer_to_look_at_images_that_nobody_has_looked_at(workspace, open_app, folders):
    app = open_app("zoo", zoo=str(workspace.zoo), **{"zoo.view": "Experts"})
    before = len(images_on(app))
    app.button(key="zoo.experts.look").click().run()
    (row,) = workspace.store.runs.list(kinds=("register",))
    assert row.request["task"] == folders
    assert "looking at images" in shown(app)
    carry_out(workspace.store, row)
    app = open_app("zoo", zoo=str(workspace.zoo), **{"zoo.view": "Experts"})
    assert len(images_on(app)) == before + 1
    assert not [button for button in app.button if button.key == "zoo.experts.look"]


def test_what_a_zoo_was_built_to_allow_is_shown_with_what_was_missed(workspace, open_app):
    assert not [part for part in open_app("zoo", zoo=str(workspace.zoo)).expander if "built to allow" in part.label]
    record = yaml.safe_load((ASSETS / "zoos/mini8/record.yaml").read_text())
    (workspace.zoo / "record.yaml").write_text(yaml.safe_dump(record))
    app = open_app("zoo", zoo=str(workspace.zoo))
    assert "What it was built to allow: 2 of 15 targets missed" in [part.label for part in app.expander]
    app.session_state["zoo.targets"] = True
    app.run()
    said = shown(app).replace("\\", "")
    assert "AUROC of near outliers, Task Arithmetic (72.6; aim 80 to 95)" in said
    assert "n = 300 to 500 test images a task; means over 2 sets of experts and training seeds 0, 1, 2" in said
    table = app.table[0].value
    assert len(table) == 15
    missed = table[table["Met"] == "no"]["Measured"].str.replace("\\", "")
    assert list(missed) == ["72.6", "61.0"]
