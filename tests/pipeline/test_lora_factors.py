"""LoRA experts merged by their factors: the sum by hand, the cross terms that products lack, and what is refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine.errors import EngineError
from engine.manifest import read_manifest
from engine.merging.lora_factors import summed_factors
from engine.pipeline.export.verify import verify
from engine.pipeline.local import finetune_experts, run_recipe
from engine.pipeline.run.adapters import adapters_of
from engine.pipeline.run.findings import findings
from engine.pipeline.run.plan import plan_run
from engine.recipe import parse_recipe
from engine.store import Store
from engine.training.low_rank import drawn_start
from engine.zoo.folder import Zoo
from tests.pipeline.test_other_base import with_training_images
from tests.tiny_zoo import make_zoo

SCALING = 0.6
TASKS = ("alpha", "beta", "gamma")
BLOCK = "visual.transformer.resblocks.0."


def train(zoo, store, method, called="", tasks=TASKS, seed=0, **params):
    config = {"steps": 6, "batch_size": 8, "learning_rate": 0.05, "seed": seed}
    config |= {"method": method, "params": {"rank": 2, "targets": ["q", "v", "mlp"], **params}}
    finetune_experts({"zoo": str(zoo), "tasks": tasks, "config": config, "called": called}, store)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def adapted(tmp_path_factory, kept):
    """The tiny zoo with experts by LoRA, whose A trains, and by L-LoRA, whose A is frozen."""
    folder = with_training_images(make_zoo(tmp_path_factory.mktemp("adapted") / "tiny"))
    train(folder, kept, "lora")
    train(folder, kept, "l_lora")
    train(folder, kept, "lora", "other_seed", ("beta",), seed=3)
    train(folder, kept, "lora", "wider", ("beta",), rank=3)
    train(folder, kept, "osrm", "osrm", ("beta",), rank=2)
    return folder


def asked(zoo, how, method="lora_factors", scaling=SCALING, **changes):
    experts = [f"{task}-{how}" for task in TASKS] if isinstance(how, str) else list(how)
    merge = {"method": method, "params": {"scaling": scaling}}
    return parse_recipe({"zoo": str(zoo), "experts": experts, "merge": merge, **changes})


def merged(recipe, store):
    run_recipe(recipe, store)
    step = next(step for step in plan_run(recipe, store).steps if step.name == "merge")
    return load_file(store.find(step.key) / "merged.safetensors")


def test_factors_are_added_as_by_hand(adapted, kept):
    base, found = load_file(adapted / "base.safetensors"), merged(asked(adapted, "lora"), kept)
    files = [load_file(adapted / f"factors/{task}-lora.safetensors") for task in TASKS]
    places = {
        "attn.q": ("attn.in_proj_weight", 0),
        "attn.v": ("attn.in_proj_weight", 64),
        "mlp.fc": ("mlp.c_fc.weight", 0),
    }
    expected = {name: tensor.clone() for name, tensor in base.items()}
    for matrix, (tensor, first) in places.items():
        name = BLOCK + matrix
        down, up = ([file[f"{name}.lora_{kind}"] for file in files] for kind in "AB")
        start = drawn_start(name.removeprefix("visual."), 2, down[0].shape[1], 0)
        assert all((one - start).norm() > 1e-3 for one in down), "A has trained"
        product = (SCALING * sum(up)) @ (start + SCALING * sum(one - start for one in down))
        expected[BLOCK + tensor][first : first + len(product)] += product
    for name in (f"{BLOCK}{tensor}" for tensor, _ in places.values()):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6)
    rows = slice(32, 64)  # keys, which have no adapter
    torch.testing.assert_close(found[f"{BLOCK}attn.in_proj_weight"][rows], base[f"{BLOCK}attn.in_proj_weight"][rows])


def test_with_a_frozen_start_factors_add_up_like_products_and_else_they_do_not(adapted, kept):
    apart = {}
    for how in ("l_lora", "lora"):
        factors, products = (
            merged(asked(adapted, how, method), kept) for method in ("lora_factors", "task_arithmetic")
        )
        apart[how] = max(float((factors[name] - products[name]).abs().max()) for name in factors)
    assert apart["l_lora"] < 1e-5 < 100 * apart["l_lora"] < apart["lora"]


def test_one_expert_at_full_length_is_itself_both_ways(adapted, kept):
    found = merged(asked(adapted, ["alpha-lora"], scaling=1.0), kept)
    own = load_file(adapted / "experts" / "alpha-lora.safetensors")
    for name, tensor in own.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


def test_the_key_names_factors_and_start(adapted, kept):
    def step(recipe):
        return next(step for step in plan_run(recipe, kept).steps if step.name == "merge")

    params = step(asked(adapted, "lora")).params
    assert {name: seed for name, (_, seed) in params.factors.items()} == dict.fromkeys(
        params.digests.keys() - {"base"}, 0
    )
    assert (params.probe, params.data) == (None, None), "no images are looked at"
    assert step(asked(adapted, "lora", "task_arithmetic")).params.factors is None


FAULTS = {
    "other start": (["alpha-lora", "beta-other_seed"], "started from different A"),
    "other rank": (["alpha-lora", "beta-wider"], "ranks 2 and 3"),
    "unknown start": (["alpha-lora", "beta-osrm"], "Where the factors of 'beta-osrm' started is not known"),
    "no factors": (["alpha-lora", "beta"], "the zoo lists none of beta"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_added_is_refused_with_the_reason(fault, adapted, kept):
    experts, reason = FAULTS[fault]
    with pytest.raises(EngineError, match=reason):
        run_recipe(asked(adapted, experts), kept)
    errors = [
        found.text for found in findings(asked(adapted, experts), Zoo.open(str(adapted))) if found.level == "error"
    ]
    assert bool(errors) == (fault == "no factors"), "the form knows it as soon as the manifest tells it"


def test_transforms_of_task_vectors_are_refused_since_factors_would_not_change(adapted, kept):
    call = {"method": "wise_ft", "params": {"alpha": 0.5}}
    after, before = (asked(adapted, "lora", transforms=[{"method": name}]) for name in ("lines", "lwptv"))
    assert not [found for found in findings(after, Zoo.open(str(adapted))) if found.level == "error"]
    for recipe in (before, asked(adapted, "lora", transforms=[call])):
        with pytest.raises(EngineError, match="would not change"):
            run_recipe(recipe, kept)


def test_adapters_beside_other_matrices_are_refused(adapted):
    opened = Zoo.open(str(adapted))
    adapters = adapters_of(opened, "alpha-lora")
    assert len(adapters) == 2 * 4
    one = next(iter(adapters.values()))
    down, up = summed_factors([one], 1.0)
    assert torch.equal(down, one.start + (one.down - one.start))
    assert torch.equal(up, one.up)


def test_a_merged_file_is_verified_with_its_factors(command, adapted, kept, tmp_path):
    run_recipe(asked(adapted, "lora"), kept, out=tmp_path / "run")
    file = tmp_path / "merged.safetensors"
    assert command("export", tmp_path / "run", "--to", file).code == 0
    assert verify(file).differing == ()
    origins = json.loads((tmp_path / "merged.receipt.json").read_text())
    assert "factors" in json.dumps(origins)
    factors = adapted / read_manifest(adapted).expert_table["gamma-lora"].factors
    before = factors.read_bytes()
    try:
        changed = bytearray(before)
        changed[-4:] = np.float32(0.5).tobytes()
        factors.write_bytes(bytes(changed))
        assert verify(file).changed == ("factors of gamma-lora",)
    finally:
        factors.write_bytes(before)
