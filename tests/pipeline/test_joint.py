"""One model on all tasks together: from the command line to the reference of a run, interrupted, in parts, refused."""

import json

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from engine.errors import EngineError, RecipeError
from engine.manifest import read_manifest
from engine.pipeline.local import finetune_experts, run_recipe
from engine.pipeline.zoos import training as training_run
from engine.pipeline.zoos.request import FinetuneConfig
from engine.recipe import parse_recipe
from engine.store import Store
from tests.tiny_zoo import make_zoo

REQUEST = {"config": {"method": "joint", "steps": 12, "batch_size": 8}}


@pytest.fixture
def zoo(tmp_path):
    folder = make_zoo(tmp_path / "tiny", experts=("alpha", "beta"))
    for name in ("alpha", "beta"):
        path = folder / "data" / f"{name}.npz"
        with np.load(path) as found:
            arrays = dict(found.items())
        np.savez(path, **arrays, train_x=arrays["test_x"][:20], train_y=arrays["test_y"][:20])
    return folder


def request(zoo, **changes):
    config = {**REQUEST["config"], **changes.pop("config", {})}
    return {"zoo": str(zoo), "config": config, **changes}


def trained(zoo):
    return load_file(zoo / "multitask.safetensors")


def test_a_joint_model_learns_all_tasks_and_is_shown_by_runs(zoo, tmp_path):
    store = Store(tmp_path / "store")
    records = finetune_experts(request(zoo, config={"steps": 40, "learning_rate": 0.003}), store)
    record = records["multitask"]
    assert record["joint"] == ["alpha", "beta"]
    assert record["images"] == {"train": 40, "validation": 24, "validation_from": "val"}
    assert record["curve"][-1][1] < record["curve"][1][1], "the loss does not fall"
    manifest = read_manifest(zoo)
    assert [reference.name for reference in manifest.references] == ["multitask"]
    assert [expert.name for expert in manifest.experts] == ["alpha", "beta"]
    assert json.loads((zoo / "build.json").read_text())["finetuned"]["multitask"]["config"]["method"] == "joint"
    report = run_recipe(parse_recipe({"zoo": str(zoo)}), store)
    assert set(report.accuracy["multitask"]) >= {"alpha", "beta"}
    assert report.average["multitask"].within > report.average["pretrained"].within


def test_interrupted_it_ends_with_the_same_model(zoo, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.pipeline.tools.PROGRESS_INTERVAL", 0)
    finetune_experts(request(zoo), Store(tmp_path / "whole"))
    whole = trained(zoo)
    store = Store(tmp_path / "stopped")

    def stop(fraction, message=""):
        if "step 7 of" in message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune_experts(request(zoo, replace=True, checkpoint_every=1), store, progress=stop)
    assert list(store.root.glob("checkpoints/*.safetensors"))
    finetune_experts(request(zoo, replace=True, checkpoint_every=1), store)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in trained(zoo).items())


def test_epochs_pass_over_all_samples(zoo, tmp_path):
    wanted = request(zoo, config={"steps": None, "epochs": 2, "batch_size": 9})
    (record,) = finetune_experts(wanted, Store(tmp_path / "store")).values()
    assert record["config"]["steps"] == 10  # of 4 of each task's 20
    config = FinetuneConfig(epochs=2, batch_size=9)
    assert [config.resolved(100, 1, tasks)["steps"] for tasks in (1, 2, 3, 5)] == [23, 25, 23, 40]


def test_samples_to_watch_on_may_come_from_two_splits(zoo, tmp_path):
    path = zoo / "data" / "beta.npz"
    with np.load(path) as found:
        np.savez(path, **{name: found[name] for name in found if not name.startswith("val_")})
    (record,) = finetune_experts(request(zoo), Store(tmp_path / "store")).values()
    assert record["images"]["validation_from"] == "val, train"


