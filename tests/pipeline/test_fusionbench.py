"""FusionBench's files in and out: names and parameters as its release 0.2.33 has them; the rest is refused by name."""

import pytest
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from engine.__main__ import app
from engine.catalog import MERGE_METHODS, resolve
from engine.errors import RecipeError, ZooError
from engine.manifest import Manifest
from engine.pipeline.foreign.fusionbench import is_fusionbench_method, read_method, write_method
from engine.pipeline.foreign.fusionbench_pool import read_pool, write_pool
from engine.pipeline.foreign.fusionbench_table import COUNTERPARTS
from engine.recipe import MethodCall, parse_recipe, read_recipe
from tests.tiny_zoo import make_zoo

EXPERTS = ("alpha", "beta", "gamma")
# Method files of FusionBench 0.2.33 as they stand in fusion_bench_config/method, without comments and settings of
# devices, and the recipe's merge that each means.
SHIPPED = {
    "simple_average": ({"_target_": "fusion_bench.method.SimpleAverageAlgorithm"}, "weight_average", {}),
    "task_arithmetic": (
        {"_target_": "fusion_bench.method.TaskArithmeticAlgorithm", "scaling_factor": 0.3},
        "task_arithmetic",
        {"scaling": 0.3},
    ),
    "ties_merging": (
        {
            "_target_": "fusion_bench.method.TiesMergingAlgorithm",
            "scaling_factor": 0.3,
            "threshold": 20,
            "remove_keys": [],
            "merge_func": "sum",
        },
        "ties",
        {"scaling": 0.3, "density": 0.2, "merge": "sum", "scope": "model"},
    ),
    "slerp": (
        {"_target_": "fusion_bench.method.SlerpMergeAlgorithm", "t": 0.5, "DOT_THRESHOLD": 0.9995, "epsilon": "1e-8"},
        "slerp",
        {"t": 0.5, "on": "weights"},
    ),
    "iso_cts": (
        {
            "_target_": "fusion_bench.method.ISO_CTS_Merge",
            "scaling_factor": 1.0,
            "common_space_fraction": 0.8,
            "exclude_keys": None,
        },
        "iso_cts",
        {"scaling": 1.0, "common": 0.8},
    ),
    "fisher": (
        {
            "_target_": "fusion_bench.method.FisherMergingForCLIPVisionModel",
            "exclude_param_names_regex": [],
            "normalize_fisher_weight": True,
            "minimal_fisher_weight": "1e-6",
            "num_fisher_examples": 256,
            "dataloader_kwargs": {"batch_size": 32, "num_workers": 0},
        },
        "fisher",
        {"examples": 256, "normalise": True, "smallest": 1e-6},
    ),
    "doge": (
        {"_target_": "fusion_bench.method.DOGE_TA_Algorithm", "subspace": 6, "K": 30, "lamda": 0.07},
        "doge",
        {"basis_divisor": 6, "density": 0.3, "scaling": 0.07},
    ),
    "layer_wise_adamerging": (
        {
            "name": "clip_layer_wise_adamerging",
            "weights": None,
            "optimizer": "adam",
            "lr": "1e-3",
            "init_values": 0.3,
            "clamp_weights": False,
            "tie_weights": True,
            "strict": False,
            "devices": 1,
            "batch_size": 16,
            "num_workers": 8,
            "max_steps": 1000,
            "fast_dev_run": "${fast_dev_run}",
            "save_merging_weights": "merging_weights.pt",
            "cache_dir": "outputs",
        },
        "adamerging",
        {"granularity": "layer", "learning_rate": 1e-3, "initial": 0.3, "steps": 1000, "clamp": False},
    ),
}


def read(tmp_path, document):
    path = tmp_path / "method.yaml"
    path.write_text(yaml.safe_dump(document))
    return read_method(path, "tiny", EXPERTS)


