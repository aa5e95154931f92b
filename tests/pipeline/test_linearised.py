"""Runs whose models are evaluated linearised: the identity that they obey, older keys, and what is refused."""

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from engine.errors import EngineError, RecipeError
from engine.pipeline.export.model import export_model
from engine.pipeline.local import run_recipe
from engine.pipeline.offered import offered_views
from engine.pipeline.planners import plan_request
from engine.pipeline.run.findings import findings
from engine.pipeline.run.plan import plan_run
from engine.recipe import Recipe, parse_recipe
from engine.store import Store
from engine.zoo.folder import Zoo
from engine.zoo.inspection.agreement import agreement
from tests.tiny_zoo import make_zoo

SCALING = 0.7
MERGE = {"method": "task_arithmetic", "params": {"scaling": SCALING}}


def recipe(zoo, **changes):
    return parse_recipe({"zoo": str(zoo), "merge": MERGE, "forward": "linearised", **changes})


def encoded(made: Recipe, store: Store, model: str, task: str):
    """Test features that a run of a recipe encodes."""
    plan = plan_run(made, store)
    (key,) = (s.key for s in plan.steps if s.name == "features" and (s.params.model, s.params.task) == (model, task))
    return load_file(store.find(key) / "features.safetensors")["test"].astype(np.float64)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A zoo whose first expert was trained linearised."""
    folder = make_zoo(tmp_path_factory.mktemp("mixed") / "tiny")
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    document["experts"][0] |= {"method": "linearised", "forward": "linearised"}
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document))
    return folder


@pytest.fixture(scope="module")
def report(zoo, store):
    return run_recipe(recipe(zoo), store)


def test_features_of_a_merge_are_the_sum_of_the_experts_changes(report, zoo, store):
    made = recipe(zoo)
    for task in ("alpha", "outside"):
        plain = encoded(made, store, "base", task)
        merged = encoded(made, store, "merged", task)
        if task == "alpha":
            change = encoded(made, store, "alpha", task) - plain
            assert np.abs(change).max() > 1e-3
        ordinary = recipe(zoo, forward="standard")
        run_recipe(ordinary, store)
        assert np.abs(merged - encoded(ordinary, store, "merged", task)).max() > 1e-3, "the model is not linear"
        assert np.array_equal(plain, encoded(ordinary, store, "base", task)), "at the base both are one"


def test_one_expert_at_full_length_is_the_linearised_expert(zoo, store):
    alone = recipe(zoo, experts=["alpha"], merge={"method": "task_arithmetic", "params": {"scaling": 1.0}})
    half = recipe(zoo, experts=["alpha"], merge={"method": "task_arithmetic", "params": {"scaling": 0.5}})
    for made in (alone, half):
        run_recipe(made, store)
    base, expert = (encoded(alone, store, model, "alpha") for model in ("base", "alpha"))
    np.testing.assert_allclose(encoded(alone, store, "merged", "alpha"), expert, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(encoded(half, store, "merged", "alpha"), (base + expert) / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["ties", "emr"])
def test_static_and_per_task_merges_are_evaluated(method, zoo, store):
    report = run_recipe(recipe(zoo, merge={"method": method}, calibrators=[QUICK]), store)
    assert set(report.accuracy["merged"]) >= {"alpha", "beta", "gamma"}
    assert set(report.accuracy["surgery"]) == {"alpha", "beta", "gamma"}


QUICK = {"method": "surgery", "params": {"rank": 2, "steps": 4, "batch_size": 8}}


def test_the_ordinary_forward_keeps_its_keys(zoo, store):
    plain = parse_recipe({"zoo": str(zoo), "merge": MERGE})
    assert "forward" not in plain.to_json()
    assert "forward: linearised" in recipe(zoo).to_yaml()
    assert parse_recipe(yaml.safe_load(recipe(zoo).to_yaml())) == recipe(zoo)
    plans = [{(s.name, s.label): s for s in plan_run(made, store).steps} for made in (plain, recipe(zoo))]
    for name, step in plans[0].items():
        same = step.key == plans[1][name].key
        assert same == (step.name in ("merge", "salience") or step.params.model_dump().get("model") == "base"), name


REFUSED = {
    "an image each": ({"merge": {"method": "wemoe"}}, "weights for each image"),
    "inside": ({"calibrators": [{"method": "surgery_v2"}]}, "acts inside the encoder"),
    "unknown": ({"forward": "sideways"}, "forward"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_linearised_is_refused_with_the_reason(case, zoo, store):
    change, reason = REFUSED[case]
    with pytest.raises(RecipeError, match=reason):
        plan_run(recipe(zoo, **change), store)


@pytest.mark.parametrize("view", ["stitching", "shift"])
def test_views_inside_the_encoder_are_refused(view, zoo, store):
    request = {"recipe": recipe(zoo, calibrators=[QUICK]).model_dump(mode="json")}
    with pytest.raises(EngineError, match="derivative of the whole"):
        plan_request(view, request, store)


VIEWS = ("attention", "blame", "depth", "remedies", "shift", "stitching", "transplant")


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_an_expert_that_is_evaluated_linearised_are_refused(view, zoo, mixed, store):
    ordinary = parse_recipe({"zoo": str(mixed), "merge": MERGE})
    request = {"recipe": ordinary.model_dump(mode="json"), "images": 8}
    with pytest.raises(EngineError, match="alpha, trained linearised, is evaluated in this run by a derivative"):
        plan_request(view, request, store)
    inside = view in ("remedies", "stitching")  # they run every task's expert
    if not inside:
        assert plan_request(view, {**request, "task": "beta"}, store).steps
    all_ordinary = {"recipe": parse_recipe({"zoo": str(zoo), "merge": MERGE}).model_dump(mode="json"), "images": 8}
    assert plan_request(view, all_ordinary, store).steps


def test_a_path_does_not_end_in_a_model_that_is_evaluated_linearised(report, zoo, mixed, store):
    made = recipe(zoo).model_dump(mode="json")
    with pytest.raises(EngineError, match="derivative of the whole"):
        plan_request("interpolation", {"recipe": made, "start": "pretrained", "end": "merged"}, store)
    with pytest.raises(EngineError, match="alpha, beta, trained linearised"):
        plan_request("interpolation", {"recipe": made, "start": "alpha", "end": "beta"}, store)
    ordinary = parse_recipe({"zoo": str(mixed), "merge": MERGE}).model_dump(mode="json")
    with pytest.raises(EngineError, match="alpha, trained linearised"):
        plan_request("interpolation", {"recipe": ordinary, "start": "alpha", "end": "merged"}, store)
    assert plan_request("interpolation", {"recipe": ordinary, "start": "beta", "end": "merged"}, store).steps
    assert "interpolation" not in [view.name for view, _ in offered_views(report)]


def test_units_of_a_model_that_is_evaluated_linearised_are_not_matched_on_a_path(zoo, mixed, store):
    ordinary = parse_recipe({"zoo": str(mixed), "merge": MERGE}).model_dump(mode="json")
    for ends in ({"start": "alpha"}, {"start": "pretrained", "end": "alpha"}):
        with pytest.raises(EngineError, match="alpha, trained linearised"):
            plan_request("connection", {"recipe": ordinary, **ends}, store)
    assert plan_request("connection", {"recipe": ordinary, "start": "pretrained", "end": "beta"}, store).steps


def test_an_export_would_be_another_function(zoo, store, tmp_path):
    out = tmp_path / "run"
    run_recipe(recipe(zoo), store, out=out)
    with pytest.raises(EngineError, match="derivative around the base"):
        export_model(out, tmp_path / "model", "open_clip", store.digest_file)
    assert not (tmp_path / "model").exists()


def test_an_expert_that_was_trained_linearised_is_shown_so(tmp_path, store):
    zoo = make_zoo(tmp_path / "mixed")
    ordinary = parse_recipe({"zoo": str(zoo), "merge": MERGE})
    run_recipe(ordinary, store)
    before = encoded(ordinary, store, "alpha", "alpha")
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document["experts"][0] |= {"method": "linearised", "forward": "linearised"}
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    warned = [finding.text for finding in findings(ordinary, Zoo.open(str(zoo))) if finding.level == "warning"]
    assert len(warned) == 1
    assert warned[0].startswith("alpha: trained linearised")
    run_recipe(ordinary, store)
    after = encoded(ordinary, store, "alpha", "alpha")
    assert np.abs(after - before).max() > 1e-3
    whole = recipe(zoo)
    assert [f for f in findings(whole, Zoo.open(str(zoo))) if f.level == "warning"] == []
    run_recipe(whole, store)
    np.testing.assert_array_equal(encoded(whole, store, "alpha", "alpha"), after)
    learned = recipe(zoo, merge={"method": "adamerging"})
    assert "ordinary encoder" in findings(learned, Zoo.open(str(zoo)))[0].text


def test_a_check_does_not_judge_a_linearised_expert_by_the_ordinary_encoder(mixed):
    found = [finding.text for finding in agreement(Zoo.open(str(mixed)), ["alpha", "beta"])]
    assert [text for text in found if "alpha: trained to be evaluated linearised" in text]
    assert not [text for text in found if "Expert 'alpha' classifies" in text]
    (of_alpha,) = (text for text in found if text.startswith("alpha: base"))
    (of_beta,) = (text for text in found if text.startswith("beta: base"))
    assert (of_alpha.count("%"), of_beta.count("%")) == (1, 2)
