"""Steps that run an encoder want an accelerator; where there is one, it gives the same as a processor."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from engine.catalog import MERGE_METHODS, params_of
from engine.merging.scaled import Scaled
from engine.pipeline.local import run_recipe
from engine.pipeline.run import plan as planning
from engine.pipeline.run.context import MergeContext
from engine.pipeline.run.plan import plan_run
from engine.pipeline.steps import located
from engine.pipeline.tools import StepTools
from engine.recipe import Probe, parse_recipe
from engine.weights import LazyTaskVectors, Memory
from engine.weights import on_device as devices
from engine.weights.on_device import held, on_device
from engine.zoo.folder import Zoo

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SUM = {"method": "task_arithmetic", "params": {"scaling": 0.4}}
LEARNED = {"method": "adamerging", "params": {"steps": 6, "granularity": "layer", "learning_rate": 0.02}}
MASKS = [
    {"method": "concrete", "params": {"steps": 3, "coefficients": "layer", "coefficient_steps": 3}},
    {"method": "localize_and_stitch_learned", "params": {"epochs": 2, "examples": 32}},
]
CALIBRATORS = [
    {"name": "inside", "method": "interv_merge", "params": {"steps": 6, "batch_size": 4}},
    {"name": "all", "method": "surgery_v2", "params": {"steps": 6, "batch_size": 4}},
    {"name": "joint", "method": "surgery_joint", "params": {"steps": 6, "batch_size": 4, "coefficients": "layer"}},
    {"name": "outside", "method": "surgery", "params": {"steps": 6, "batch_size": 4}},
]


def asked(zoo, **changes):
    return parse_recipe({"zoo": str(zoo), "merge": SUM, **changes})


def placed(recipe, store):
    """Return whether steps want an accelerator, by what they do."""
    return {step.label: step.gpu for step in plan_run(recipe, store).steps if step.name in ("merge", "calibrate")}


def test_merges_that_look_at_images_and_calibrators_inside_want_an_accelerator(zoo, store, monkeypatch):
    monkeypatch.setattr(planning, "device_class", lambda device: "cuda/bfloat16")
    found = placed(asked(zoo, merge=LEARNED, calibrators=CALIBRATORS), store)
    assert [label for label, gpu in found.items() if not gpu] == ["Training Surgery"]
    assert placed(asked(zoo), store) == {"Merging with Task Arithmetic": False}
    images = {"method": "repair", "params": {"images": 8}}
    assert placed(asked(zoo, transforms=[images]), store) == {"Merging with Task Arithmetic": True}


def test_nothing_wants_an_accelerator_where_there_is_none(zoo, store, monkeypatch):
    monkeypatch.setattr(planning, "device_class", lambda device: "cpu/float32")
    assert not any(placed(asked(zoo, merge=LEARNED, calibrators=CALIBRATORS), store).values())


def test_held_vectors_are_the_lazy_ones_and_copies(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    shapes = {"a.weight": (3, 4), "a.bias": (3,), "scale": ()}
    base, *experts = (
        Memory({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}) for _ in range(3)
    )
    lazy = LazyTaskVectors(base, {"one": experts[0], "two": experts[1]}, weights=(1.0, 0.5))
    weights, vectors = held(base, lazy, torch.device("cpu"))
    assert (vectors.names, vectors.experts, vectors.dtype) == (lazy.names, lazy.experts, lazy.dtype)
    assert weights.names == base.names
    for name in lazy.names:
        vectors.stack(name).zero_()
        vectors.vector(name, "two").zero_()
        assert torch.equal(vectors.stack(name), lazy.stack(name))
        assert torch.equal(vectors.vector(name, "two"), lazy.vector(name, "two"))
        assert vectors.shape(name) == weights.shape(name) == shapes[name]
        assert torch.equal(weights.tensor(name), base.tensor(name))
    assert on_device(base, lazy, torch.device("cpu"))[1].names == lazy.names
    monkeypatch.setattr(devices, "SMALL", 3 * 16 * 4 - 1)  # two experts and the base, 16 entries of 4 bytes
    assert on_device(base, lazy, torch.device("cpu")) == (base, lazy)


@needs_cuda
def test_another_scaling_is_written_into_an_encoder_on_the_accelerator():
    generator = torch.Generator().manual_seed(0)
    base = Memory({"a": torch.randn(5, 4, generator=generator), "b": torch.randn(3, generator=generator)})
    scaled = Scaled(base, {"a": torch.randn(5, 4, generator=generator)}, 0.3)
    for name in base.names:
        out = torch.empty(base.shape(name), device="cuda")
        scaled.read_into(name, out)
        torch.testing.assert_close(out.cpu(), scaled.tensor(name))


@needs_cuda
@pytest.mark.parametrize("merge", [LEARNED, *MASKS], ids=lambda merge: merge["method"])
def test_merges_learn_on_the_accelerator_as_on_the_processor(merge, zoo, store):
    opened = Zoo.open(str(zoo))
    names = [expert.name for expert in opened.manifest.experts]
    tasks = tuple(opened.manifest.expert_table[name].task for name in names)
    digests = {name: store.digest_file(opened.weights_path(name)) for name in ("base", *names)}
    base = opened.weights("base")
    vectors = LazyTaskVectors(base, {name: opened.weights(name) for name in names})
    row = MERGE_METHODS[merge["method"]]
    found = []
    for device in ("cpu", "cuda"):
        context = MergeContext(opened, tasks, digests, Probe(), 0, StepTools(store), device=device)
        found.append(row.load()(base, vectors, params_of(row, merge["params"]), context))
    if "coefficients" in found[0].info.details:
        rows = [torch.tensor(list(merged.info.details["coefficients"].values())) for merged in found]
        torch.testing.assert_close(*rows, rtol=0, atol=2e-3)
    moved = [(merged.weights.tensor(name) - base.tensor(name)).flatten() for merged in found for name in vectors.names]
    one, other = torch.cat(moved[: len(vectors.names)]), torch.cat(moved[len(vectors.names) :])
    assert functional.cosine_similarity(one, other, dim=0) > 0.99


@needs_cuda
def test_calibrators_inside_train_on_the_accelerator_as_on_the_processor(zoo, store, tmp_path):
    recipe = asked(zoo, calibrators=CALIBRATORS[:3])
    run_recipe(recipe, store)
    steps = {step.key: step for step in plan_run(recipe, store).steps}
    trained = [step for step in steps.values() if step.name == "calibrate"]
    assert len(trained) == 3
    for step in trained:
        again = tmp_path / step.key
        again.mkdir()
        step.kind(located(step.inputs, store.find), step.params, again, StepTools(store, key=step.key, device="cpu"))
        one, other = (load_file(place / "corrected.safetensors") for place in (store.find(step.key), again))
        assert one.keys() == other.keys()
        for task, rows in one.items():
            torch.testing.assert_close(rows, other[task], rtol=2e-2, atol=2e-3)
        curves = [json.loads((p / "calibration.json").read_text())["curve"] for p in (store.find(step.key), again)]
        assert curves[0][-1][1] == pytest.approx(curves[1][-1][1], rel=1e-2)
