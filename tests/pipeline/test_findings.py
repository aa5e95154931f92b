"""Findings against a recipe read the same in the form, in the check before a run and in the plan."""

import pytest

from engine.errors import RecipeError
from engine.manifest import read_manifest
from engine.pipeline.local import preflight_recipe
from engine.pipeline.run.findings import findings, refuse
from engine.pipeline.run.plan import plan_run
from engine.recipe import parse_recipe
from engine.store import Store
from engine.zoo.folder import Zoo
from tests.pipeline.test_bad_merges import without_heads, without_images, without_validation
from tests.tiny_zoo import make_zoo

SURGERY = {"calibrators": [{"method": "surgery"}]}


def intact(folder):
    pass


def merging(method, **params):
    return {"merge": {"method": method, "params": params}}


# What is asked for of which zoo → the beginnings of what is said; a manifest alone does not tell the last four.
CASES = {
    "combined": (intact, {**merging("task_arithmetic"), **SURGERY}, []),
    "unknown method": (intact, merging("tiess"), ["There is no merge method 'tiess'"]),
    "two wrong parameters": (
        intact,
        {**merging("ties", density=3), "calibrators": [{"method": "surgery", "params": {"steps": 0}}]},
        ["Parameters of TIES", "Parameters of Surgery"],
    ),
    "unknown expert": (intact, {"experts": ["alpa", "beta"]}, ["The zoo 'tiny' has no expert 'alpa'."]),
    "one expert": (intact, {"experts": ["alpha"], **merging("slerp")}, ["SLERP needs at least 2 experts; 1 chosen."]),
    "too many experts": (intact, merging("slerp"), ["SLERP takes at most 2 experts; 3 chosen."]),
    "weights": (
        intact,
        {"experts": [{"name": "alpha", "weight": 2}, "beta"], **merging("ties")},
        ["TIES does not take weights"],
    ),
    "a weight of nobody": (
        intact,
        merging("by_layer", settings=[{"parameter": "weight", "expert": "alpa", "clauses": [{"values": [0.5]}]}]),
        ["By layer has settings for 'alpa', and the zoo 'tiny' has no such expert. Did you mean 'alpha'?"],
    ),
    "a value that no layer takes": (
        intact,
        merging("by_layer", settings=[{"parameter": "scaling", "clauses": [{"values": [0.1, 3, 0.2]}]}]),
        ["Parameters of By layer: in the settings by layer, 'scaling': Input should be less"],
    ),
    "inside one encoder of many": (
        intact,
        {**merging("emr"), "calibrators": [{"method": "interv_merge"}]},
        ["IntervMerge acts inside one merged encoder, but EMR-Merging makes one for each task."],
    ),
    "no coefficients": (
        intact,
        {**merging("ties"), "calibrators": [{"method": "interv_merge", "params": {"coefficients": "task"}}]},
        ["interv_merge: merging coefficients can learn after"],
    ),
    "dimensions that a token does not have": (
        intact,
        {
            **merging("ties"),
            "calibrators": [{"method": "interv_merge", "params": {"mini": "shifted", "mini_dims": 60}}],
        },
        ["interv_merge: A mini-intervention of 60 dimensions (shifted) in block"],
    ),
    "no images": (
        without_images,
        {**merging("regmean"), **SURGERY},
        ["RegMean learns from images, and tasks 'alpha', 'beta', 'gamma' have none.", "Calibrators need images"],
    ),
    "no validation images": (
        without_validation,
        merging("evolutionary"),
        ["Evolutionary search needs labelled validation images (val_x, val_y), and tasks 'alpha'"],
    ),
    "no heads": (without_heads, merging("adamerging"), ["AdaMerging needs classification heads (none: "]),
    "no heads to repair for": (without_heads, SURGERY, ["Calibrators need images and heads"]),
}
OF_FILES = ("no validation images", "no heads", "no heads to repair for", "dimensions that a token does not have")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store", database_url=f"sqlite:///{tmp_path / 'runs.sqlite'}")


def asked(folder, case):
    spoil, changes, said = CASES[case]
    make_zoo(folder)
    spoil(folder)
    return parse_recipe({"zoo": str(folder), **changes}), said


def errors_of(found):
    return [finding.text for finding in found if finding.level == "error"]


@pytest.mark.parametrize("case", CASES)
def test_every_reader_says_the_same(tmp_path, store, case):
    recipe, said = asked(tmp_path / "tiny", case)
    zoo = Zoo.open(recipe.zoo)
    found = errors_of(findings(recipe, zoo))
    assert len(found) == len(said), found
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True)), found
    assert set(found) <= set(errors_of(preflight_recipe(recipe, store).findings))
    if not said:
        refuse(recipe, zoo)
        assert plan_run(recipe, store).steps
        return
    with pytest.raises(RecipeError) as refused:
        plan_run(recipe, store)
    assert str(refused.value) in (" ".join(found), found[0])
    with pytest.raises(RecipeError) as refused:
        refuse(recipe, zoo)
    assert str(refused.value) == " ".join(found)


@pytest.mark.parametrize("case", CASES)
def test_a_manifest_alone_tells_what_no_file_is_needed_for(tmp_path, case):
    recipe, said = asked(tmp_path / "tiny", case)
    found = errors_of(findings(recipe, read_manifest(tmp_path / "tiny")))
    assert len(found) == (0 if case in OF_FILES else len(said)), found


def test_the_paper_protocol_is_a_warning(tmp_path):
    make_zoo(tmp_path / "tiny")
    recipe = parse_recipe({"zoo": str(tmp_path / "tiny"), "probe": {"protocol": "paper"}})
    (found,) = findings(recipe, Zoo.open(recipe.zoo))
    assert (found.level, found.text.split()[-1]) == ("warning", "flatters.")
