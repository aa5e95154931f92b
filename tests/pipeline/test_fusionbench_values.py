"""Values that FusionBench 0.2.33 makes of our pool and method files, beside those of their recipes here."""

import json

import pytest
import torch
import yaml

from engine.errors import MergeError, RecipeError
from engine.merging.apply import merge
from engine.pipeline.foreign.fusionbench import read_method
from engine.pipeline.foreign.fusionbench_pool import read_pool, write_pool
from engine.pipeline.run.weights_only import WeightsOnly
from engine.recipe import parse_recipe
from engine.weights import LazyTaskVectors, Memory
from engine.weights.huggingface import ToHuggingFace
from tests.packed import unpack
from tests.pipeline.fusionbench_made import LACKING, RECIPES, TASKS, VALUES, VERSION, encoder, manifest, written

EXPECTED, ABOUT = unpack(VALUES)
TEXTS = json.loads(ABOUT["texts"])


def merged_by(recipe):
    """The tensors of a recipe's merge of the made models, as Hugging Face names them."""
    models = {name: Memory({key: torch.from_numpy(v) for key, v in encoder(name).items()}) for name in ("base", *TASKS)}
    chosen = dict.fromkeys(TASKS, 1.0)
    if recipe.experts != "all":
        chosen = {expert.name: expert.weight for expert in recipe.experts}
    experts = {name: models[name] for name in chosen}
    vectors = LazyTaskVectors(models["base"], experts, list(chosen.values()))
    found = merge(models["base"], vectors, recipe.transforms, recipe.merge, WeightsOnly(tuple(experts))).weights
    return ToHuggingFace(Memory({name: found.tensor(name) for name in found.names}))


def check(name, merged):
    expected = {key.removeprefix(f"{name}/"): v for key, v in EXPECTED.items() if key.startswith(f"{name}/")}
    assert set(merged.names) - set(expected) == {"visual_projection.weight"}
    for key, value in expected.items():
        torch.testing.assert_close(merged.tensor(key), value, rtol=0, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("name", RECIPES)
def test_a_written_method_is_what_fusionbench_computed_with(name):
    assert written(RECIPES[name]) == TEXTS[name]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_computes_what_fusionbench_made_of_its_method_file(name):
    check(name, merged_by(parse_recipe({"zoo": "made", **RECIPES[name]})))


@pytest.mark.parametrize("name", RECIPES)
def test_the_method_file_is_read_as_the_same_merge(name, tmp_path):
    path = tmp_path / "method.yaml"
    path.write_text(TEXTS[name])
    recipe = read_method(path, "made", TASKS, lambda: -LACKING)
    if name == "slerp":  # the pool says which two
        recipe = recipe.model_copy(update={"experts": parse_recipe({"zoo": "made", **RECIPES[name]}).experts})
    check(name, merged_by(recipe))


def test_the_pool_is_the_one_that_fusionbench_loaded(tmp_path):
    assert write_pool(manifest()) == TEXTS["pool"]
    path = tmp_path / "pool.yaml"
    path.write_text(TEXTS["pool"])
    assert [expert["name"] for expert in yaml.safe_load(read_pool(path))["experts"]] == list(TASKS)


def test_the_values_name_their_version_and_differ_between_methods():
    assert f"FusionBench {VERSION}" == ABOUT["made_with"]
    assert {key.partition("/")[0] for key in EXPECTED} == set(RECIPES)
    place = "vision_model.encoder.layers.0.self_attn.q_proj.weight"
    values = [
        EXPECTED[f"{name}/{place}"] for name in RECIPES if name not in ("dare_task_arithmetic", "dare_simple_average")
    ]
    assert all((one - other).abs().max() > 1e-3 for at, one in enumerate(values) for other in values[:at])


@pytest.mark.parametrize(
    ("recipe", "word"),
    [
        ({"merge": {"method": "iso_c"}}, "query, key and value"),
        ({"merge": {"method": "model_stock", "params": {"clamp": False}}}, "naming: huggingface"),
        ({"merge": {"method": "emr"}}, "rescalers"),
        ({"merge": {"method": "tall"}}, "pretrained weights"),
        ({"merge": {"method": "opcm"}}, "class embedding"),
        ({"merge": {"method": "ties", "params": {"frozen_parameters": 100}}}, "frozen_parameters: 100"),
        (
            {
                "merge": {
                    "method": "by_layer",
                    "params": {
                        "method": "iso_c",
                        "naming": "huggingface",
                        "settings": [{"parameter": "scaling", "clauses": [{"values": [0.1, 0.9]}]}],
                    },
                }
            },
            "settings by layer",
        ),
    ],
)
def test_what_fusionbench_would_compute_otherwise_is_not_written(recipe, word):
    with pytest.raises(RecipeError, match=word):
        written(recipe)


@pytest.mark.parametrize("name", ["emr_merging.EMRMerging", "opcm.OPCMForCLIP"])
def test_what_fusionbench_computes_otherwise_is_not_read(name, tmp_path):
    path = tmp_path / "method.yaml"
    path.write_text(yaml.safe_dump({"_target_": f"fusion_bench.method.{name}"}))
    with pytest.raises(RecipeError, match=r"computes .* otherwise"):
        read_method(path, "made", TASKS)


def test_more_entries_cannot_be_taken_out_of_a_density_than_there_are():
    recipe = parse_recipe(
        {"zoo": "made", "merge": {"method": "ties", "params": {"density": 0.2, "frozen_parameters": -10_000_000}}}
    )
    with pytest.raises(MergeError, match="take out fewer"):
        merged_by(recipe)
