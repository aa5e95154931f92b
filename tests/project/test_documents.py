"""Documents that are small on disk and would be large in memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from engine.commands.importing import _pairs
from engine.commands.merge import params_from
from engine.errors import RecipeError
from engine.recipe import MAX_RECIPE_BYTES, _Loader, read_recipe, read_yaml
from engine.shipped import ASSETS

ROOT = Path(__file__).parents[2]
LIMIT = 2**30


def _bomb(aliases):
    """Eight anchors that repeat the one before nine times each: 72 aliases, 43 million values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, aliases // 9 + 1)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        _bomb(72),
        "a: &a [*a]",
        "a: &a {b: *a}",
    ],
    ids=["doubling", "endless list", "endless mapping"],
)
def test_aliases_are_counted_written_out(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError, match="repeats parts by YAML aliases"):
        read_recipe(tmp_path / "recipe.yaml")


@pytest.mark.processes
def test_such_a_recipe_is_refused_within_a_gigabyte(tmp_path):
    (tmp_path / "recipe.yaml").write_text(_bomb(72))
    command = [sys.executable, "-m", "engine", "run", str(tmp_path / "recipe.yaml")]
    bounded = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))}
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, **bounded)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: The recipe recipe.yaml repeats parts by YAML aliases")


def test_few_aliases_are_what_they_are_for(tmp_path):
    (tmp_path / "recipe.yaml").write_text("a: &a {b: [1, 2]}\nc: *a\nd: [*a, *a]\n")
    assert read_yaml(tmp_path / "recipe.yaml", RecipeError, "recipe")["d"][1] == {"b": [1, 2]}


class Plain(yaml.SafeLoader):
    """PyYAML's own, with our booleans."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def test_documents_are_those_of_pyyamls_own_loader():
    brought = [path for path in sorted(ASSETS.rglob("*.yaml")) if path.stat().st_size < MAX_RECIPE_BYTES]
    assert len(brought) > 50
    for path in brought:
        read = read_yaml(path, RecipeError, "file", several=True)
        assert read == list(yaml.load_all(path.read_text("utf-8"), Loader=Plain)), path


@pytest.mark.parametrize("text", ["[", "- ", "{a: ", "? "], ids=["lists", "dashes", "mappings", "keys"])
def test_deep_nesting_is_refused_and_ends_nothing(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text * (MAX_RECIPE_BYTES // 4))
    with pytest.raises(RecipeError, match="not valid YAML"):
        read_recipe(tmp_path / "recipe.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    {
        "zoo: mini8\nmerge: {method: ties}\nmerge: {method: slerp}\n": "line 3: the key 'merge' stands twice",
        "merge: {method: ties, params: {scaling: 1, scaling: 2}}\n": "line 1: the key 'scaling' stands twice",
        "zoo: mini8\n\tseeds: [0]\n": "line 2: found",
        "merge: ties\n": "'merge': expected a mapping of the keys method, params .found 'ties'.",
        "calibrators: [surgery]\n": "'calibrators.0': expected a mapping of the keys method, params, name, on",
    }.items(),
)
def test_a_fault_of_a_recipe_is_said_with_its_place(tmp_path, text, said):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError, match=said):
        read_recipe(tmp_path / "recipe.yaml")


def test_a_merged_in_key_may_be_written_over(tmp_path):
    (tmp_path / "file.yaml").write_text("a: &a {x: 1}\nb: {<<: *a, x: 2}\n")
    assert read_yaml(tmp_path / "file.yaml", RecipeError, "file")["b"] == {"x": 2}


@pytest.mark.parametrize(
    ("given", "said"), [(["scaling=[0.3"], "cannot be read"), (["scaling=1", "scaling=2"], "'scaling' is given twice")]
)
def test_a_parameter_that_cannot_be_read_or_stands_twice_is_refused(given, said):
    with pytest.raises(RecipeError, match=said):
        params_from(given)


def test_two_data_of_one_task_are_refused():
    with pytest.raises(RecipeError, match="'birds' has two data"):
        _pairs(["birds=a.npz", "birds=b.npz"])
