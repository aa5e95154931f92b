"""Differences of recipes in phrases: what is added, changed and taken away, in the words of the form."""

import pytest
import yaml

from engine.catalog import resolve
from engine.recipe import parse_recipe
from engine.zoo.importing.roots import ENV
from pages.forms.recipes import differences
from pages.shared.chrome import facts
from pages.shared.zoos import zoo_manifest
from tests.made_run import made_report
from tests.tiny_zoo import make_zoo


def recipe(**changes):
    calibrators = [{"method": "surgery", "params": {"rank": 4}}]
    return resolve(parse_recipe({"merge": {"method": "task_arithmetic"}, "calibrators": calibrators, **changes}))


LWPTV = [{"method": "lwptv", "params": {"eta": 0.7}}]
PROB = {"method": "prob_surgery"}
BUNDLED = [expert.name for expert in zoo_manifest("mini8").experts]
CASES = {
    "nothing": ({}, []),
    "a value": ({"merge": {"method": "task_arithmetic", "params": {"scaling": 0.5}}}, ["λ 0.3 → 0.5"]),
    "a transform": ({"transforms": LWPTV}, ["+ LwPTV (η 0.7)"]),
    "a calibrator": ({"calibrators": []}, ["\u2212 Surgery"]),
    "its rank": ({"calibrators": [{"method": "surgery", "params": {"rank": 8}}]}, ["Surgery: rank 4 → 8"]),
    "its model": (
        {"calibrators": [{"method": "surgery", "params": {"rank": 4}, "on": "pretrained"}]},
        ["Surgery: repairs pretrained"],
    ),
    "fewer experts": (
        {"experts": [{"name": name} for name in BUNDLED if name not in ("flowers", "charts")]},
        ["\u2212 flowers, charts"],
    ),
    "a weight": (
        {"experts": [{"name": name, "weight": 1.0 + (name == "signs")} for name in BUNDLED]},
        ["signs weight 1 → 2"],
    ),
    "all by name": ({"experts": [{"name": name} for name in BUNDLED]}, []),
    "experts in another order": ({"experts": [{"name": name} for name in BUNDLED[::-1]]}, ["another order of experts"]),
    "an order": ({"calibrators": [PROB, {"method": "surgery", "params": {"rank": 4}}]}, None),
    "images": ({"probe": {"samples_per_task": 20}}, ["samples per task all → 20"]),
    "seeds": ({"seeds": [0, 1]}, ["seeds [0] → [0, 1]"]),
    "twice the same": ({"transforms": [*LWPTV, *LWPTV]}, ["+ LwPTV (η 0.7)"]),
}


@pytest.mark.parametrize("case", CASES)
def test_changes_are_said_in_the_words_of_the_form(case):
    changes, expected = CASES[case]
    found = differences(recipe(), recipe(**changes))
    if expected is not None:
        assert found == expected
    else:
        assert found[0].startswith("+ ProbSurgery")


def test_another_method_is_added_and_the_one_before_taken_away():
    found = differences(recipe(), recipe(merge={"method": "ties", "params": {"density": 0.1}}))
    assert found[0].startswith("+ TIES (")
    assert "0.1" in found[0]
    assert found[1] == "\u2212 Task Arithmetic"
    assert len(found) == 2


def test_settings_without_effect_are_not_among_those_of_a_method_or_above_the_page():
    learned = recipe(merge={"method": "adamerging"})
    assert differences(recipe(), learned)[0] == "+ AdaMerging (initial coefficient 0.3, steps 500)"
    assert dict(facts(made_report(recipe=learned)))["Merge"] == "AdaMerging"
    both = recipe(merge={"method": "adamerging", "params": {"plus_plus": True}})
    assert dict(facts(made_report(recipe=both)))["Merge"] == "AdaMerging density 0.2"


def test_what_no_phrase_tells_apart_is_a_difference_all_the_same():
    one, two = recipe(transforms=LWPTV), recipe(transforms=[*LWPTV, *LWPTV])
    assert differences(one, two) == ["other settings"]
    both = [PROB, {"method": "surgery"}]
    swapped = differences(recipe(calibrators=both), recipe(calibrators=both[::-1]))
    assert swapped == ["another order of calibrators"]


def test_of_a_zoo_that_is_not_at_hand_only_what_is_known_is_said(tmp_path):
    gone, few = str(tmp_path / "gone"), {"experts": [{"name": "signs"}, {"name": "charts"}]}
    assert differences(recipe(zoo=gone), recipe()) == [f"zoo {gone} → mini8"]
    assert differences(recipe(zoo=gone), recipe(zoo=gone)) == []
    assert differences(recipe(zoo=gone), recipe(zoo=gone, **few)) == ["experts all → signs, charts"]
    both = differences(recipe(), recipe(zoo=gone, **few))
    assert both[0].startswith("\u2212 "), "experts that are listed are known, whatever their zoo"


def test_all_experts_are_one_of_each_task(tmp_path, monkeypatch):
    """As the engine takes them: of several of one task the first."""
    monkeypatch.setenv(ENV, str(tmp_path))
    zoo = make_zoo(tmp_path / "zoo", experts=("alpha", "beta"), images=4)
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document["experts"].append({**document["experts"][0], "name": "again", "method": "linearised"})
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    named = [{"name": "alpha"}, {"name": "beta"}]
    assert differences(recipe(zoo=str(zoo)), recipe(zoo=str(zoo), experts=named)) == []
    assert differences(recipe(zoo=str(zoo)), recipe(zoo=str(zoo), experts=[*named, {"name": "again"}])) == ["+ again"]
