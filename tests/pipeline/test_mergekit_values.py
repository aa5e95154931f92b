"""Configurations with gradients and filters: what mergekit 0.1.4 makes of them, and what their recipes make here."""

from pathlib import Path

import pytest
import torch
import yaml

from engine.errors import RecipeError
from engine.merging.apply import merge
from engine.pipeline.foreign.mergekit import write_mergekit
from engine.pipeline.foreign.mergekit_multi import is_several, read_several
from engine.pipeline.foreign.mergekit_read import read_mergekit, remarks
from engine.pipeline.run.weights_only import WeightsOnly
from engine.recipe import read_recipe
from engine.weights import LazyTaskVectors, Memory
from engine.weights.huggingface import ToHuggingFace
from tests.packed import unpack
from tests.pipeline.mergekit_made import BLOCKS, MODELS, VALUES, VERSION, configurations, encoder, several
from tests.tiny_zoo import make_zoo

FOLDER = Path("/models")
EXPERTS = {name: (name,) for name in MODELS[1:]}
CASES = configurations(FOLDER)
SEVERAL = several(FOLDER)
EXPECTED, ABOUT = unpack(VALUES)


def recipe_of(document, tmp_path):
    path = tmp_path / "mergekit.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return read_mergekit(path, "made", EXPERTS, lambda: BLOCKS)


def merged_by(recipe):
    """The tensors of a recipe's merge of the made models."""
    models = {name: Memory({key: torch.from_numpy(v) for key, v in encoder(name).items()}) for name in MODELS}
    chosen = {expert.name: expert.weight for expert in recipe.experts}
    experts = {name: models[name] for name in chosen}
    vectors = LazyTaskVectors(models["base"], experts, list(chosen.values()))
    found = merge(models["base"], vectors, recipe.transforms, recipe.merge, WeightsOnly(tuple(experts))).weights
    return Memory({name: found.tensor(name) for name in found.names})


def check(name, merged):
    """Compare with mergekit's values, under the names that it gives them."""
    found = ToHuggingFace(merged) if name.startswith(("hf", "multi_")) else merged
    expected = {key.removeprefix(f"{name}/"): v for key, v in EXPECTED.items() if key.startswith(f"{name}/")}
    assert set(found.names) == set(expected)
    for key, value in expected.items():
        torch.testing.assert_close(found.tensor(key), value, rtol=0, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("name", CASES)
def test_a_configuration_means_what_mergekit_computes(name, tmp_path):
    check(name, merged_by(recipe_of(CASES[name], tmp_path)))


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("multislerp", "sce", "ties_mean", "linear")])
def test_a_recipe_is_written_so_that_it_is_read_again_as_it_was(name, tmp_path):
    recipe = recipe_of(CASES[name], tmp_path)
    where = "hf/{}" if name.startswith("hf") else "{}.safetensors"
    models = {expert.name: str(FOLDER / where.format(expert.name)) for expert in recipe.experts}
    written = yaml.safe_load(write_mergekit(recipe, str(FOLDER / where.format("base")), models, BLOCKS))
    again = recipe_of(written, tmp_path)
    assert [expert.name for expert in again.experts] == [expert.name for expert in recipe.experts]
    check(name, merged_by(again))


def test_the_values_name_their_version():
    assert ABOUT["made_with"] == f"mergekit {VERSION}"
    assert {key.partition("/")[0] for key in EXPECTED} == {*CASES, *SEVERAL}


