"""Experts of another zoo's base, from training to their merge: trained, refused, aligned, merged."""

import json

import numpy as np
import pytest
import torch
import yaml
from open_clip.model import CLIP
from safetensors.torch import load_file, save_file

from engine.errors import EngineError, RecipeError
from engine.manifest import read_manifest
from engine.pipeline.local import finetune_experts, run_recipe
from engine.pipeline.run.findings import findings
from engine.recipe import parse_recipe
from engine.store import Store
from engine.zoo.folder import Zoo
from tests.tiny_zoo import CONFIG, make_zoo

STEPS = {"steps": 20, "batch_size": 12}


def with_training_images(zoo):
    """Give every in-domain task training images: those to adapt on, whose classes come in turn."""
    for path in (zoo / "data").glob("*.npz"):
        arrays = dict(np.load(path))
        if "adapt_x" in arrays:
            arrays |= {"train_x": arrays["adapt_x"], "train_y": np.arange(len(arrays["adapt_x"])) % 3}
        np.savez_compressed(path, **arrays)
    return zoo


@pytest.fixture
def zoo(tmp_path):
    return with_training_images(make_zoo(tmp_path / "tiny"))


def renamed(folder, name, **backbone):
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    document["name"] = name
    document["backbone"] |= backbone
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder


@pytest.fixture
def twin(tmp_path):
    """The same architecture with a base of another seed."""
    folder = renamed(make_zoo(tmp_path / "other"), "other")
    torch.manual_seed(7)
    save_file({n: t.clone() for n, t in CLIP(**CONFIG).state_dict().items()}, folder / "base.safetensors")
    return folder


def test_an_expert_of_another_base_is_trained_refused_aligned_and_merged(command, zoo, twin, store):
    code, out, err = command(
        "zoo", "finetune", zoo, "--from", twin, "--task", "alpha", "--steps", 20, "--batch-size", 12, "-q"
    )
    assert (code, err) == (0, "")
    assert "alpha-other_base: " in out
    expert = read_manifest(zoo).expert_table["alpha-other_base"]
    record = json.loads((zoo / "build.json").read_text())["finetuned"]["alpha-other_base"]
    assert (expert.task, expert.method, record["start"]) == ("alpha", "other_base", "other")
    assert expert.base == f"bases/other-{record['base'][:8]}.safetensors"
    theirs, own = load_file(zoo / expert.base), load_file(zoo / "base.safetensors")
    original = load_file(twin / "base.safetensors")
    assert set(theirs) == set(own), "the text encoder stays where it was"
    assert all(torch.equal(tensor, original[name]) for name, tensor in theirs.items())
    trained = load_file(zoo / expert.weights)
    name = "visual.transformer.resblocks.0.mlp.c_fc.weight"
    assert (trained[name] - theirs[name]).norm() < 0.2 * (trained[name] - own[name]).norm(), "it starts from the twin"
    assert record["curve"][-1][1] < record["curve"][1][1], "the loss with this zoo's head falls"
    assert command("zoo", "check", zoo)[0] == 0

    recipe = parse_recipe({"zoo": str(zoo), "experts": ["alpha-other_base", "beta"]})
    (refused,) = findings(recipe, Zoo.open(str(zoo)))
    assert refused.level == "error"
    assert f"starts from another base ({expert.base})" in refused.text
    with pytest.raises(RecipeError, match="zoo align tiny --expert alpha-other_base"):
        run_recipe(recipe, store)

    code, out, err = command(
        "zoo", "connect", zoo, "pretrained", "alpha-other_base", "--points", 3, "--images", 8, "-q"
    )
    assert (code, err) == (0, "")
    assert "Loss barrier: as they are" in out, "what is not merged may be looked at before it is aligned"

    assert command("zoo", "align", zoo)[0] == 0
    assert findings(recipe, Zoo.open(str(zoo))) == []
    report = run_recipe(recipe, store)
    assert set(report.accuracy["merged"]) >= {"alpha", "beta"}
    own_recipe = parse_recipe({"zoo": str(zoo), "experts": ["beta"]})
    assert run_recipe(own_recipe, store).accuracy["expert"]["beta"] == report.accuracy["expert"]["beta"]