@pytest.mark.parametrize("name", SHIPPED)
def test_its_own_files_are_read(tmp_path, name):
    document, method, params = SHIPPED[name]
    found = read(tmp_path, document).merge
    if found.method == "by_layer":  # query, key and value apart
        assert found.params["naming"] == "huggingface"
        found = MethodCall(method=found.params["method"], params=found.params["params"])
    assert found.method == method
    assert {key: found.params[key] for key in params} == params


@pytest.mark.parametrize("row", COUNTERPARTS, ids=lambda row: row.theirs)
def test_there_and_back(tmp_path, row):
    """Every counterpart, with its fixed parameters and another value of each that it shares."""
    fields = MERGE_METHODS[row.ours].params.model_fields
    changed = {}
    for item in row.renamed.values():
        default = fields[item.ours].default
        if isinstance(default, float):
            changed[item.ours] = default * 0.5
        elif isinstance(default, int) and not isinstance(default, bool):
            changed[item.ours] = max(default - 1, 1)
    transforms = [{"method": "dare", "params": {"drop_rate": 0.75, "rescale": False}}] if row.dare else []
    merge = {"method": row.ours, "params": {**row.fixed, **changed}}
    if row.apart:
        merge = {"method": "by_layer", "params": {**merge, "naming": "huggingface"}}
    before = resolve(parse_recipe({"zoo": "tiny", "merge": merge, "transforms": transforms}))
    written = yaml.safe_load(write_method(before))
    assert written.get("name", written.get("_target_", "").removeprefix("fusion_bench.method.")) == row.theirs
    again = read(tmp_path, written)
    assert write_method(again) == write_method(before)
    if not row.apart:
        assert again == before


def test_dare_and_weights_of_models(tmp_path):
    document = {"_target_": "fusion_bench.method.dare.DareTiesMerging", "sparsity_ratio": 0.9, "threshold": 10}
    found = read(tmp_path, document)
    assert found.transforms[0].params == {"drop_rate": 0.9, "rescale": True}
    assert found.merge.params["density"] == pytest.approx(0.1)
    weighted = {"_target_": "fusion_bench.method.WeightedAverageAlgorithm", "normalize": True, "weights": [2, 1, 1]}
    found = read(tmp_path, weighted)
    assert [expert.weight for expert in found.experts] == [0.5, 0.25, 0.25]
    assert read(tmp_path, yaml.safe_load(write_method(found))) == found


@pytest.mark.parametrize("density", [0.2, 0.02, 0.01, 0.005])
@pytest.mark.parametrize("theirs", ["threshold", "K"])
def test_a_small_density_is_written_as_the_share_that_fusionbench_takes_it_for(tmp_path, theirs, density):
    """Only numbers above 1 are divided by 100 there."""
    merge = {"method": "ties", "params": {"density": density}}
    if theirs == "K":
        merge = {"method": "doge", "params": {"density": density}}
        merge = {"method": "by_layer", "params": {**merge, "naming": "huggingface"}}
    written = yaml.safe_load(write_method(parse_recipe({"zoo": "tiny", "merge": merge})))
    assert (written[theirs] / 100 if written[theirs] > 1 else written[theirs]) == pytest.approx(density)
    params = read(tmp_path, written).merge.params
    assert (params["params"] if theirs == "K" else params)["density"] == pytest.approx(density)


