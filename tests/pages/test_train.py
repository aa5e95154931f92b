"""Training from the page: a copy of the bundled zoo, the form of every recipe, the job, the choice in the Lab."""

import json

import numpy as np
import pytest
import torch
import yaml
from open_clip.model import CLIP
from safetensors.torch import save_file

from engine.catalog import FINE_TUNING
from engine.manifest import read_manifest
from engine.pipeline.executor import run_inline
from engine.pipeline.local import align_experts
from engine.pipeline.planners import plan_request
from engine.zoo.folder import Zoo
from engine.zoo.mini8.images import digests
from engine.zoo.mini_text.sentences import SIZES
from tests.tiny_text_zoo import make_text_zoo
from tests.tiny_zoo import CONFIG, make_zoo

TRAIN = {"zoo.view": "Train experts"}


def texts(app):
    return " ".join(str(part.value) for part in [*app.markdown, *app.caption, *app.success, *app.info, *app.error])


@pytest.fixture
def trainable(tmp_path):
    """A tiny zoo whose tasks have training images; one is without an expert."""
    folder = make_zoo(tmp_path / "tiny", experts=("alpha", "beta"))
    for name in ("alpha", "beta"):
        path = folder / "data" / f"{name}.npz"
        with np.load(path) as found:
            arrays = {key: found[key] for key in found.files}
        np.savez(path, **arrays, train_x=arrays["test_x"], train_y=arrays["test_y"])
    return folder


def carry_out(store, row):
    """Carry out a queued row, as the engine would."""
    assert store.runs.claim_next("test", (row.kind,)).id == row.id
    plan = plan_request(row.kind, row.request, store)
    run_inline(plan, store)
    store.runs.finish(row.id, plan.result)


def opened(open_app, zoo):
    app = open_app("zoo", zoo=str(zoo), **TRAIN)
    assert not app.exception
    return app


def test_the_bundled_zoo_is_copied_with_the_images_that_its_experts_saw(workspace, open_app, monkeypatch):
    monkeypatch.setattr("engine.zoo.mini8.training_images.drawn_tasks", lambda: ("digits",))
    app = opened(open_app, "mini8")
    assert app.text_input(key="train.name.mini8-trained").value == "mini8-trained"
    app.button(key="train.copy.button").click().run()
    (row,) = workspace.store.runs.list(kinds=("copy",))
    assert row.request == {"zoo": "mini8", "name": "mini8-trained"}
    carry_out(workspace.store, row)
    app.run()
    folder = workspace.store.root / "zoos" / "mini8-trained"
    assert app.query_params["zoo"] in (str(folder), [str(folder)])
    copy, bundled = Zoo.open(str(folder)), Zoo.open("mini8")
    assert copy.manifest.experts == bundled.manifest.experts
    assert copy.data["digits"].lengths == {**bundled.data["digits"].lengths, "train": 2000}
    assert np.bincount(copy.data["digits"].labels("train")).min() > 100
    for file in (bundled.folder / "data" / "digits").iterdir():
        assert (folder / "data" / "digits" / file.name).read_bytes() == file.read_bytes()
    train, test = (np.stack([*copy.data["digits"].samples(split)[:]]) for split in ("train", "test"))
    assert not digests(train) & digests(test)
    assert app.multiselect(key=f"train.tasks.{folder}.saft").value == ["digits"]
    again = opened(open_app, "mini8")
    assert again.button(key="train.in.mini8-trained").label.replace("\\", "") == "Train in mini8-trained"
    assert again.text_input(key="train.name.mini8-trained-2")


def test_the_bundled_sentences_are_copied_with_those_that_their_experts_saw(workspace, open_app, monkeypatch):
    monkeypatch.setattr("engine.zoo.mini_text.training_texts.written_tasks", lambda: ("acceptability",))
    app = opened(open_app, "mini_text")
    assert "the training texts that its own experts saw" in texts(app)
    app.button(key="train.copy.button").click().run()
    (row,) = workspace.store.runs.list(kinds=("copy",))
    carry_out(workspace.store, row)
    app.run()
    folder = workspace.store.root / "zoos" / "mini_text-trained"
    copy, bundled = (Zoo.open(str(zoo)).data["acceptability"] for zoo in (folder, "mini_text"))
    assert copy.lengths == {**bundled.lengths, "train": SIZES["train"]}
    assert np.bincount(copy.labels("train")).min() > 100
    for file in bundled.path.iterdir():
        assert (copy.path / file.name).read_bytes() == file.read_bytes()
    seen = set(copy.texts("train"))
    assert len(seen) == SIZES["train"]
    assert not any(seen & set(copy.texts(split)) for split in bundled.lengths)
    assert app.multiselect(key=f"train.tasks.{folder}.saft").value == ["acceptability"]


