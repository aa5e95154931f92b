"""Experts by every recipe of fine-tuning: from the command line, resumed, in parts, and what stands in the way."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine.catalog import FINE_TUNING
from engine.errors import EngineError
from engine.manifest import read_manifest
from engine.pipeline.local import finetune_experts
from engine.pipeline.planners import plan_request
from engine.pipeline.zoos import training as training_run
from engine.recipe import parse_recipe
from engine.store import Store
from engine.zoo.folder import Zoo, choose_experts
from tests.pipeline.test_finetune import base, experts_of, images, zoo  # noqa: F401

SMALL = {"rank": 2, "images": 8}
ROWS = [row for row in FINE_TUNING.values() if not row.joint]  # one model of all tasks: test_joint
RECIPES = [(row, {name: SMALL[name] for name in SMALL if name in row.params.model_fields}) for row in ROWS]
every = pytest.mark.parametrize(("row", "params"), RECIPES, ids=[row.name for row in ROWS])
others = pytest.mark.parametrize(("row", "params"), RECIPES[1:], ids=[row.name for row in ROWS[1:]])


def request_for(zoo, row, params, **config):  # noqa: F811
    config = {"steps": 6, "batch_size": 12, "method": row.name, "params": params, "weight_decay": 0.1, **config}
    return {"zoo": str(zoo), "tasks": ["warm"], "config": config, "checkpoint_every": 1}


def name_of(row):
    return "warm" if row.name == "standard" else f"warm-{row.name}"


@others
def test_an_expert_stands_beside_the_standard_one(row, params, command, zoo):  # noqa: F811
    assert command("zoo", "finetune", zoo, "--task", "warm", "--steps", 2, "--batch-size", 8, "-q")[0] == 0
    given = [part for name, value in params.items() for part in ("--param", f"{name}={value}")]
    options = ("--task", "warm", "--steps", 3, "--batch-size", 8, "--decay", "after_warmup", "-q")
    code, _, err = command("zoo", "finetune", zoo, "--method", row.name, *given, *options)
    assert (code, err) == (0, "")
    manifest = read_manifest(zoo)
    assert [expert.name for expert in manifest.experts] == ["warm", name_of(row)]
    expert = manifest.expert_of("warm", row.name)
    assert (expert.method, expert.forward) == (row.name, row.forward)
    record = json.loads((zoo / "build.json").read_text())["finetuned"][expert.name]
    assert (record["config"]["method"], record["config"]["decay"]) == (row.name, "after_warmup")
    assert record["config"]["params"] == {**row.params().model_dump(mode="json"), **params}
    assert bool(expert.factors) == row.factors
    if row.factors:
        factors, start = load_file(zoo / expert.factors), load_file(zoo / "base.safetensors")
        own = load_file(zoo / expert.weights)
        name = "visual.transformer.resblocks.0.attn"
        product = factors[f"{name}.v.lora_B"] @ factors[f"{name}.v.lora_A"]
        moved = (own[f"{name}.in_proj_weight"] - start[f"{name}.in_proj_weight"]).chunk(3)[2]
        torch.testing.assert_close(product, moved, rtol=1e-4, atol=1e-6)
    assert command("zoo", "check", zoo)[0] == 0
    code, _, err = command("zoo", "finetune", zoo, "--method", row.name, *given, *options)
    assert code == 1
    assert f"has the expert '{expert.name}' already" in err


def test_the_standard_recipe_keeps_its_key(zoo, tmp_path):  # noqa: F811
    store = Store(tmp_path)
    row = FINE_TUNING["standard"]
    config = {"steps": 6, "batch_size": 12, "weight_decay": 0.1}
    plain = {"zoo": str(zoo), "tasks": ["warm"], "config": config}
    keys = {plan_request("finetune", request, store).steps[0].key for request in (plain, request_for(zoo, row, {}))}
    assert len(keys) == 1
    config = plan_request("finetune", plain, store).steps[0].params.config
    assert not {"method", "params", "decay"} & set(config)
    assert len(keys | {plan_request("finetune", request_for(zoo, row, {"accumulate": True}), store).steps[0].key}) == 2


@every
def test_stopped_and_resumed_it_ends_with_the_same_expert(row, params, zoo, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr("engine.pipeline.tools.PROGRESS_INTERVAL", 0)  # every step is reported, however quick

    def stop(fraction, message=""):
        if "step 3 of" in message:
            raise KeyboardInterrupt

    request = request_for(zoo, row, params, augmentation="crop_flip")
    store = Store(tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        finetune_experts(request, store, progress=stop)
    assert list(store.root.glob("checkpoints/*.safetensors"))
    finetune_experts(request, store)
    resumed = experts_of(zoo)[name_of(row)]
    finetune_experts({**request, "replace": True}, Store(tmp_path / "whole"))
    whole = experts_of(zoo)[name_of(row)]
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


@others
def test_where_memory_ends_the_batch_is_halved(row, params, zoo, tmp_path, monkeypatch):  # noqa: F811
    request = {**request_for(zoo, row, params, steps=3), "replace": True}
    finetune_experts(request, Store(tmp_path / "whole"))
    whole = experts_of(zoo)[name_of(row)]
    real = training_run.Trainer._loss

    def refuse(self, images, labels, soft=None):  # noqa: F811
        if len(images) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, images, labels, soft)

    monkeypatch.setattr(training_run.Trainer, "_loss", refuse)
    store = Store(tmp_path / "parts")
    finetune_experts(request, store)
    run = store.runs.list(kinds=("finetune",))[0].id
    said = [line.line for line in store.runs.logs.read(run) if "memory ran out" in line.line]
    assert [line.split("computed ")[1].split(",")[0] for line in said] == ["6 at a time", "3 at a time"]
    start, parts = load_file(zoo / "base.safetensors"), experts_of(zoo)[name_of(row)]
    moved = sum(float((tensor - start[name]).square().sum()) for name, tensor in whole.items())
    apart = sum(float((tensor - parts[name]).square().sum()) for name, tensor in whole.items())
    assert apart < 1e-3 * moved, "AdamW turns rounding into steps where gradients are nothing but rounding"


FAULTS = {
    "unknown recipe": ({"method": "satf"}, "Did you mean 'saft'"),
    "unknown parameter": ({"method": "saft", "params": {"rh": 1}}, "rh"),
    "no target": ({"method": "lora", "params": {"targets": []}}, "at least one of q, k, v, out, mlp"),
    "unknown target": ({"method": "lora", "params": {"targets": "q,w"}}, "targets"),
    "rank": ({"method": "lora", "params": {"rank": 500}}, "Rank 500 exceeds a side"),
    "few tasks": ({"method": "osrm", "params": {"rule": "code"}}, "1 other tasks say nothing about 8 ranks"),
    "decay": ({"decay": "sideways"}, "decay"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_recipe_cannot_do_is_refused_with_the_reason(fault, zoo, tmp_path):  # noqa: F811
    change, reason = FAULTS[fault]
    before = (zoo / "zoo.yaml").read_text()
    config = {"steps": 2, "batch_size": 8, **change}
    with pytest.raises(EngineError, match=reason):
        finetune_experts({"zoo": str(zoo), "tasks": ["warm"], "config": config}, Store(tmp_path / "store"))
    assert (zoo / "zoo.yaml").read_text() == before


def test_osrm_without_other_tasks_is_refused_before_training(zoo, tmp_path):  # noqa: F811
    with np.load(zoo / "data" / "cold.npz") as arrays:
        kept = {name: arrays[name] for name in arrays if not name.startswith("train")}
    np.savez(zoo / "data" / "cold.npz", **kept)
    with pytest.raises(EngineError, match="no in-domain task but 'warm'"):
        plan_request("finetune", request_for(zoo, FINE_TUNING["osrm"], {}), Store(tmp_path))
    for rule in ("own", "random"):  # controls that look at no other task
        request = request_for(zoo, FINE_TUNING["osrm"], {"rule": rule, "rank": 2}, steps=2)
        finetune_experts({**request, "called": rule}, Store(tmp_path))
        assert (zoo / "experts" / f"warm-{rule}.safetensors").is_file()


def test_who_takes_part_enters_the_key_of_osrm_only(zoo, tmp_path):  # noqa: F811
    def keys():
        requests = [request_for(zoo, FINE_TUNING[name], {}) for name in ("osrm", "lora")]
        return [plan_request("finetune", request, Store(tmp_path)).steps[0].key for request in requests]

    before = keys()
    with np.load(zoo / "data" / "cold.npz") as arrays:
        changed = dict(arrays)
    changed["train_x"] = changed["train_x"][:, ::-1].copy()
    np.savez(zoo / "data" / "cold.npz", **changed)
    after = keys()
    assert before[0] != after[0]
    assert before[1] == after[1]


@pytest.fixture
def twice(zoo, tmp_path):  # noqa: F811
    """A zoo with two experts of its one task."""
    for method in ("standard", "attention_only"):
        finetune_experts(request_for(zoo, FINE_TUNING[method], {}, steps=2), Store(tmp_path))
    return zoo


def test_of_several_experts_all_takes_the_first(twice):
    zoo = twice  # noqa: F811
    manifest = Zoo.open(str(zoo)).manifest
    assert choose_experts(manifest, parse_recipe({"zoo": str(zoo)})) == [("warm", 1.0)]
    one = parse_recipe({"zoo": str(zoo), "experts": ["warm-attention_only"]})
    assert choose_experts(manifest, one) == [("warm-attention_only", 1.0)]
    same = {"name": "again", "task": "warm", "weights": "experts/warm.safetensors"}
    with pytest.raises(ValueError, match="two entries for expert of task and recipe 'warm, standard'"):
        type(manifest).model_validate({**manifest.model_dump(), "experts": [*manifest.model_dump()["experts"], same]})