def test_a_name_that_is_no_text_is_no_method():
    assert not is_fusionbench_method({"name": ["clip_layer_wise_adamerging"]})


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({"_target_": "fusion_bench.method.RegMeanAlgorithmForCLIP", "weight_transpose": False}, "weight_transpose"),
        ({"name": "clip_layer_wise_adamerging", "optimizer": "sgd"}, "optimizer"),
        ({"_target_": "fusion_bench.method.BitDeltaAlgorithm"}, "BitDelta"),
        ({"name": "clip_pwe_moe"}, "clip_pwe_moe"),
        ({"_target_": "fusion_bench.method.TiesMergingAlgorithm", "remove_keys": ["a"]}, "remove_keys"),
        ({"_target_": "fusion_bench.method.TiesMergingAlgorithm", "surprise": 1}, "surprise"),
        ({"_target_": "fusion_bench.method.TiesMergingAlgorithm", "threshold": "much"}, "threshold"),
        ({"_target_": "fusion_bench.method.SlerpMergeAlgorithm", "DOT_THRESHOLD": 0.9}, "DOT_THRESHOLD"),
        ({"_target_": "fusion_bench.method.WeightedAverageAlgorithm", "weights": [1, 1]}, "alpha, beta, gamma"),
        (
            {"_target_": "fusion_bench.method.WeightedAverageAlgorithm", "weights": [1, 1, 1], "normalize": False},
            "sum to 3",
        ),
        ({"scaling_factor": 1}, "_target_"),
        ([1], "list"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(tmp_path, document, word):
    with pytest.raises(RecipeError, match=word):
        read(tmp_path, document)


@pytest.mark.parametrize(
    ("recipe", "word"),
    [
        ({"merge": {"method": "pcb"}}, "pcb"),
        ({"merge": {"method": "ties", "params": {"scope": "tensor"}}}, "scope"),
        (
            {
                "merge": {
                    "method": "by_layer",
                    "params": {
                        "method": "model_stock",
                        "naming": "huggingface",
                        "params": {"clamp": False, "by_task": True},
                    },
                }
            },
            "by_task",
        ),
        ({"transforms": [{"method": "lwptv"}]}, "lwptv"),
        ({"experts": [{"name": "alpha", "weight": 0.5}, "beta"]}, "sums to 1"),
    ],
)
def test_recipes_without_counterpart_are_refused(recipe, word):
    with pytest.raises(RecipeError, match=word):
        write_method(parse_recipe({"zoo": "tiny", **recipe}))


TASKS = ("sun397", "stanford-cars", "resisc45", "eurosat", "svhn", "gtsrb", "mnist", "dtd")
POOL = {
    "defaults": [{"/dataset/image_classification/test@test_datasets": list(TASKS)}, "_self_"],
    "_target_": "fusion_bench.modelpool.CLIPVisionModelPool",
    "_recursive_": False,
    "processor": "openai/clip-vit-base-patch32",
    "models": {
        "_pretrained_": "openai/clip-vit-base-patch32",
        **{task: f"tanganke/clip-vit-base-patch32_{task}" for task in TASKS},
    },
    "platform": "hf",
}


def pool(tmp_path, document, name="clip-vit-base-patch32_TA8.yaml"):
    path = tmp_path / name
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return Manifest.model_validate(yaml.safe_load(read_pool(path)))


def test_a_pool_is_read_as_a_zoo_and_written_again(tmp_path):
    zoo = pool(tmp_path, POOL)
    assert zoo.backbone.weights == "hf:openai/clip-vit-base-patch32"
    assert [expert.name for expert in zoo.experts] == list(TASKS)
    assert zoo.experts[1].weights == "hf:tanganke/clip-vit-base-patch32_stanford-cars"
    cars = zoo.task_table["stanford-cars"]
    assert cars.dataset == "stanford_cars"
    assert len(cars.classes) == 196
    back = yaml.safe_load(write_pool(zoo))
    assert {key: back[key] for key in ("_target_", "processor", "models", "platform")} == {
        key: POOL[key] for key in ("_target_", "processor", "models", "platform")
    }


def test_a_described_zoo_becomes_the_pool_that_ships():
    from engine.manifest import ASSETS

    zoo = Manifest.model_validate(yaml.safe_load((ASSETS / "zoos" / "clip-vit-b32-ta8.yaml").read_text()))
    assert yaml.safe_load(write_pool(zoo))["models"] == POOL["models"]


@pytest.mark.parametrize(
    ("listed", "count"),
    [
        (["clip-vit-base-patch32", "clip-vit-base-patch32_stanford-cars", "clip-vit-base-patch32_dtd"], 2),
        ("clip-vit-base-patch32_eight_tasks", 8),
        ("clip-vit-base-patch32_TALL20", 20),
        ("clip-vit-base-patch32_TALL10", 10),
    ],
)
def test_names_of_the_group_stand_for_repositories(tmp_path, listed, count):
    document = {"defaults": [{"CLIPVisionModelPool@": "_template"}, {"/model/clip-vit@models": listed}]}
    zoo = pool(tmp_path, document)
    assert len(zoo.experts) == count
    assert all(expert.weights.startswith("hf:tanganke/clip-vit-base-patch32_") for expert in zoo.experts)


def test_loaders_of_adapters_are_read(tmp_path):
    """As in clip-vit-base-patch16_TA8_lora.yaml."""
    place = "fusion_bench.models.linearized.vision_model."
    base = "openai/clip-vit-base-patch16"
    models = {
        "_pretrained_": {"_target_": place + "load_fft_vision_model_hf", "model_name": base},
        "dtd": {
            "_target_": place + "load_lora_vision_model_hf",
            "base_model_name": base,
            "peft_name": "tanganke/clip-vit-base-patch16_dtd_lora-16",
            "merge_and_unload": True,
        },
    }
    zoo = pool(tmp_path, {"_target_": POOL["_target_"], "models": models})
    assert zoo.backbone.architecture == "ViT-B-16"
    assert zoo.experts[0].weights == "hf:tanganke/clip-vit-base-patch16_dtd_lora-16"


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({"_target_": "fusion_bench.modelpool.CausalLMPool", "models": {}}, "CLIPVisionModelPool"),
        ({"_target_": POOL["_target_"], "models": {"dtd": "a/b"}}, "_pretrained_"),
        ({"_target_": POOL["_target_"], "models": {"_pretrained_": "google/vit", "dtd": "a/b"}}, "google/vit"),
        ({**POOL, "models": {**POOL["models"], "dtd": {"_target_": "some.loader"}}}, "some.loader"),
        ({**POOL, "models": {**POOL["models"], "dtd": "../../etc/passwd"}}, "passwd"),
        ({"_target_": POOL["_target_"], "defaults": [{"/model/clip-vit@models": "flan"}]}, "flan"),
    ],
)
def test_other_pools_are_refused(tmp_path, document, word):
    with pytest.raises(ZooError, match=word):
        pool(tmp_path, document)