@pytest.mark.parametrize("kind", ["images", "texts"])
@pytest.mark.parametrize("method", FINE_TUNING)
def test_every_recipe_has_a_form(workspace, open_app, trainable, tmp_path, method, kind):
    if kind == "texts":
        trainable = make_text_zoo(tmp_path / "texts", experts=("alpha", "beta"), train=24)
    app = opened(open_app, trainable)
    app.selectbox(key="train.method").set_value(method).run()
    assert not app.exception
    row = FINE_TUNING[method]
    text = texts(app).replace("\\", "")
    assert row.summary in text
    assert row.source in text
    assert row.equation in " ".join(part.value for part in app.latex)
    assert f"labelled training {kind}" in text
    if row.departure:
        assert row.departure[:60] in text
    button = app.button(key="train.go.button")
    assert button.disabled == (method == "standard")  # both tasks have a standard expert
    if not button.disabled:
        button.click().run()
        (asked,) = workspace.store.runs.list(kinds=("finetune",))
        assert asked.request["config"]["method"] == method
        assert asked.request["tasks"] == ["alpha", "beta"]


def test_experts_of_another_base_are_trained_and_refused_until_they_are_aligned(
    workspace, open_app, trainable, tmp_path
):
    twin = make_zoo(tmp_path / "twin")
    document = yaml.safe_load((twin / "zoo.yaml").read_text())
    (twin / "zoo.yaml").write_text(yaml.safe_dump({**document, "name": "twin"}))
    torch.manual_seed(7)
    save_file({n: t.clone() for n, t in CLIP(**CONFIG).state_dict().items()}, twin / "base.safetensors")
    workspace.store.zoos.add(twin)
    app = opened(open_app, trainable)
    app.selectbox(key="train.method").set_value("standard").run()
    app.number_input(key="train.steps").set_value(4).run()
    app.number_input(key="train.batch").set_value(8).run()
    app.toggle(key="train.all").set_value(True).run()
    key = f"train.start.{trainable}"
    assert app.selectbox(key=key).options[0] == "this zoo's base"
    assert "the base of twin" in app.selectbox(key=key).options
    app.selectbox(key=key).set_value(str(twin)).run()
    app.multiselect(key=f"train.tasks.{trainable}.standard").set_value(["alpha"]).run()
    assert "In the zoo: alpha-other_base" in texts(app).replace("\\", "")
    app.button(key="train.go.button").click().run()
    (row,) = workspace.store.runs.list(kinds=("finetune",))
    assert row.request["start"] == {"zoo": str(twin)}
    carry_out(workspace.store, row)
    expert = read_manifest(trainable).expert_table["alpha-other_base"]
    assert expert.base.startswith("bases/twin-")
    lab = open_app("lab")
    lab.selectbox(key="form.w.zoo").set_value(str(trainable)).run()
    lab.multiselect(key=f"form.w.experts.{trainable}").set_value(["alpha-other_base", "beta"]).run()
    assert "starts from another base" in texts(lab).replace("\\", "")
    align_experts({"zoo": str(trainable)}, workspace.store)
    lab.run()
    assert "starts from another base" not in texts(lab).replace("\\", "")


