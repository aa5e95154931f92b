"""Accuracies and biases of an independent float64 implementation on a zoo of real images, where that zoo is at hand."""

import json
from pathlib import Path

import pytest

from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.store import Store

ZOO = Path(__file__).resolve().parents[3] / "shared" / "zoo-real5"
pytestmark = pytest.mark.skipif(not ZOO.is_dir(), reason="the zoo of real images is not at hand")

TIES_SUM = {"method": "ties", "params": {"density": 0.2, "merge": "sum", "scaling": 0.3}}
MERGES = {
    "weight_average": ({"method": "weight_average"}, False),
    "task_arithmetic_0.3": ({"method": "task_arithmetic", "params": {"scaling": 0.3}}, False),
    "task_arithmetic_0.1": ({"method": "task_arithmetic", "params": {"scaling": 0.1}}, False),
    "ties_sum_0.3": (TIES_SUM, False),
    "ties_mean_1.0": ({"method": "ties", "params": {"density": 0.2, "merge": "mean", "scaling": 1.0}}, False),
    "lwptv_ta_0.3": ({"method": "task_arithmetic", "params": {"scaling": 0.3}}, True),
    "lwptv_ties_sum_0.3": (TIES_SUM, True),
}


@pytest.fixture(scope="module")
def expected():
    return json.loads((ZOO / "expected.json").read_text())


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("real5"))


@pytest.mark.parametrize("name", MERGES)
def test_merge_gives_the_expected_numbers(name, expected, store):
    merge, pruned = MERGES[name]
    transforms = [{"method": "lwptv", "params": {"eta": 0.7}}] if pruned else []
    recipe = parse_recipe({"zoo": str(ZOO), "merge": merge, "transforms": transforms, "probe": {"protocol": "paper"}})
    report = run_recipe(recipe, store)
    for state, key in (("merged", name), ("pretrained", "pretrained"), ("expert", "individual")):
        for task, percent in expected["accuracy"][key].items():
            assert report.accuracy[state][task] == pytest.approx(percent, abs=0.5), (state, task)
    for task, value in expected["l1_bias"][name].items():
        assert report.bias["merged"].l1[task] == pytest.approx(value, rel=0.01), task
    kept = [layer for layer, keep in zip(report.salience.layers, report.salience.shared_mask, strict=True) if keep]
    assert sorted(kept) == sorted(expected["lwptv"]["kept_names"])
    assert len(report.salience.layers) == expected["lwptv"]["layers"]
    assert report.salience.applied is pruned
