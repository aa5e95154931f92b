"""Training that cannot be, or that breaks off: what a run says then, and what it keeps."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine.calibration.base import load_calibrator
from engine.errors import CalibrationError, EngineError
from engine.pipeline.local import finetune_experts, run_recipe
from engine.pipeline.zoos import training as training_run
from engine.recipe import parse_recipe
from engine.store import Store
from engine.weights import Memory, SafetensorsFile, write_weights
from tests.pipeline.test_other_base import with_training_images
from tests.tiny_zoo import make_zoo

WILD = {
    "method": "prob_surgery",
    "params": {"steps": 60, "hidden": 2048, "batch_size": 8, "learning_rate": 1.0, "kl_weight": 10.0},
}  # exp(log σ²) overflows after a handful of updates


@pytest.fixture
def zoo(tmp_path):
    return make_zoo(tmp_path / "tiny")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def recipe(zoo, *calibrators, **parts):
    return parse_recipe({"zoo": str(zoo), "calibrators": list(calibrators), **parts})


def test_divergence_in_mid_training_keeps_the_last_good_state_and_names_the_step(zoo, store, tmp_path):
    report = run_recipe(recipe(zoo, WILD), store, out=tmp_path / "run")
    part = report.calibrators["prob_surgery"]
    last = part.curve[-1][0]
    assert 0 < last < part.diverged_at <= last + 3  # it is looked for every third update
    assert (
        f"prob_surgery: Training of prob_surgery diverged at update {part.diverged_at}; "
        f"the state after update {last:.0f} is kept. Lower the learning rate."
    ) in report.warnings
    module = load_calibrator(tmp_path / "run" / "calibrators" / "prob_surgery.safetensors")
    assert all(torch.isfinite(value).all() for value in module.parameters())
    kept = {**WILD, "params": {**WILD["params"], "steps": int(last)}}
    run_recipe(recipe(zoo, kept), store, out=tmp_path / "kept")
    stopped = load_calibrator(tmp_path / "kept" / "calibrators" / "prob_surgery.safetensors")
    for name, value in module.named_parameters():
        torch.testing.assert_close(value, stopped.get_parameter(name))
    corrected = load_file(tmp_path / "run" / "features.safetensors")
    assert all(np.isfinite(corrected[name].numpy()).all() for name in corrected if name.startswith("prob_surgery/"))


def test_divergence_before_anything_was_learned_fails_with_the_step(zoo, store):
    hopeless = {**WILD, "params": {**WILD["params"], "steps": 2000}}
    with pytest.raises(CalibrationError, match=r"ProbSurgery diverged at step \d+, before anything was learned"):
        run_recipe(recipe(zoo, hopeless), store)
    row = store.runs.list(kinds=("run",))[0]
    assert row.state == "failed"
    assert "Lower the learning rate" in row.error
    assert "Traceback" not in row.error


def test_a_task_without_adaptation_images_is_named(zoo, store):
    path = zoo / "data" / "beta.npz"
    arrays = dict(np.load(path))
    del arrays["adapt_x"]  # then half of a class's test images are adapted on, and of one image that is none
    np.savez_compressed(path, **{**arrays, "test_x": arrays["test_x"][:1], "test_y": arrays["test_y"][:1]})
    with pytest.raises(CalibrationError, match=r"'beta' has no images to adapt on; give it some or leave the task out"):
        run_recipe(recipe(zoo, {"method": "surgery", "params": {"steps": 5, "rank": 2}}), store)
    with pytest.raises(CalibrationError, match="'beta' has no images to adapt on"):
        run_recipe(recipe(zoo, {"method": "interv_merge", "params": {"steps": 2}}), store)
    without = recipe(zoo, {"method": "surgery", "params": {"steps": 5, "rank": 2}}, experts=["alpha", "gamma"])
    assert run_recipe(without, store).calibrators["surgery"].curve


@pytest.mark.parametrize("method", ["surgery", "prob_surgery", "surgery_v2", "surgery_joint", "interv_merge"])
def test_a_batch_larger_than_a_task_says_which_and_how_large_it_may_be(zoo, store, method):
    path = zoo / "data" / "gamma.npz"
    arrays = dict(np.load(path))
    np.savez_compressed(path, **{**arrays, "adapt_x": arrays["adapt_x"][:9]})
    call = {"method": method, "params": {"steps": 2, "batch_size": 16}}
    with pytest.raises(
        CalibrationError, match=r"'gamma' has 9 images .* batch size of 16\. Set batch_size to at most 9"
    ):
        run_recipe(recipe(zoo, call), store)


def tune(zoo, store, progress=None):
    config = {"steps": 5, "batch_size": 8}
    request = {"zoo": str(zoo), "tasks": ["alpha"], "config": config, "replace": True, "checkpoint_every": 1}
    finetune_experts(request, store, progress=progress)
    return (zoo / "experts" / "alpha.safetensors").read_bytes()


def test_a_damaged_checkpoint_is_as_good_as_none(zoo, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.pipeline.tools.PROGRESS_INTERVAL", 0)
    with_training_images(zoo)
    whole, store = tune(zoo, Store(tmp_path / "whole")), Store(tmp_path / "damaged")

    def stop(fraction, message=""):
        if "step 3 of" in message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(zoo, store, progress=stop)
    (checkpoint,) = store.root.glob("checkpoints/*.safetensors")
    file = SafetensorsFile(checkpoint)
    kept = {name: file.tensor(name).clone() for name in file.names if name != "exp_avg.0"}
    write_weights(checkpoint, Memory(kept), metadata=dict(file.metadata))
    assert tune(zoo, store) == whole
    (run,) = store.runs.list(kinds=("finetune",), states=("finished",))
    said = " ".join(line.line for line in store.runs.logs.read(run.id))
    assert "has no exp_avg.0 that fits); training starts anew" in said


def test_weights_that_a_last_step_broke_are_not_written(zoo, store, monkeypatch):
    with_training_images(zoo)
    before, real = (zoo / "experts" / "alpha.safetensors").read_bytes(), training_run.Trainer.advance

    def breaks(self, *given):
        loss = real(self, *given)
        if self.step == 5:
            next(iter(self.trained.values())).data.fill_(torch.inf)
        return loss

    monkeypatch.setattr(training_run.Trainer, "advance", breaks)
    with pytest.raises(EngineError, match=r"'alpha' diverged: .* is not finite as float32 after the last step"):
        tune(zoo, store)
    assert (zoo / "experts" / "alpha.safetensors").read_bytes() == before
