"""Every row of the catalog can be shown, validated and loaded, and recipes are resolved against it."""

import re
from typing import get_args

import pytest

from engine.catalog import ALIGNMENTS, CALIBRATORS, FINE_TUNING, MERGE_METHODS, TRANSFORMS, params_of, resolve
from engine.catalog.docstrings import departure_of
from engine.catalog.row import Need, OnlyWith
from engine.catalog.titles import params_in_effect, recipe_title
from engine.catalog.words import CATEGORIES, NEEDS, at_inference, cost_of, learns, makes, needs_of
from engine.errors import RecipeError
from engine.recipe import MethodCall, parse_recipe, read_recipe

ROWS = [
    *MERGE_METHODS.values(),
    *TRANSFORMS.values(),
    *CALIBRATORS.values(),
    *FINE_TUNING.values(),
    *ALIGNMENTS.values(),
]


every = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


@every
def test_a_row_says_what_people_need(row):
    assert row.title
    assert row.summary.endswith(".")
    assert row.equation
    assert re.search(r"\b(19|20)\d\d\b", row.source), "a source names its year"
    assert row.url.startswith("https://") or not row.url
    for name, field in row.params.model_fields.items():
        assert field.title, f"{name} has no title"
        assert field.description, f"{name} has no description"
        if field.annotation in (int, float):
            bounds = {type(item).__name__ for item in field.metadata}
            assert bounds & {"Ge", "Gt"}, f"{name} has no lower bound"
            assert bounds & {"Le", "Lt"}, f"{name} has no upper bound"


@every
def test_what_decides_whether_a_parameter_has_an_effect_is_a_choice_of_the_method(row):
    fields = row.params.model_fields
    for name, field in fields.items():
        for mark in (mark for mark in field.metadata if isinstance(mark, OnlyWith)):
            for other, values in mark.values.items():
                choices = {True, False} if fields[other].annotation is bool else set(get_args(fields[other].annotation))
                assert set(values) < choices, (name, other)


def test_settings_without_effect_are_left_out_of_lists():
    plain, both = ({"plus_plus": on, "density": 0.5, "initial": 0.3} for on in (False, True))
    assert params_in_effect(MethodCall(method="adamerging", params=plain)) == {"plus_plus": False, "initial": 0.3}
    assert params_in_effect(MethodCall(method="adamerging", params=both)) == both
    assert params_in_effect(MethodCall(method="adamerging", params={"density": 0.5})) == {}
    assert params_in_effect(MethodCall(method="of_another_version", params=both)) == both


def test_there_are_words_for_everything_that_rows_say():
    assert set(NEEDS) == set(get_args(Need))
    for row in (*MERGE_METHODS.values(), *TRANSFORMS.values()):
        assert CATEGORIES[row.category]
        assert makes(row)
        assert at_inference(row)
        assert cost_of(row)
        assert bool(learns(row)) == bool(getattr(row, "learns", ""))
        assert learns(row) or row.cost.merges is None, f"{row.name} makes the model again and again, and learns nothing"
    assert all(needs_of(row) != "weights alone" for row in CALIBRATORS.values())


@every
def test_settings_of_a_row_are_valid_and_survive_being_written(row):
    for given in ({}, row.quick, *(preset.params for preset in row.presets), *row.variants):
        params = params_of(row, {**given})
        assert params_of(row, params.model_dump(mode="json")) == params


@every
def test_the_departure_is_the_docstrings(row):
    documented = row.load().__doc__
    assert "Source:" in documented
    assert bool(row.departure) == ("Departure:" in documented)
    assert "`" * 2 not in row.departure
    assert not row.departure or row.departure[-1] in ".)"
    assert " ".join(documented.split()).replace("`" * 2, "`").count(row.departure[1:])


def test_resolving_writes_defaults_out_and_is_idempotent():
    recipe = resolve(parse_recipe({"merge": {"method": "ties"}, "calibrators": [{"method": "surgery"}]}))
    assert recipe.merge.params["density"] == 0.2
    assert recipe.calibrators[0].params["rank"] == 16
    assert resolve(recipe) == recipe


def test_the_key_on_is_a_key_in_yaml(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("calibrators:\n  - {method: surgery, on: pretrained}\n")
    assert read_recipe(path).calibrators[0].on == "pretrained"


def test_a_recipe_survives_yaml(tmp_path):
    recipe = parse_recipe({"experts": ["a", {"name": "b", "weight": -1}]})
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    assert read_recipe(path) == recipe


@pytest.mark.parametrize(
    ("method", "params", "title"),
    [
        ("task_arithmetic", {"scaling": "0.3"}, "Task Arithmetic λ 0.3"),
        ("task_arithmetic", {"scaling": "much"}, "Task Arithmetic"),
        ("doge", {"scaling": 0.07}, "DOGE η 0.07"),
        ("tsv_m", {"scaling": 1}, "TSV-M α 1"),
    ],
)
def test_a_title_has_the_scaling_by_its_methods_symbol(method, params, title):
    assert recipe_title(parse_recipe({"merge": {"method": method, "params": params}})) == title


def test_weights_of_experts_are_refused_where_they_mean_nothing():
    recipe = parse_recipe({"experts": [{"name": "a", "weight": 0.5}, "b"], "merge": {"method": "ties"}})
    with pytest.raises(RecipeError, match="does not take weights"):
        resolve(recipe)


def test_a_row_of_a_function_that_is_not_there_is_found_out():
    with pytest.raises(LookupError, match="nothing"):
        departure_of(".merging.averaging:nothing")
