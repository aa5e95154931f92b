"""Every row of the catalog can be shown, validated and loaded, and recipes are resolved against it."""

import pytest

from engine.catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS, params_of, resolve
from engine.errors import RecipeError
from engine.recipe import parse_recipe, read_recipe

ROWS = [*MERGE_METHODS.values(), *TRANSFORMS.values(), *CALIBRATORS.values()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_complete(row):
    assert row.title
    assert row.summary.endswith(".")
    assert row.equation
    assert "20" in row.source, "a source names its year"
    assert callable(row.load())
    for name, field in row.params.model_fields.items():
        assert field.title, f"{row.name}.{name} has no title"
        assert field.description, f"{row.name}.{name} has no description"
    defaults = params_of(row, {})
    for preset in row.presets:
        assert params_of(row, preset.params) is not None
    assert params_of(row, defaults.model_dump(mode="json")) == defaults


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


def test_weights_of_experts_are_refused_where_they_mean_nothing():
    recipe = parse_recipe({"experts": [{"name": "a", "weight": 0.5}, "b"], "merge": {"method": "ties"}})
    with pytest.raises(RecipeError, match="does not take weights"):
        resolve(recipe)