MODEL = {"model": "/models/alpha.safetensors", "parameters": {"weight": [0.1, 0.9]}}
TINY_GAMMA = {"model": "/models/alpha.safetensors", "parameters": {"weight": 0.5, "gamma": 1e-30}}
ONE = {"model": "/models/alpha.safetensors", "parameters": {"weight": 0.5}}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"models": [MODEL]}, "mergekit-pytorch"),
        ({"merge_method": "nuslerp"}, "use slerp"),
        ({"merge_method": "della", "parameters": {"weight": 1.0}}, "rescale: false"),
        ({"merge_method": "ties", "parameters": {"weight": 1.0, "density": 0.2, "rescale": True}}, "L1 norm"),
        ({"merge_method": "breadcrumbs", "parameters": {"weight": 1.0, "density": 0.2, "rescale": True}}, "L1 norm"),
        ({"merge_method": "ties", "parameters": {"weight": [{"filter": 3, "value": 1}]}}, "filter"),
        ({"merge_method": "slerp", "parameters": {"t": 0.5}}, "two experts"),
        ({"models": None, "slices": [{}, {}]}, "gradient"),
        ({"models": None, "slices": [{"sources": [{"model": "alpha", "layer_range": [2, 4]}]}]}, "layer_range"),
        ({"models": None, "slices": [{"sources": [{"model": "alpha", "layer_range": [0, 2]}]}]}, r"\[0, 3\]"),
        ({"models": None, "slices": [{"sources": ["alpha"]}]}, "sources"),
        ({"merge_method": "linear", "models": [{**ONE, "model": "/models/hf/alpha"}]}, "averages base_model"),
        ({"merge_method": "linear", "base_model": "/models/base.safetensors", "models": [ONE]}, "List it"),
        ({"merge_method": "karcher"}, "averages base_model"),
        ({"base_model": "/models/hf/gamma", "parameters": {"weight": 1.0}}, "the expert gamma"),
        ({"merge_method": "multislerp", "parameters": {"weight": 1.0, "normalize_weights": False}}, "sum to 1"),
        ({"models": [{**ONE, "parameters": {"weight": 0}}]}, "for a value that is missing"),
        ({"merge_method": "breadcrumbs", "models": [TINY_GAMMA]}, "where `gamma` is 0"),
        ({"merge_method": "breadcrumbs", "parameters": {"weight": 1.0, "gamma": 0}}, "where `gamma` is 0"),
        ({"parameters": {"weight": [{"value": "much"}]}}, "numbers are needed"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_what_can_be_done(change, word, tmp_path):
    models = [{"model": f"/models/hf/{name}"} for name in MODELS[1:]]
    document = {"merge_method": "task_arithmetic", "base_model": "/models/hf/base", "models": models} | change
    document = {key: value for key, value in document.items() if value is not None}
    with pytest.raises(RecipeError, match=word):
        recipe_of(document, tmp_path)


@pytest.mark.parametrize(("switch", "word"), [({}, "L1 norm"), ({"rescale": False}, "at random")])
def test_dare_is_read_with_a_remark_on_what_mergekit_computes(switch, word, tmp_path):
    models = [{"model": f"/models/hf/{name}", "parameters": {"weight": 0.5, "density": 0.2}} for name in MODELS[1:]]
    document = {"merge_method": "dare_ties", "base_model": "/models/hf/base", "models": models, "parameters": switch}
    recipe = recipe_of(document, tmp_path)
    assert recipe.transforms[0].params == {"drop_rate": 0.8, "rescale": not switch}
    (said,) = remarks(recipe)
    assert word in said
    assert ("L1 norm" in said) is (not switch)


def several_of(documents, tmp_path, part=""):
    path = tmp_path / "several.yaml"
    path.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    assert is_several(path)
    return read_several(path, "made", EXPERTS, part)


@pytest.mark.parametrize("name", SEVERAL)
def test_merges_of_merges_mean_what_mergekit_computes(name, tmp_path):
    check(name, merged_by(several_of(SEVERAL[name], tmp_path)))


def test_one_of_several_merges_is_chosen(tmp_path):
    recipe = several_of(SEVERAL["multi_three"], tmp_path, "pair")
    assert {expert.name: expert.weight for expert in recipe.experts} == {"alpha": 0.25, "beta": 0.75}
    whole = several_of(SEVERAL["multi_three"], tmp_path)
    expected = {"alpha": (2 * 0.48 * 0.25 + 1) / 3, "beta": 2 * 0.48 * 0.75 / 3, "gamma": 2 * 0.4 / 3}
    assert {expert.name: expert.weight for expert in whole.experts} == pytest.approx(expected)


PAIR, THIRD, LAST = SEVERAL["multi_three"]
HF_BASE = {"base_model": "/models/hf/base"}
TIES = {"merge_method": "ties", "parameters": {"density": 0.5, "weight": 1.0}, **HF_BASE}


@pytest.mark.parametrize(
    ("documents", "word"),
    [
        ([PAIR, {**TIES, "models": [{"model": "pair"}, {"model": "/models/hf/gamma"}]}], "import what it gives"),
        (
            [
                {"name": "pair", **TIES, "models": [{"model": "/models/hf/alpha"}, {"model": "/models/hf/beta"}]},
                LAST,
                THIRD,
            ],
            "merged again",
        ),
        ([PAIR, PAIR, LAST], "two merges named pair"),
        ([LAST, LAST], "two merges without a name"),
        ([PAIR, {**LAST, "models": [{"model": "pair", "parameters": {"weight": [0.1, 0.9]}}]}], "one weight a model"),
        (
            [{**PAIR, "models": [{"model": "third", "parameters": {"weight": 1.0}}]}, THIRD, LAST],
            "takes its own result",
        ),
        ([PAIR, {**THIRD, "base_model": "pair"}, LAST], "starts from another"),
        ([PAIR, {**PAIR, "name": "other"}], "no final merge"),
        ([PAIR, {"models": []}], "no merge_method"),
    ],
)
def test_merges_that_no_recipe_can_say_are_refused(documents, word, tmp_path):
    with pytest.raises(RecipeError, match=word):
        several_of(documents, tmp_path)


def test_a_merge_that_is_not_there_is_not_chosen(tmp_path):
    with pytest.raises(RecipeError, match="Did you mean 'pair'"):
        several_of(SEVERAL["multi_three"], tmp_path, "piar")


def test_the_command_reads_several_merges(command, tmp_path):
    zoo = make_zoo(tmp_path / "zoo")
    path = tmp_path / "several.yaml"
    models = [
        {"model": str(zoo / "experts" / f"{name}.safetensors"), "parameters": {"weight": 1.0}} for name in EXPERTS
    ]
    first = {"name": "first", "merge_method": "linear", "models": models[:2]}
    second = {"merge_method": "linear", "models": [{"model": "first", "parameters": {"weight": 3.0}}, models[2]]}
    path.write_text(yaml.safe_dump_all([first, second]))
    called = command("convert", path, "--zoo", zoo, "--to", tmp_path / "recipe.yaml")
    assert called.code == 0, called.err
    weights = {expert.name: expert.weight for expert in read_recipe(tmp_path / "recipe.yaml").experts}
    assert weights == pytest.approx({"alpha": 0.375, "beta": 0.375, "gamma": 0.25})
