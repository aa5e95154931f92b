"""Linearised merges as sums of their experts: equal to the merged model's own, and cheap for many coefficients."""

import json

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from engine.pipeline.executor import needed_steps
from engine.pipeline.graph import Plan
from engine.pipeline.local import make_view, run_experiment, run_recipe, run_sweep
from engine.pipeline.planners import plan_request
from engine.pipeline.run.plan import plan_run
from engine.pipeline.views.film import FILM
from engine.recipe import parse_recipe
from engine.store import Store

PLACE = "merge.params.scaling"
VALUES = (0.1, 0.3, 0.6, 1.0)


def recipe(zoo, scaling=0.3, **changes):
    merge = {"method": "task_arithmetic", "params": {"scaling": scaling}}
    return parse_recipe({"zoo": str(zoo), "merge": merge, "forward": "linearised", **changes})


def merged_steps(plan, name="features"):
    return {s.params.task: s for s in plan.steps if s.name == name and s.params.model == "merged"}


def arrays(store, key):
    return load_file(store.find(key) / "features.safetensors")


@pytest.fixture(scope="module")
def alone(zoo, tmp_path_factory):
    """Runs by themselves, each in a store of its own: every merged model is encoded."""
    found = {}
    for scaling in VALUES:
        store = Store(tmp_path_factory.mktemp("alone"))
        run_recipe(recipe(zoo, scaling), store)
        plan = plan_run(recipe(zoo, scaling), store)
        found[scaling] = {task: (step.key, arrays(store, step.key)) for task, step in merged_steps(plan).items()}
    return found


def test_a_run_by_itself_encodes_its_merged_model(zoo, tmp_path):
    steps = merged_steps(plan_run(recipe(zoo), Store(tmp_path / "new")))
    assert set(steps) == {"alpha", "beta", "gamma", "outside"}
    assert all(not step.inputs.experts for step in steps.values())


@pytest.fixture(scope="module")
def swept(zoo, tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("swept"))
    run_sweep(recipe(zoo), [(PLACE, VALUES)], store)
    return store


def test_a_sweep_adds_up_and_finds_the_same_features(zoo, swept, alone):
    for scaling in VALUES:
        for task, step in merged_steps(plan_run(recipe(zoo, scaling), swept)).items():
            key, own = alone[scaling][task]
            assert step.key == key, "how features were come by is no part of what they are"
            found = arrays(swept, key)
            assert set(found) == set(own) == ({"test"} if task == "outside" else {"test", "adapt"})
            for name, rows in own.items():
                np.testing.assert_allclose(found[name], rows, rtol=1e-4, atol=1e-5)
            told = json.loads((swept.find(key) / "features.json").read_text())
            assert told["images"] == 0, "nothing was encoded for it"


def test_it_takes_one_derivative_for_each_expert_and_task(zoo, tmp_path):
    store = Store(tmp_path / "fresh")
    asked = {"recipe": recipe(zoo).model_dump(mode="json"), "settings": [{"place": PLACE, "values": list(VALUES)}]}
    steps = needed_steps(plan_request("sweep", asked, store), store)
    around = [s.params for s in steps if s.name == "features" and s.params.around]
    assert sum(p.model != "merged" for p in around) == 3 * 4
    assert sum(p.model == "merged" for p in around) == len(VALUES) * 4
    assert all(s.inputs.experts for s in steps if s.name == "features" and s.params.model == "merged")
    few = {**asked, "settings": [{"place": PLACE, "values": [0.1, 0.2]}]}
    steps = needed_steps(plan_request("sweep", few, store), store)
    assert not any(s.inputs.experts for s in steps if s.name == "features"), "two merges of three experts are encoded"


