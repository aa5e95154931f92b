"""Methods of every kind go through the same pipeline: weights per task, learned merges, deep calibrators."""

import json
import math

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import engine as mergelens
from engine.errors import Cancelled, CheckpointError, MergeError, RecipeError
from engine.pipeline.executor import run_inline
from engine.pipeline.export.merge_files import merge_recipe
from engine.pipeline.local import run_recipe
from engine.pipeline.run.merging import load_merged, load_merged_encoder
from engine.pipeline.run.plan import plan_run
from engine.pipeline.tools import Silent
from engine.recipe import parse_recipe
from engine.weights import Memory
from engine.zoo.encoders.backbone import architecture, load_encoder, preprocessing, to_tensor
from engine.zoo.folder import Zoo
from tests.tiny_zoo import EXPERTS, make_zoo


def run(zoo, store, out=None, **parts):
    return run_recipe(parse_recipe({"zoo": str(zoo), **parts}), store, out=out)


def test_weights_per_task_reach_features_calibrators_and_report(zoo, store, tmp_path):
    surgery = {"method": "surgery", "params": {"rank": 4, "steps": 20, "batch_size": 8}}
    report = run(zoo, store, tmp_path / "run", merge={"method": "emr"}, calibrators=[surgery])
    assert report.merged.kind == "per_task"
    assert report.merged.needs_task_id
    assert report.merged.extra_bits > 0
    assert set(report.accuracy["merged"]) == set(EXPERTS)  # no weights exist for a task without an expert
    assert "outside" in report.accuracy["pretrained"]
    assert set(report.accuracy["surgery"]) == set(EXPERTS)
    assert not (tmp_path / "run" / "merged.safetensors").exists()
    base = Zoo.open(str(zoo)).weights("base")
    one, other = (load_merged(tmp_path / "run" / "merged", base, task) for task in ("alpha", "beta"))
    assert not torch.equal(one.tensor("visual.proj"), other.tensor("visual.proj"))
    assert one.names == base.names


def test_adamerging_learns_from_unlabelled_images(zoo, store):
    params = {"granularity": "task", "steps": 4, "batch_size": 8}
    report = run(zoo, store, merge={"method": "adamerging", "params": params})
    details = json.dumps(report.merged.details)
    assert all(expert in details for expert in EXPERTS)
    plain = run(zoo, store, merge={"method": "task_arithmetic", "params": {"scaling": 0.3}})
    assert report.bias["merged"].l1["alpha"] != plain.bias["merged"].l1["alpha"]


def test_adamerging_stops_between_steps(zoo, store):
    params = {"granularity": "task", "steps": 5000, "batch_size": 8}
    recipe = parse_recipe({"zoo": str(zoo), "merge": {"method": "adamerging", "params": params}})

    class Impatient(Silent):
        seen = 0

        def progress(self, fraction, message):
            self.seen += 1

        def cancelled(self):
            return self.seen > 5

    before = {artefact.key for artefact in store.artefacts()}
    plan = plan_run(recipe, store)
    with pytest.raises(Cancelled):
        run_inline(plan, store, Impatient())
    assert store.find(plan.result) is None
    merge = next(step for step in plan.steps if step.name == "merge")
    assert merge.key not in {artefact.key for artefact in store.artefacts()} - before


def test_a_deep_calibrator_acts_inside_the_encoder(zoo, store, tmp_path):
    call = {"method": "interv_merge", "params": {"rank": 1, "steps": 6, "batch_size": 8}}
    report = run(zoo, store, tmp_path / "run", calibrators=[call])
    blocks, width, rank = 2, 32, 1
    assert report.calibrators["interv_merge"].parameters == len(EXPERTS) * blocks * (2 * width * rank + 2 * rank)
    assert report.bias["interv_merge"].l1["alpha"] != report.bias["merged"].l1["alpha"]
    assert (tmp_path / "run" / "calibrators" / "interv_merge.safetensors").is_file()


def test_surgery_v2_aligns_every_block(zoo, store):
    call = {"method": "surgery_v2", "params": {"rank": 2, "steps": 6, "batch_size": 8}}
    report = run(zoo, store, calibrators=[call])
    blocks, width, dim, rank = 2, 32, 16, 2
    assert report.calibrators["surgery_v2"].parameters == len(EXPERTS) * 2 * rank * (blocks * width + dim)
    assert report.bias["surgery_v2"].l1["alpha"] != report.bias["merged"].l1["alpha"]


def test_a_deep_calibrator_needs_one_merged_model(zoo, store):
    with pytest.raises(RecipeError, match="one merged encoder"):
        run(zoo, store, merge={"method": "emr"}, calibrators=[{"method": "interv_merge"}])


def test_lwptv_prunes_before_the_merge(zoo, store):
    plain = run(zoo, store, merge={"method": "ties"})
    pruned = run(zoo, store, merge={"method": "ties"}, transforms=[{"method": "lwptv", "params": {"eta": 0.7}}])
    assert pruned.salience.applied
    assert not plain.salience.applied
    assert pruned.bias["merged"].l1["alpha"] != plain.bias["merged"].l1["alpha"]


def test_lwptv_refuses_a_single_expert(zoo, store):
    with pytest.raises(RecipeError, match="at least 2"):
        run(zoo, store, experts=["alpha"], transforms=[{"method": "lwptv"}])