def test_experts_are_trained_joined_and_chosen_in_the_lab(workspace, open_app, trainable):
    app = opened(open_app, trainable)
    app.number_input(key="train.steps").set_value(4).run()
    app.number_input(key="train.batch").set_value(8).run()
    assert "About " in texts(app)
    app.button(key="train.go.button").click().run()
    (row,) = workspace.store.runs.list(kinds=("finetune",))
    assert "Cancel" in [button.label for button in app.button]
    carry_out(workspace.store, row)
    app = opened(open_app, trainable)
    assert "2 experts in the zoo" in texts(app)
    assert [e.name for e in read_manifest(trainable).experts] == ["alpha", "beta", "alpha-saft", "beta-saft"]
    app.button(key="train.merge").click().run()
    assert app.session_state["form.recipe"]["experts"] == [
        {"name": "alpha-saft", "weight": 1.0},
        {"name": "beta-saft", "weight": 1.0},
    ]
    cards = open_app("zoo", zoo=str(trainable), **{"zoo.view": "Experts"})
    assert "Recipe: SAFT; 4 steps of 8 of 24 images" in texts(cards).replace("\\", "")
    lab = open_app("lab")
    lab.selectbox(key="form.w.zoo").set_value(str(trainable)).run()
    key = f"form.w.experts.{trainable}"
    assert lab.multiselect(key=key).value == ["alpha", "beta"]
    assert lab.session_state["form.recipe"]["experts"] == "all"
    assert lab.multiselect(key=key).options == [
        "alpha · Standard",
        "beta · Standard",
        "alpha · SAFT",
        "beta · SAFT",
    ]
    lab.session_state[key] = ["alpha-saft", "beta-saft"]
    lab.run()
    assert [e["name"] for e in lab.session_state["form.recipe"]["experts"]] == ["alpha-saft", "beta-saft"]
    lab.session_state[key] = ["alpha", "alpha-saft"]
    lab.run()
    assert "2 experts of the task 'alpha' are merged (alpha, alpha-saft)" in texts(lab).replace("\\", "")


def test_experts_learn_from_a_teacher(workspace, open_app, trainable, tmp_path):
    school = make_zoo(tmp_path / "school")
    document = yaml.safe_load((school / "zoo.yaml").read_text())
    (school / "zoo.yaml").write_text(yaml.safe_dump({**document, "name": "school"}))
    workspace.store.zoos.add(school)
    app = opened(open_app, trainable)
    app.selectbox(key="train.method").set_value("standard").run()
    app.number_input(key="train.steps").set_value(4).run()
    app.number_input(key="train.batch").set_value(8).run()
    app.toggle(key="train.teacher.asked").set_value(True).run()
    key = f"train.tasks.{trainable}.standard"
    app.multiselect(key=key).set_value(["alpha"]).run()
    assert app.selectbox(key=f"train.teacher.zoo.{trainable}").options[0] == "school"
    (teacher,) = [box for box in app.selectbox if box.label == "Teacher"]
    assert teacher.value == "alpha"
    assert "In the zoo: alpha-distilled" in texts(app).replace("\\", "")
    app.button(key="train.go.button").click().run()
    (row,) = workspace.store.runs.list(kinds=("finetune",))
    taught = {"zoo": str(school), "model": "alpha", "task": "", "temperature": 2.0, "weight": 0.9}
    assert row.request["teacher"] == taught
    carry_out(workspace.store, row)
    assert read_manifest(trainable).expert_table["alpha-distilled"].method == "distilled"
    record = json.loads((trainable / "build.json").read_text())
    assert "alpha-distilled" in json.dumps(record)
    app = opened(open_app, trainable)
    assert "1 expert in the zoo" in texts(app)


def test_a_teachers_task_of_another_name_is_said_and_its_zoo_gives_way(workspace, open_app, trainable, tmp_path):
    school = make_zoo(tmp_path / "school", experts=("alpha",))
    text = (school / "zoo.yaml").read_text()
    document = yaml.safe_load(text)
    for task in document["tasks"]:
        task["classes"] = task["classes"] if task["name"] == "alpha" else [f"not {label}" for label in task["classes"]]
        task |= {"name": "letters", "title": "Letters"} if task["name"] == "alpha" else {}
    document["experts"][0] |= {"task": "letters"}
    (school / "zoo.yaml").write_text(yaml.safe_dump({**document, "name": "school"}))
    workspace.store.zoos.add(school)
    app = opened(open_app, trainable)
    app.toggle(key="train.teacher.asked").set_value(True).run()
    key, zoo = f"train.tasks.{trainable}.saft", f"train.teacher.zoo.{trainable}"
    app.multiselect(key=key).set_value(["alpha"]).run()
    app.selectbox(key=zoo).set_value(str(school)).run()
    assert not app.exception
    assert "The teacher's task of these classes is called Letters." in texts(app).replace("\\", "")
    app.multiselect(key=key).set_value(["alpha", "beta"]).run()
    assert not app.exception
    assert app.selectbox(key=zoo).value == str(trainable), "the school has no head for beta"