def test_the_command_converts_all_of_them(tmp_path):
    zoo = make_zoo(tmp_path / "zoo")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"zoo: {zoo}\nmerge: {{method: ties}}\nseeds: [1, 2]\n")
    run = CliRunner().invoke
    there = run(app, ["convert", str(recipe), "--for", "fusionbench", "--to", str(tmp_path / "m.yaml")])
    assert there.exit_code == 0, there.output
    assert "Not in a method file: seeds" in there.output
    assert yaml.safe_load((tmp_path / "m.yaml").read_text())["threshold"] == 20
    back = run(app, ["convert", str(tmp_path / "m.yaml"), "--zoo", str(zoo), "--to", str(tmp_path / "b.yaml")])
    assert back.exit_code == 0, back.output
    assert "no projection, whose entries count" in there.output
    projection = load_file(zoo / "base.safetensors")["visual.proj"].numel()
    read = resolve(read_recipe(recipe)).merge
    expected = {**read.params, "frozen_parameters": -projection}
    assert read_recipe(tmp_path / "b.yaml").merge == MethodCall(method="ties", params=expected)
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(POOL))
    assert run(app, ["convert", str(tmp_path / "pool.yaml"), "--to", str(tmp_path / "z.yaml")]).exit_code == 0
    result = run(app, ["convert", str(tmp_path / "z.yaml"), "--to", str(tmp_path / "p.yaml")])
    assert result.exit_code == 0, result.exception
    assert yaml.safe_load((tmp_path / "p.yaml").read_text())["models"] == POOL["models"]
    refused = run(app, ["convert", str(zoo / "zoo.yaml"), "--to", str(tmp_path / "q.yaml")])
    assert isinstance(refused.exception, ZooError)