def test_another_coefficient_is_free_where_the_experts_are_there(zoo, swept):
    fresh = plan_run(recipe(zoo, 0.77), swept)
    encoded = [s for s in needed_steps(fresh, swept) if s.name == "features"]
    assert {s.params.model for s in encoded} == {"merged"}
    assert all(s.inputs.experts and s.inputs.base for s in encoded)
    report = run_recipe(recipe(zoo, 0.77), swept)
    assert set(report.accuracy["merged"]) == {"alpha", "beta", "gamma", "outside"}


def test_validation_images_are_added_up_as_well(zoo, swept, tmp_path):
    asked = {"recipe": recipe(zoo).model_dump(mode="json"), "settings": [{"place": PLACE, "values": list(VALUES)}]}
    steps = merged_steps(plan_request("sweep", asked, swept), "validation_features")
    assert all(step.inputs.experts for step in steps.values())
    few = {**asked, "settings": [{"place": PLACE, "values": [VALUES[-1]]}]}
    other = Store(tmp_path / "other")
    plan = plan_request("sweep", few, other)
    run_sweep(recipe(zoo), [(PLACE, [VALUES[-1]])], other)
    for task, step in merged_steps(plan, "validation_features").items():
        assert not step.inputs.experts
        wanted, found = arrays(other, step.key)["val"], arrays(swept, steps[task].key)["val"]
        assert steps[task].key == step.key
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"forward": "standard"},
        {"merge": {"method": "ties"}},
        {"transforms": [{"method": "wise_ft", "params": {"alpha": 0.5}}]},
    ],
    ids=["standard", "not linear", "transformed"],
)
def test_what_is_no_sum_is_encoded(changes, zoo, swept):
    steps = merged_steps(plan_run(recipe(zoo, **changes), swept))
    assert all(not step.inputs.experts for step in steps.values())


def test_weights_of_experts_count(zoo, swept, tmp_path):
    weighted = recipe(zoo, experts=[{"name": "alpha", "weight": 0.5}, {"name": "beta", "weight": -1.0}, "gamma"])
    store = Store(tmp_path / "weighted")
    for place in (store, swept):
        run_recipe(weighted, place)
    steps = merged_steps(plan_run(weighted, store))
    for step in steps.values():
        found, wanted = (arrays(place, step.key)["test"] for place in (swept, store))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert json.loads((swept.find(steps["alpha"].key) / "features.json").read_text())["images"] == 0


def test_a_film_over_the_coefficient_adds_up(zoo, tmp_path):
    store = Store(tmp_path / "film")
    asked = FILM.request(recipe=recipe(zoo), place=PLACE, values=VALUES, images=16, map="pca")
    plan = plan_request("film", asked.model_dump(mode="json"), store)
    assert isinstance(plan, Plan)
    steps = [s for s in plan.steps if s.name == "features" and s.params.model == "merged"]
    assert len(steps) == len(VALUES) * 4
    assert all(step.inputs.experts for step in steps)
    document = FILM.read(make_view(FILM, asked, store))
    assert document["failed"] == {}


def test_points_of_an_experiment_add_up(zoo, tmp_path):
    store = Store(tmp_path / "experiment")
    points = [
        {"name": f"p{number}", "title": f"λ = {value}", "set": {"merge": recipe(zoo, value).merge.model_dump()}}
        for number, value in enumerate(VALUES)
    ]
    document = {
        "name": "sums", "title": "Sums", "paper": "none", "part": "none", "claim": "None.", "seeds": 1,
        "base": {"forward": "linearised", "merge": {"method": "task_arithmetic"}}, "points": points,
        "measures": [{"name": "in", "title": "In domain", "path": "average.{state}.in"}],
    }  # fmt: skip
    (tmp_path / "sums.yaml").write_text(yaml.safe_dump(document))
    result = run_experiment(str(tmp_path / "sums.yaml"), store, zoo=str(zoo))
    assert len(result.points) == len(VALUES)
    for value in VALUES:
        step = merged_steps(plan_run(recipe(zoo, value), store))["alpha"]
        assert json.loads((store.find(step.key) / "features.json").read_text())["images"] == 0
