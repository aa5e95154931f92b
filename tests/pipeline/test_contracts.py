"""Methods of every kind go through the same pipeline: weights per task, learned merges, deep calibrators."""

import json

import pytest
import torch

from engine.errors import Cancelled, RecipeError
from engine.pipeline.executor import run_inline
from engine.pipeline.local import run_recipe
from engine.pipeline.merging import load_merged
from engine.pipeline.plan import plan_run
from engine.pipeline.steps import Silent
from engine.recipe import parse_recipe
from engine.store import Store
from engine.zoo.folder import Zoo
from tests.tiny_zoo import EXPERTS, make_zoo


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return make_zoo(tmp_path_factory.mktemp("zoo") / "tiny")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


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
