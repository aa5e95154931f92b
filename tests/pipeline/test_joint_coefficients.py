"""Merging coefficients that learn together with a calibrator, from the recipe to what a run leaves."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import engine
from engine.errors import RecipeError
from engine.pipeline.executor import run_inline
from engine.pipeline.local import run_recipe
from engine.pipeline.planners import plan_request
from engine.recipe import parse_recipe
from engine.report import read_report
from engine.zoo.folder import Zoo
from engine.zoo.images.splits import select
from tests.tiny_zoo import EXPERTS

JOINT = {
    "name": "joint",
    "method": "interv_merge",
    "params": {"steps": 12, "coefficients": "layer", "batch_size": 8, "learning_rate": 0.01},
}
FROZEN = {**JOINT, "name": "frozen", "params": {"steps": 12, "batch_size": 8, "learning_rate": 0.01}}
MERGES = {
    "task_arithmetic": ({"scaling": 0.2}, [0.2, 0.2, 0.2]),
    "weight_average": ({}, [1 / 3] * 3),
    "adamerging": ({"steps": 3, "granularity": "layer", "learning_rate": 0.05, "plus_plus": True}, None),
}


def recipe(zoo, method="task_arithmetic", calibrators=(JOINT,), **parts):
    merge = {"method": method, "params": MERGES.get(method, ({}, None))[0]}
    return parse_recipe({"zoo": str(zoo), "merge": merge, "calibrators": list(calibrators), **parts})


@pytest.fixture(scope="module")
def made(zoo, store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "run"
    return run_recipe(recipe(zoo, calibrators=(JOINT, FROZEN)), store, out=folder), folder


def test_coefficients_move_by_expert_and_layer(made, zoo):
    report, _ = made
    part = report.calibrators["joint"].merging
    assert list(part["coefficients"]) == list(EXPERTS)
    values = np.array(list(part["coefficients"].values()))
    assert values.shape == (3, len(part["layers"]))
    assert set(part["layers"]) == {n for n in Zoo.open(str(zoo)).weights("base").names}
    assert ((values >= 0) & (values <= 1)).all()
    assert (np.abs(values - 0.2) > 1e-3).mean() > 0.9
    assert report.calibrators["frozen"].merging == {}
    extra = report.calibrators["joint"].parameters - report.calibrators["frozen"].parameters
    assert extra == values.size


def test_the_calibrator_acts_in_the_model_that_it_learned(made, zoo):
    report, folder = made
    module = engine.load_calibrator(folder / "calibrators" / "joint.safetensors")
    encoder = engine.load_merged(folder / "calibrators" / "joint" / "merged.safetensors")
    data = Zoo.open(str(zoo)).data["beta"]
    chosen = select(data, report.recipe.probe)
    pixels = encoder.preprocess(data.samples("test", chosen.test[chosen.evaluate_rows]))
    with torch.no_grad():
        found = module.correct_features(encoder, pixels, "beta")
    kept = load_file(folder / "features.safetensors")["joint/beta/evaluate"]
    torch.testing.assert_close(found, kept, rtol=1e-4, atol=1e-5)
    other = module.correct_features(engine.load_merged(folder / "merged.safetensors"), pixels, "beta")
    assert not torch.allclose(other, kept, atol=1e-3)


@pytest.mark.parametrize("method", MERGES)
def test_they_start_where_the_merge_has_them(method, zoo, store, tmp_path):
    slow = {**JOINT, "params": {**JOINT["params"], "steps": 1, "learning_rate": 1e-6, "coefficients": "task"}}
    layered = {**slow, "params": {**slow["params"], "coefficients": "layer"}}
    for call in (slow, layered) if method != "weight_average" else (slow,):
        report = run_recipe(recipe(zoo, method, (call,)), store, out=tmp_path / call["params"]["coefficients"])
        found = np.array(list(report.calibrators["joint"].merging["coefficients"].values()))
        start = MERGES[method][1]
        start = np.array(start if start else list(report.merged.details["coefficients"].values()))
        if start.ndim == 2 and found.ndim == 1:
            start = start.mean(axis=1)
        np.testing.assert_allclose(found if found.ndim == start.ndim else found[:, 0], start, atol=1e-5)
        own = load_file(tmp_path / call["params"]["coefficients"] / "calibrators" / "joint" / "merged.safetensors")
        merged = load_file(tmp_path / call["params"]["coefficients"] / "merged.safetensors")
        if call is layered or method != "adamerging":
            torch.testing.assert_close(own, {name: merged[name] for name in own}, rtol=1e-4, atol=1e-4)


def test_blocks_are_those_of_its_own_model(zoo, store, made):
    asked = {"recipe": recipe(zoo, calibrators=(JOINT,)).model_dump(mode="json"), "images": 8}
    folder = run_inline(plan_request("depth", asked, store), store)
    state = json.loads((folder / "depth.json").read_text())["tasks"]["alpha"]["states"]
    assert state["joint"]["class"]["l1"][0] != pytest.approx(state["merged"]["class"]["l1"][0], abs=1e-6)


def test_surgery_learns_them_without_being_asked_and_may_leave_them(zoo, store, tmp_path):
    params = {"rank": 2, "steps": 12, "batch_size": 8, "learning_rate": 0.01}
    calls = (
        {"method": "surgery_joint", "params": params},
        {"name": "frozen", "method": "surgery_joint", "params": {**params, "coefficients": "frozen"}},
        {"method": "surgery", "params": params},
    )
    report = run_recipe(recipe(zoo, calibrators=calls), store, out=tmp_path / "run")
    learned = np.array([report.calibrators["surgery_joint"].merging["coefficients"][name] for name in EXPERTS])
    assert (np.abs(learned - 0.2) > 1e-3).all()
    assert report.calibrators["surgery_joint"].parameters == report.calibrators["surgery"].parameters + len(EXPERTS)
    features = load_file(tmp_path / "run" / "features.safetensors")
    for task in ("alpha", "beta"):
        own, frozen, plain = (features[f"{name}/{task}/evaluate"] for name in ("surgery_joint", "frozen", "surgery"))
        torch.testing.assert_close(frozen, plain, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(own, plain, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "ties"}, "after Weight Averaging, Task Arithmetic, AdaMerging without transforms; found TIES"),
        (
            {"method": "ties", "calibrators": ({"method": "surgery_joint"},)},
            "after Weight Averaging, Task Arithmetic, AdaMerging without transforms; found TIES",
        ),
        ({"transforms": [{"method": "lwptv"}]}, "found Task Arithmetic behind transforms"),
        ({"merge": {"method": "task_arithmetic", "params": {"scaling": 1.5}}}, "Task Arithmetic has 1.5"),
        ({"merge": {"method": "adamerging", "params": {"clamp": False}}}, "`clamp: false`"),
        ({"calibrators": ({**JOINT, "on": "pretrained"},)}, "the pretrained model has no merging coefficients"),
    ],
)
def test_other_merges_are_refused_before_anything_is_computed(zoo, store, changes, message):
    with pytest.raises(RecipeError, match=message):
        plan_request("run", {"recipe": recipe(zoo, **changes).model_dump(mode="json")}, store)


def test_frozen_coefficients_keep_the_keys_of_older_recipes(zoo, store):
    written = {**FROZEN, "params": {**FROZEN["params"], "coefficients": "frozen", "registration": "once"}}
    plans = [
        plan_request("run", {"recipe": recipe(zoo, calibrators=(call,)).model_dump(mode="json")}, store)
        for call in (FROZEN, written)
    ]
    assert plans[0].result == plans[1].result
    step = next(step for step in plans[0].steps if step.name == "calibrate")
    assert "joint" not in step.params
    assert not {"coefficients", "registration", "trained_tokens", "adam_semantics"} & set(step.params.params)


def test_learned_coefficients_are_in_the_report_file(made):
    _, folder = made
    assert read_report(folder).calibrators["joint"].merging["coefficients"]