def test_in_parts_each_part_holds_images_of_every_task(zoo, tmp_path, monkeypatch):
    finetune_experts(request(zoo), Store(tmp_path / "whole"))
    whole, real, sizes = trained(zoo), training_run.load_encoder, []

    def limited(config, weights):
        encoder = real(config, weights)

        def refuse(module, inputs):
            if module.training:
                sizes.append(len(inputs[0]))
                if len(inputs[0]) > 4:
                    raise torch.OutOfMemoryError("CUDA out of memory")

        encoder.register_forward_pre_hook(refuse)
        return encoder

    monkeypatch.setattr(training_run, "load_encoder", limited)
    finetune_experts(request(zoo, replace=True), Store(tmp_path / "parts"))
    assert set(sizes) == {8, 4}
    for name, tensor in trained(zoo).items():
        torch.testing.assert_close(tensor, whole[name], rtol=1e-3, atol=5e-4)  # Adam enlarges rounding


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ["alpha"]}, "two tasks with training images or more"),
        ({"config": {"batch_size": 1}}, "cannot hold one image of each of 2 tasks"),
        ({"config": {"batch_size": 64}}, "fewer than a batch of 32"),
        ({"called": "mine"}, r"reference `multitask` and has no other name; leave `called` \(--called\) out"),
    ],
)
def test_what_cannot_be_trained_jointly_is_refused(zoo, tmp_path, changes, message):
    with pytest.raises(EngineError, match=message):
        finetune_experts(request(zoo, **changes), Store(tmp_path / "store"))
    assert not (zoo / "multitask.safetensors").exists()


def test_a_reference_is_replaced_only_if_that_is_asked(zoo, tmp_path):
    store = Store(tmp_path / "store")
    finetune_experts(request(zoo), store)
    with pytest.raises(EngineError, match="jointly trained model 'multitask' already"):
        finetune_experts(request(zoo, config={"seed": 1}), store)
    before = trained(zoo)
    finetune_experts(request(zoo, config={"seed": 1}, replace=True), store)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in trained(zoo).items())


def test_a_model_that_imitates_experts_stands_beside_the_joint_one(zoo, command, tmp_path):
    store = Store(tmp_path / "store")
    finetune_experts(request(zoo), store)
    code, out, err = command("zoo", "finetune", zoo, "--joint", "--method", "kd4mtl", "--steps", 12, "--batch-size", 8)
    assert (code, err.count("Error")) == (0, 0)
    assert "kd4mtl: " in out
    assert [reference.name for reference in read_manifest(zoo).references] == ["multitask", "kd4mtl"]
    record = json.loads((zoo / "build.json").read_text())["finetuned"]["kd4mtl"]
    assert record["imitated"] == {"alpha": "alpha", "beta": "beta"}
    report = run_recipe(parse_recipe({"zoo": str(zoo)}), store)
    assert report.states() == ["pretrained", "merged", "multitask", "kd4mtl", "expert"]
    assert report.average["kd4mtl"].recovered is None
    wanted = request(zoo, replace=True, config={"method": "kd4mtl", "params": {"weight": 0}})
    finetune_experts(wanted, store)
    without = load_file(zoo / "kd4mtl.safetensors")
    assert all(torch.equal(tensor, without[name]) for name, tensor in trained(zoo).items()), "λ = 0 is joint training"


def test_experts_that_are_not_there_cannot_be_imitated(zoo, tmp_path):
    store = Store(tmp_path / "store")
    with pytest.raises(EngineError, match="'alpha' has none trained by 'sam'"):
        finetune_experts(request(zoo, config={"method": "kd4mtl", "params": {"experts": "sam"}}), store)
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document["experts"][1]["forward"] = "linearised"
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(EngineError, match="'beta' is evaluated linearised"):
        finetune_experts(request(zoo, config={"method": "kd4mtl"}), store)


def test_a_teacher_teaches_no_joint_model(zoo, tmp_path):
    teacher = {"zoo": str(zoo), "model": "alpha"}
    with pytest.raises(RecipeError, match="a teacher teaches one task"):
        finetune_experts(request(zoo, teacher=teacher), Store(tmp_path / "store"))
