"""Views on weights through the pipeline: what is written, what is shared with runs, what is refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine.errors import EngineError, MergeError, RecipeError
from engine.pipeline.executor import needed_steps, run_inline
from engine.pipeline.local import run_recipe
from engine.pipeline.planners import plan_request
from engine.pipeline.viewing.on_weights import merge_only, read_measured
from engine.recipe import parse_recipe
from engine.report import read_report
from tests.tiny_zoo import EXPERTS, make_zoo, scattered


def recipe(zoo, method="task_arithmetic", **params):
    return parse_recipe({"zoo": str(zoo), "merge": {"method": method, "params": params}})


def carry_out(store, kind, recipe, **request):
    plan = plan_request(kind, {"recipe": recipe.model_dump(mode="json"), **request}, store)
    return run_inline(plan, store), plan


def vector(zoo, name, layer):
    base = load_file(zoo / "base.safetensors")[layer]
    return (load_file(zoo / "experts" / f"{name}.safetensors")[layer] - base).double()


def test_geometry_and_what_is_kept_are_those_of_the_files(zoo, store):
    folder, _ = carry_out(store, "weights", recipe(zoo, scaling=0.3))
    geometry, kept = read_measured(folder, "geometry"), read_measured(folder, "kept")
    assert geometry.document["models"] == list(EXPERTS)
    row = geometry.document["layers"].index("visual.proj")
    expected = (vector(zoo, "alpha", "visual.proj") * vector(zoo, "gamma", "visual.proj")).sum()
    assert geometry.arrays["inner"][row, 0, 2] == pytest.approx(float(expected), rel=1e-9)
    assert (kept.arrays["moved"] == kept.arrays["same"] + kept.arrays["flipped"] + kept.arrays["zeroed"]).all()
    total = sum(vector(zoo, name, "visual.proj") for name in EXPERTS)
    flipped = (torch.sign(total) * torch.sign(vector(zoo, "beta", "visual.proj")) < 0).sum()
    assert abs(kept.arrays["flipped"][row, 1] - int(flipped)) <= 1  # sums are rounded in float32


def test_pruned_layers_are_zeroed_for_everybody(zoo, store):
    asked = parse_recipe({"zoo": str(zoo), "transforms": [{"method": "lwptv", "params": {"eta": 0.9}}]})
    folder, _ = carry_out(store, "weights", asked)
    kept = read_measured(folder, "kept").arrays
    gone = kept["zeroed"] == kept["moved"]
    assert (gone.all(axis=1) == gone.any(axis=1)).all()
    assert 0 < gone.all(axis=1).sum() < len(gone)


def test_a_run_and_its_views_share_the_merge_and_the_geometry(zoo, store):
    first = recipe(zoo, "ties")
    run_recipe(first, store)
    plan = plan_request("weights", {"recipe": first.model_dump(mode="json")}, store)
    needed = [step.name for step in needed_steps(plan, store)]
    assert "merge" not in needed
    run_inline(plan, store)
    other = plan_request("weights", {"recipe": recipe(zoo, "weight_average").model_dump(mode="json")}, store)
    assert [step.name for step in needed_steps(other, store)] == ["merge", "weight_kept"]


def test_a_merge_by_task_is_compared_with_each_tasks_own_weights(zoo, store):
    folder, _ = carry_out(store, "weights", recipe(zoo, "emr"))
    kept = read_measured(folder, "kept").arrays
    assert kept["flipped"].sum() == 0  # EMR masks what has another sign
    assert kept["zeroed"].sum() > 0
    spectra, _ = carry_out(store, "spectra", recipe(zoo, "emr"))
    assert read_measured(spectra, "spectra").document["models"] == list(EXPERTS)
    with pytest.raises(MergeError, match="no single merged model"):
        carry_out(store, "interpolation", recipe(zoo, "emr"), points=3)


def test_spectra_are_the_singular_values(zoo, store):
    folder, _ = carry_out(store, "spectra", recipe(zoo))
    view = read_measured(folder, "spectra")
    assert view.document["models"] == [*EXPERTS, "merged"]
    expected = torch.linalg.svdvals(vector(zoo, "beta", "visual.proj")).numpy()
    np.testing.assert_allclose(view.arrays["beta/visual.proj"], expected, rtol=1e-6, atol=1e-8)


def test_a_path_ends_at_the_accuracies_of_the_report(store, tmp_path):
    zoo, out = scattered(make_zoo(tmp_path / "halved", adapt=False)), tmp_path / "run"
    run_recipe(recipe(zoo), store, out=out)
    report = read_report(out)
    folder, plan = carry_out(store, "interpolation", merge_only(report.recipe), points=3)
    found = json.loads((folder / "interpolation.json").read_text())
    assert found["alphas"] == [0, 0.5, 1]
    assert set(found["tasks"]) == set(EXPERTS)
    for task, values in found["tasks"].items():
        assert values["accuracy"][0] == pytest.approx(report.accuracy["pretrained"][task])
        assert values["accuracy"][-1] == pytest.approx(report.accuracy["merged"][task])
        assert values["images"] == report.samples[task].evaluate
        assert values["barrier"] >= 0
    again = plan_request(
        "interpolation", {"recipe": merge_only(report.recipe).model_dump(mode="json"), "points": 3}, store
    )
    assert again.result == plan.result
    experts, _ = carry_out(store, "interpolation", recipe(zoo), start="alpha", end="beta", points=3)
    assert json.loads((experts / "interpolation.json").read_text())["end"] == "beta"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"start": "merged"}, "starts and ends at 'merged'"),
        ({"end": "alpah"}, "Did you mean 'alpha'"),
        ({"points": 2}, "points"),
        ({"pionts": 5}, "Did you mean 'points'"),
    ],
)
def test_a_path_that_cannot_be_walked_is_refused(zoo, store, request_, words):
    with pytest.raises(RecipeError, match=words):
        plan_request("interpolation", {"recipe": recipe(zoo).model_dump(mode="json"), **request_}, store)


def test_a_zoo_without_heads_has_no_paths_but_weights(tmp_path, store):
    folder = make_zoo(tmp_path / "bare")
    (folder / "heads.safetensors").unlink()
    text = (folder / "zoo.yaml").read_text().replace("heads: heads.safetensors\n", "")
    (folder / "zoo.yaml").write_text(text)
    with pytest.raises(EngineError, match="nothing can be scored"):
        plan_request("interpolation", {"recipe": recipe(folder).model_dump(mode="json")}, store)
    assert read_measured(carry_out(store, "weights", recipe(folder))[0], "kept").arrays["moved"].all()