def test_nobody_teaches_classes_that_no_zoo_has(workspace, open_app, trainable):
    document = yaml.safe_load((trainable / "zoo.yaml").read_text())
    (trainable / "zoo.yaml").write_text(yaml.safe_dump({**document, "heads": None}))
    app = opened(open_app, trainable)
    app.toggle(key="train.teacher.asked").set_value(True).run()
    assert "No zoo at hand has tasks of these names and classes" in texts(app)
    assert app.button(key="train.go.button").disabled


def test_experts_of_texts_are_trained_from_the_page(workspace, open_app, tmp_path):
    zoo = make_text_zoo(tmp_path / "texts", experts=("alpha", "beta"), train=24)
    app = opened(open_app, zoo)
    app.number_input(key="train.steps").set_value(4).run()
    app.number_input(key="train.batch").set_value(8).run()
    app.toggle(key="train.all").set_value(True).run()
    assert app.selectbox(key="train.augment.text").options == ["none"]
    assert "About " in texts(app)
    app.button(key="train.go.button").click().run()
    (row,) = workspace.store.runs.list(kinds=("finetune",))
    carry_out(workspace.store, row)
    app = opened(open_app, zoo)
    assert "on 12 validation texts" in texts(app)
    assert "image" not in texts(app)
    assert [expert.name for expert in read_manifest(zoo).experts][2:] == ["alpha-saft", "beta-saft"]


def test_a_training_that_failed_can_go_on(workspace, open_app, trainable):
    app = opened(open_app, trainable)
    app.button(key="train.go.button").click().run()
    (row,) = workspace.store.runs.list(kinds=("finetune",))
    workspace.store.runs.fail(row.id, "The disk is full.", "DiskFull")
    app = opened(open_app, trainable)
    assert "The disk is full" in texts(app).replace("\\", "")
    app.button(key="train.resume").click().run()
    assert workspace.store.runs.get(row.id).state == "queued"
    assert not [button for button in app.button if button.key == "train.resume"]


def test_a_zoo_without_training_images_says_so(workspace, open_app):
    app = opened(open_app, workspace.zoo)
    assert "Test images are never trained on" in texts(app).replace("\\", "")


def test_zoos_of_others_are_copied_to_train_in(workspace, open_app, trainable, monkeypatch):
    monkeypatch.setenv("MERGELENS_LOGIN", "headers")
    monkeypatch.setenv("MERGELENS_ROLES", "member=*")
    workspace.store.zoos.own(trainable, "ben@example.com")
    app = opened(open_app, trainable / "zoo.yaml")
    assert "belongs to ben@example.com" in texts(app).replace("\\", "")
    assert "train.go.button" not in {button.key for button in app.button}
    assert app.button(key="train.copy.button").label == "Make a copy to train in"
    workspace.store.zoos.own(trainable, "test@example.com")
    assert opened(open_app, trainable).button(key="train.go.button")


def test_what_cannot_be_trained_is_said_before(workspace, open_app, trainable):
    app = opened(open_app, trainable)
    app.selectbox(key="train.method").set_value("lora").run()
    app.multiselect(key=f"train.tasks.{trainable}.lora").set_value([]).run()
    assert "Choose at least one task" in texts(app)
    assert app.button(key="train.go.button").disabled


def test_a_linearised_evaluation_is_kept_by_the_form(workspace, open_app, trainable):
    document = yaml.safe_load((trainable / "zoo.yaml").read_text())
    for expert in document["experts"]:
        expert["forward"] = "linearised"
    (trainable / "zoo.yaml").write_text(yaml.safe_dump(document))
    workspace.store.zoos.add(trainable)
    lab = open_app("lab")
    lab.selectbox(key="form.w.zoo").set_value(str(trainable)).run()
    assert "2 of these experts were trained linearised" in texts(lab)
    lab.toggle(key="form.w.forward").set_value(True).run()
    assert lab.session_state["form.recipe"]["forward"] == "linearised"
    assert "were trained linearised" not in texts(lab)
    assert json.dumps(lab.session_state["form.recipe"])
