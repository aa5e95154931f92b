"""Experts of texts: every recipe and joint training, resumed to the bit; published families; what is refused."""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file

from engine.catalog import FINE_TUNING
from engine.errors import EngineError
from engine.manifest import read_manifest
from engine.pipeline.local import finetune_experts, run_recipe
from engine.pipeline.planners import plan_request
from engine.recipe import parse_recipe
from engine.store import Store
from engine.zoo.check import check_zoo
from engine.zoo.importing.convert import import_zoo
from tests.made_text_models import NOUNS, classifiers, gpt2, t5, texts
from tests.pipeline.test_text_import import ask, silent
from tests.tiny_text_zoo import make_text_zoo

SMALL = {"rank": 2, "images": 8}
ROWS = list(FINE_TUNING.values())
RECIPES = [(row, {name: SMALL[name] for name in SMALL if name in row.params.model_fields}) for row in ROWS]
every = pytest.mark.parametrize(("row", "params"), RECIPES, ids=[row.name for row in ROWS])


@pytest.fixture
def zoo(tmp_path):
    return make_text_zoo(tmp_path / "tiny", experts=("alpha", "beta"), train=24)


def request_for(zoo, row, params=None, tasks="all", **config):
    config = {"steps": 6, "batch_size": 12, "method": row.name, "params": params or {}, **config}
    return {"zoo": str(zoo), "tasks": tasks, "config": config, "checkpoint_every": 1, "replace": True}


def weights(zoo, name):
    manifest = read_manifest(zoo)
    found = {expert.name: expert.weights for expert in manifest.experts}
    found |= {reference.name: reference.weights for reference in manifest.references}
    return load_file(zoo / found[name])


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def made_by(row):
    return row.reference if row.joint else "alpha" if row.name == "standard" else f"alpha-{row.name}"


@every
def test_stopped_and_resumed_it_ends_with_the_same_model(row, params, zoo, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.pipeline.tools.PROGRESS_INTERVAL", 0)

    def stop(fraction, message=""):
        if "step 3 of" in message:
            raise KeyboardInterrupt

    tasks = "all" if row.joint else ["alpha"]
    request, store = request_for(zoo, row, params, tasks), Store(tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        finetune_experts(request, store, progress=stop)
    assert list(store.root.glob("checkpoints/*.safetensors"))
    finetune_experts(request, store)
    resumed = weights(zoo, made_by(row))
    finetune_experts(request, Store(tmp_path / "whole"))
    assert same(resumed, weights(zoo, made_by(row)))
    base = load_file(zoo / "base.safetensors")
    assert resumed.keys() == base.keys()
    assert not same(resumed, base)
    if not row.joint:
        expert = read_manifest(zoo).expert_of("alpha", row.name)
        assert (expert.forward, bool(expert.factors)) == (row.forward, row.factors)
    check_zoo(str(zoo), silent)


def test_experts_learn_and_are_merged_beside_the_joint_model(command, zoo, tmp_path):
    options = ("--steps", 60, "--batch-size", 8, "--learning-rate", 0.003, "-q")
    code, out, err = command("zoo", "finetune", zoo, *options, "--replace")
    assert (code, err) == (0, "")
    assert "on 12 validation texts, 60 steps on 24 texts" in out
    code, _, err = command("zoo", "finetune", zoo, "--joint", *options)
    assert (code, err) == (0, "")
    records = json.loads((zoo / "build.json").read_text())["finetuned"]
    for name in ("alpha", "beta", "multitask"):
        assert records[name]["curve"][-1][1] < records[name]["curve"][1][1], "the loss does not fall"
        assert records[name]["config"]["augmentation"] == "none"
    report = run_recipe(parse_recipe({"zoo": str(zoo)}), Store(tmp_path / "store"))
    assert set(report.accuracy["multitask"]) >= {"alpha", "beta"}
    assert report.average["expert"].within > report.average["pretrained"].within


def imported(kind, folder):
    """A zoo of published classifiers, or of a T5 that ranks answers, with training texts."""
    base, experts = t5(folder) if kind == "t5" else classifiers(kind, folder)
    data = {
        "nouns": str(texts(folder / "n.jsonl", NOUNS, train=18, numbers=kind != "t5")),
        "answers": str(texts(folder / "a.jsonl", ("yes", "no"), pair=True, train=18, numbers=kind != "t5")),
    }
    import_zoo(ask(folder, base, experts, data=data), silent)
    return folder / "zoo"


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "t5"])
def test_published_families_are_trained_on_their_own_classifiers(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.pipeline.tools.PROGRESS_INTERVAL", 0)
    zoo, store = imported(kind, tmp_path), Store(tmp_path / "stopped")
    lora = request_for(zoo, FINE_TUNING["lora"], {"rank": 2, "targets": "q,out,mlp"}, steps=12, learning_rate=0.003)

    def stop(fraction, message=""):
        if "step 5 of" in message:
            raise KeyboardInterrupt

    for request, name in ((lora, "nouns-lora"), (request_for(zoo, FINE_TUNING["joint"]), "multitask")):
        with pytest.raises(KeyboardInterrupt):
            finetune_experts(request, store, progress=stop)
        finetune_experts(request, store)
        resumed = weights(zoo, name)
        finetune_experts(request, Store(tmp_path / f"whole-{name}"))
        assert same(resumed, weights(zoo, name))
        assert not same(resumed, load_file(zoo / "base.safetensors"))


def without_training_texts(zoo):
    path = zoo / "data" / "alpha.jsonl"
    path.write_text("\n".join(line for line in path.read_text().splitlines() if '"train"' not in line))


def graded(zoo):
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document["tasks"][0] |= {"grades": [0, 1, 2], "measure": "pearson", "classes": ["0", "1", "2"]}
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))


def nothing(zoo):
    pass


FAULTS = [
    (without_training_texts, {}, "no training texts"),
    (graded, {}, "asks for a number"),
    (nothing, {"augmentation": "shift"}, "Training texts are not varied by 'shift'; known is none"),
    (nothing, {"batch_size": 500}, "24 texts to train on"),
    (nothing, {"method": "lora", "params": {"rank": 17}}, "Rank 17 exceeds a side"),
]


@pytest.mark.parametrize(("spoil", "config", "reason"), FAULTS, ids=[fault[2] for fault in FAULTS])
def test_what_cannot_be_trained_is_refused_when_it_is_planned(spoil, config, reason, zoo, tmp_path):
    spoil(zoo)
    before = (zoo / "zoo.yaml").read_text()
    request = {"zoo": str(zoo), "tasks": ["alpha"], "config": {"steps": 3, **config}, "replace": True}
    with pytest.raises(EngineError, match=reason):
        plan_request("finetune", request, Store(tmp_path / "store"))
    assert (zoo / "zoo.yaml").read_text() == before


def test_a_family_whose_texts_are_not_classified_is_not_trained(tmp_path):
    base, experts = gpt2(tmp_path)
    import_zoo(ask(tmp_path, base, experts), silent)
    with pytest.raises(EngineError, match="training texts"):
        plan_request("finetune", {"zoo": str(tmp_path / "zoo")}, Store(tmp_path / "store"))