def test_it_is_another_training_than_that_of_the_own_base(zoo, twin, store):
    request = {"zoo": str(zoo), "tasks": ["alpha"], "config": STEPS, "called": "mine"}
    finetune_experts(request, store)
    finetune_experts({**request, "called": "theirs", "start": {"zoo": str(twin)}}, store)
    table = read_manifest(zoo).expert_table
    assert (table["alpha-mine"].base, bool(table["alpha-theirs"].base)) == (None, True)
    one, two = (load_file(zoo / table[f"alpha-{called}"].weights) for called in ("mine", "theirs"))
    assert not torch.equal(one["visual.proj"], two["visual.proj"])


def test_an_aligned_expert_that_is_trained_again_has_to_be_aligned_again(command, zoo, twin, tmp_path):
    request = {"zoo": str(zoo), "tasks": ["alpha"], "config": STEPS, "start": {"zoo": str(twin)}, "replace": True}
    finetune_experts(request, Store(tmp_path / "one"))
    assert command("zoo", "align", zoo)[0] == 0
    aligned = read_manifest(zoo).expert_table["alpha-other_base"]
    finetune_experts({**request, "config": {**STEPS, "seed": 1}}, Store(tmp_path / "two"))
    again = read_manifest(zoo).expert_table["alpha-other_base"]
    assert (aligned.aligned, aligned.weights) == ("weight_matching", "aligned/alpha-other_base.safetensors")
    assert (again.aligned, again.weights) == ("", "experts/alpha-other_base.safetensors")
    assert again.base == aligned.base


def test_factors_of_another_base_are_not_listed(zoo, twin, store):
    config = {**STEPS, "method": "lora", "params": {"rank": 2}}
    finetune_experts({"zoo": str(zoo), "tasks": ["beta"], "config": config, "start": {"zoo": str(twin)}}, store)
    assert read_manifest(zoo).expert_table["beta-other_base"].factors is None


def wider(twin):
    config = {**CONFIG, "embed_dim": 24}
    (twin / "config.json").write_text(json.dumps(config))
    save_file({n: t.clone() for n, t in CLIP(**config).state_dict().items()}, twin / "base.safetensors")


def other_heads(twin):
    config = {**CONFIG, "vision_cfg": {**CONFIG["vision_cfg"], "head_width": 8}}
    (twin / "config.json").write_text(json.dumps(config))


def other_activation(twin):
    renamed(twin, "other", quick_gelu=True)


def nothing(twin):
    pass


FAULTS = {
    "width": (wider, {}, "its `embed_dim` is 24, the zoo's 16"),
    "heads": (other_heads, {}, "its `vision_cfg.head_width` is 8, the zoo's 16"),
    "activation": (other_activation, {}, "quick_gelu"),
    "joint": (nothing, {"config": {"method": "joint"}, "tasks": "all"}, "starts from the zoo's own base"),
    "linearised": (nothing, {"config": {"method": "linearised"}}, "evaluated around the zoo's own base"),
    "no zoo": (nothing, {"start": {"zoo": "nowhere"}}, "There is no zoo 'nowhere'"),
    "its own": (nothing, {"start": None}, "is that of the zoo 'tiny'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_start_from_there_is_refused_with_the_reason(fault, zoo, twin, store):
    spoil, change, reason = FAULTS[fault]
    spoil(twin)
    before = (zoo / "zoo.yaml").read_text()
    request = {"zoo": str(zoo), "tasks": ["alpha"], "config": STEPS, "start": {"zoo": str(twin)}, **change}
    if fault == "its own":
        request |= {"start": {"zoo": str(zoo)}, "called": "again"}
    request["config"] = {**STEPS, **request["config"]}
    request["called"] = request.get("called", "theirs")
    with pytest.raises(EngineError, match=reason):
        finetune_experts(request, store)
    assert (zoo / "zoo.yaml").read_text() == before
    assert not (zoo / "bases").exists()