def test_expert_weights_enter_cached_thresholds(zoo, store):
    half = [{"name": "alpha", "weight": 0.5}, "beta"]
    with pytest.raises(RecipeError, match="weight"):
        run(zoo, store, experts=half, merge={"method": "ties"})
    report = run(zoo, store, experts=half, merge={"method": "task_arithmetic"})
    whole = run(zoo, store, experts=["alpha", "beta"], merge={"method": "task_arithmetic"})
    assert report.bias["merged"].l1["alpha"] > whole.bias["merged"].l1["alpha"]


ROUTED = {
    "twin": {"examples": 16, "epochs": 3},
    "wemoe": {"steps": 2, "batch_size": 4},
}


@pytest.mark.parametrize("method", ROUTED)
def test_weights_per_image_reach_features_calibrators_and_report(zoo, store, tmp_path, method):
    surgery = {"method": "surgery", "params": {"rank": 4, "steps": 20, "batch_size": 8}}
    merge = {"method": method, "params": ROUTED[method]}
    report = run(zoo, store, tmp_path / "run", merge=merge, calibrators=[surgery])
    assert report.merged.kind == "per_sample"
    assert not report.merged.needs_task_id
    assert set(report.accuracy["merged"]) == {*EXPERTS, "outside"}  # an image needs no task
    assert set(report.accuracy["surgery"]) == set(EXPERTS)
    assert not (tmp_path / "run" / "merged.safetensors").exists()
    opened = Zoo.open(str(zoo))
    base, config = opened.weights("base"), architecture(opened.folder, opened.manifest)
    folder = tmp_path / "run" / "merged"
    with pytest.raises(CheckpointError, match="depend on the image"):
        load_merged(folder, base)
    encoder = load_merged_encoder(folder, base, config)
    with pytest.raises(CheckpointError, match="rebuilt from its base"):
        mergelens.load_merged(folder)
    stored = sum(buffer.numel() for name, buffer in encoder.named_buffers())
    whole = sum(math.prod(base.shape(name)) for name in base.names)
    assert 0 < report.merged.extra_parameters <= stored
    if method == "wemoe":
        assert report.merged.extra_parameters == stored - whole
    pixels = to_tensor(opened.data["outside"].samples("test"), preprocessing(opened.folder, opened.manifest))
    features = load_file(tmp_path / "run" / "features.safetensors")["merged/outside/evaluate"]
    with torch.no_grad():
        torch.testing.assert_close(encoder(pixels), features, rtol=1e-4, atol=1e-5)
        loaded = mergelens.load_merged(tmp_path / "run", base=zoo / "base.safetensors")
        torch.testing.assert_close(loaded(pixels), features, rtol=1e-4, atol=1e-5)
        one = load_encoder(config, Memory(encoder.weights_of(pixels[3])))
        torch.testing.assert_close(one(pixels[3:4])[0], features[3], rtol=1e-4, atol=1e-5)


def test_a_deep_calibrator_refuses_weights_per_image(zoo, store):
    with pytest.raises(RecipeError, match="one for each image"):
        run(zoo, store, merge={"method": "twin"}, calibrators=[{"method": "interv_merge"}])


def test_weights_per_image_cannot_be_one_file(zoo, tmp_path):
    with pytest.raises(MergeError, match="needs images"):
        merge_recipe(parse_recipe({"zoo": str(zoo), "merge": {"method": "twin"}}), tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists()


def test_methods_that_learn_say_what_a_zoo_lacks(tmp_path, store):
    folder = make_zoo(tmp_path / "bare", experts=("alpha", "beta"))
    manifest = yaml.safe_load((folder / "zoo.yaml").read_text())
    del manifest["heads"]
    (folder / "zoo.yaml").write_text(yaml.safe_dump(manifest))
    with pytest.raises(RecipeError, match="needs classification heads"):
        run(folder, store, merge={"method": "wemoe"})
    del manifest["tasks"][1]["data"]
    (folder / "zoo.yaml").write_text(yaml.safe_dump(manifest))
    with pytest.raises(RecipeError, match="task 'beta' has none"):
        run(folder, store, merge={"method": "twin"})


def test_coefficients_are_searched_on_validation_images(zoo, store, tmp_path):
    merge = {"method": "evolutionary", "params": {"evaluations": 6, "examples": 12, "objective": "loss"}}
    details = run(zoo, store, merge=merge).merged.details
    assert details["evaluations"] == 6
    assert details["validation_images"] == 12 * len(EXPERTS)
    assert set(details["coefficients"]) == set(EXPERTS)
    bare = make_zoo(tmp_path / "bare", experts=("alpha", "beta"))
    with np.load(bare / "data/beta.npz") as arrays:
        kept = {name: arrays[name] for name in arrays.files if not name.startswith("val")}
    np.savez_compressed(bare / "data/beta.npz", **kept)
    with pytest.raises(RecipeError, match=r"validation images .* task 'beta' has none"):
        run(bare, store, merge=merge)


def test_a_mask_is_learned_from_unlabelled_images(zoo, store):
    merge = {"method": "concrete", "params": {"steps": 2, "batch_size": 4}}
    first, second = (run(zoo, store, merge=merge, seeds=[seed]) for seed in (0, 1))
    assert first.merged.kind == "static"
    assert len(first.merged.details["loss"]) == 2
    assert first.bias["merged"].l1["alpha"] != second.bias["merged"].l1["alpha"]
