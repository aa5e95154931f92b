"""Whole runs on a small made zoo: what a run leaves behind, what is computed again, what protocols mean."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.numpy import load_file

from engine import load_merged
from engine.calibration.base import load_calibrator
from engine.errors import EngineError, RecipeError, ZooError
from engine.manifest import locate_zoo
from engine.pipeline.executor import needed_steps, run_inline
from engine.pipeline.local import run_recipe
from engine.pipeline.run.bundle import Measured, _mean_bias, _over_seeds, _sd, _warnings_of
from engine.pipeline.run.numbers import ClusterParams, clusters
from engine.pipeline.run.plan import plan_run
from engine.pipeline.tools import Silent
from engine.recipe import parse_recipe
from engine.report import Report, read_report
from engine.store import FIRST_NUMBERS, Store
from engine.zoo.folder import Zoo
from engine.zoo.images.splits import select
from tests.tiny_zoo import make_zoo, scattered

CALIBRATORS = [
    {"method": "surgery", "params": {"rank": 4, "steps": 40, "batch_size": 8}},
    {"method": "prob_surgery", "params": {"hidden": 8, "steps": 40, "batch_size": 8}},
    {"name": "control", "method": "surgery", "params": {"rank": 4, "steps": 40, "batch_size": 8}, "on": "pretrained"},
]


def recipe(zoo, **changes):
    return parse_recipe({"zoo": str(zoo), "calibrators": CALIBRATORS, "seeds": [0, 1], **changes})


@pytest.fixture(scope="module")
def finished(zoo, store, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "run"
    return run_recipe(recipe(zoo), store, view={"method": "pca", "images": 40}, out=out), out


def test_a_run_leaves_its_report_and_everything_beside_it(finished):
    report, out = finished
    assert read_report(out) == report
    assert set(report.states()) == {"pretrained", "merged", "surgery", "prob_surgery", "control", "expert"}
    assert set(report.accuracy["merged"]) == {"alpha", "beta", "gamma", "outside"}
    assert set(report.accuracy["expert"]) == set(report.accuracy["surgery"]) == {"alpha", "beta", "gamma"}
    assert report.samples["alpha"].model_dump() == {"adapt": 24, "evaluate": 24, "validation": 12, "available": 24}
    assert report.samples["outside"].adapt == 0
    assert report.salience is not None
    assert not report.salience.applied
    assert report.salience.kept_layers == sum(report.salience.shared_mask)
    for part in ("recipe.yaml", "merged.safetensors", "calibrators/surgery.safetensors", "samples.parquet"):
        assert (out / part).is_file()
    assert (out / "seeds" / "1" / "calibrators" / "prob_surgery.safetensors").is_file()
    document = json.loads((out / "report.json").read_text())
    assert set(document["average"]["merged"]) == {"in", "out", "h_score", "recovered"}


@pytest.mark.parametrize("method", ["task_arithmetic", "emr"])
def test_merged_weights_say_how_samples_are_prepared_now(tmp_path, method):
    place, store = make_zoo(tmp_path / "zoo", experts=("alpha", "beta")), Store(tmp_path / "store")
    asked = recipe(place, calibrators=[], seeds=[0], merge={"method": method})
    run_recipe(asked, store, out=tmp_path / "before")
    manifest = yaml.safe_load((place / "zoo.yaml").read_text())
    manifest["backbone"]["preprocess"] = {**manifest["backbone"].get("preprocess", {}), "mean": [0.25, 0.5, 0.75]}
    (place / "zoo.yaml").write_text(yaml.safe_dump(manifest))
    run_recipe(asked, store, out=tmp_path / "after")
    kinds = [artefact.step for artefact in store.artefacts()]
    assert (kinds.count("merge"), kinds.count("bundle")) == (1, 2)
    before, after = (
        load_merged(tmp_path / run, task="alpha" if method == "emr" else None, base=place / "base.safetensors")
        for run in ("before", "after")
    )
    assert before.preprocess.keywords["preprocess"].mean != (0.25, 0.5, 0.75)
    assert after.preprocess.keywords["preprocess"].mean == (0.25, 0.5, 0.75)
    assert all(map(torch.equal, before.state_dict().values(), after.state_dict().values()))


def test_the_zoo_of_a_run_is_known_to_the_store(finished, zoo, store):
    assert zoo.resolve() in store.zoos.list()


def test_the_table_of_samples_agrees_with_the_report(finished):
    report, out = finished
    table = pd.read_parquet(out / "samples.parquet")
    first = table[(table.state == "merged") & (table.task == "beta")]
    assert 100 * (first.prediction == first.label).mean() == pytest.approx(report.accuracy["merged"]["beta"])
    assert table[table.state == "expert"]["shift"].max() == 0
    assert table[table.state == "prob_surgery"].sigma.notna().all()
    assert table[table.state == "surgery"].sigma.isna().all()


def test_bias_in_the_report_is_that_of_the_features(finished):
    report, out = finished
    features = load_file(out / "features.safetensors")
    expected = np.abs(features["merged/alpha/evaluate"] - features["expert/alpha/evaluate"]).mean()
    assert report.bias["merged"].l1["alpha"] == pytest.approx(float(expected), rel=1e-5)


def test_the_projection_is_joint_and_names_its_images(finished):
    _, out = finished
    frame = pd.read_parquet(out / "projections" / "pca" / "projection.parquet")
    document = json.loads((out / "projections" / "pca" / "projection.json").read_text())
    assert document["images"] == {"alpha": 14, "beta": 13, "gamma": 13} or sum(document["images"].values()) == 40
    counts = frame.groupby("state").size()
    assert counts.nunique() == 1
    assert counts.iloc[0] == 40
    one, other = (frame[frame.state == state].reset_index() for state in ("merged", "expert"))
    assert (one["index"] == other["index"]).all()


def test_nothing_is_computed_twice(zoo, store, finished):
    assert needed_steps(plan_run(recipe(zoo), store), store) == []
    changed = [{**CALIBRATORS[0], "params": {**CALIBRATORS[0]["params"], "rank": 2}}, *CALIBRATORS[1:]]
    names = [step.name for step in needed_steps(plan_run(recipe(zoo, calibrators=changed), store), store)]
    assert names == ["calibrate", "calibrate", "bundle"]
    names = [
        step.name for step in needed_steps(plan_run(recipe(zoo, merge={"method": "weight_average"}), store), store)
    ]
    assert names.count("merge") == 1
    assert names.count("salience") == 0
    assert names.count("features") == 4


class Told(Silent):
    """Keeps live metrics in the order in which they are told."""

    def __init__(self):
        self.metrics_told = []

    def metrics(self, values):
        self.metrics_told.append(values)


@pytest.mark.parametrize("method", ["task_arithmetic", "emr"])
def test_first_accuracies_are_those_of_the_report_and_come_before_calibrators(zoo, store, method):
    params = {"scaling": 0.37} if method == "task_arithmetic" else {}
    asked, told = recipe(zoo, merge={"method": method, "params": params}), Told()
    plan = plan_run(asked, store)
    report = read_report(run_inline(plan, store, told))
    names = [name for values in told.metrics_told for name in values]
    assert names[0] == FIRST_NUMBERS
    assert names.count(FIRST_NUMBERS) == 1
    assert {"surgery", "prob_surgery"} <= set(names)
    first = told.metrics_told[0][FIRST_NUMBERS]
    for task in first["tasks"]:
        for state in ("merged", "expert", "pretrained"):
            if state in task:
                assert task[state][0] == pytest.approx(report.accuracy[state][task["name"]])
    assert {task["name"] for task in first["tasks"]} == set(report.accuracy["merged"])
    assert first["means"]["merged"] == pytest.approx(report.average["merged"].within)


def test_first_numbers_are_told_again_where_the_merge_was_looked_at_before(zoo, store):
    """By a calibrator of any name: none can be named like what they are told as."""
    merge, first = {"method": "task_arithmetic", "params": {"scaling": 0.41}}, None
    for name, steps in (("surgery", 3), ("other", 4), ("glance", 5)):
        call = {"name": name, "method": "surgery", "params": {"steps": steps, "batch_size": 4}}
        asked, told = recipe(zoo, merge=merge, calibrators=[call]), Told()
        run_inline(plan_run(asked, store), store, told)
        assert list(told.metrics_told[0]) == [FIRST_NUMBERS], name
        first = first or told.metrics_told[0]
        assert told.metrics_told[0] == first
        assert set().union(*told.metrics_told) == {FIRST_NUMBERS, name}


def test_the_same_zoo_at_another_place_is_the_same_run(zoo, store, finished, tmp_path):
    moved = scattered(make_zoo(tmp_path / "elsewhere"))
    assert needed_steps(plan_run(recipe(moved), store), store) == []


def test_the_paper_protocol_adapts_on_what_it_evaluates(zoo, store):
    report = run_recipe(recipe(zoo, calibrators=[], probe={"protocol": "paper"}), store)
    assert report.samples["alpha"].adapt == report.samples["alpha"].evaluate == 24


def test_held_out_without_adaptation_images_evaluates_on_the_half_that_is_not_adapted_on(tmp_path, store):
    folder, told = make_zoo(tmp_path / "halved", adapt=False), {}
    for protocol in ("held_out", "paper"):
        probe = {"protocol": protocol, "samples_per_task": 18}
        asked = recipe(folder, calibrators=CALIBRATORS[:1], seeds=[0], probe=probe)
        told[protocol] = run_recipe(asked, store, out=tmp_path / protocol)
    half, data = told["held_out"], Zoo.open(str(folder)).data["alpha"]
    chosen = select(data, half.recipe.probe)
    assert half.samples["alpha"].model_dump() == {"adapt": 9, "evaluate": 9, "validation": 12, "available": 24}
    assert sorted([*chosen.evaluate_rows, *chosen.adapt_rows]) == list(range(18))
    part, whole = (load_file(tmp_path / protocol / "features.safetensors") for protocol in told)
    for split, rows in (("evaluate", chosen.evaluate_rows), ("adapt", chosen.adapt_rows)):
        np.testing.assert_array_equal(part[f"merged/alpha/{split}"], whole["merged/alpha/evaluate"][rows])
    module = load_calibrator(tmp_path / "held_out" / "calibrators" / "surgery.safetensors")
    corrected = module.correct(torch.from_numpy(part["merged/alpha/evaluate"]), "alpha")
    np.testing.assert_allclose(part["surgery/alpha/evaluate"], corrected.detach(), atol=1e-5)
    few = pd.read_parquet(tmp_path / "held_out" / "samples.parquet").query("state == 'merged' and task == 'alpha'")
    assert few["label"].tolist() == data.labels("test")[few["index"]].tolist()


def test_sampling_is_stated(zoo, store):
    report = run_recipe(recipe(zoo, calibrators=[], probe={"samples_per_task": 9}), store)
    assert report.samples["alpha"].evaluate == 9
    assert report.samples["alpha"].available == 24


def test_seeds_are_averaged_and_their_spread_is_that_of_a_sample():
    measured = [
        Measured(accuracy={"s": {"t": v, "graded": None}}, bias={"s": {"l1": {"t": v}, "by_class": {"t": (v, None)}}})
        for v in (70.0, 74.0)
    ]
    assert _over_seeds(measured, "s", np.mean) == {"t": 72.0, "graded": None}
    assert _over_seeds(measured, "s", _sd) == {"t": pytest.approx(8**0.5), "graded": None}
    assert _mean_bias(measured, "s") == {"l1": {"t": 72.0}, "by_class": {"t": (72.0, None)}}


def test_one_expert_is_enough(zoo, store):
    report = run_recipe(recipe(zoo, experts=["beta"], calibrators=[]), store)
    assert report.salience is None
    assert report.accuracy["merged"]["beta"] is not None
    assert set(report.tasks) == {"beta", "outside"}


def test_an_unknown_expert_is_named(zoo, store):
    with pytest.raises(RecipeError, match=r"no expert 'bata'\. Did you mean 'beta'"):
        run_recipe(recipe(zoo, experts=["bata"]), store)


def test_a_zoo_without_heads_still_merges(tmp_path, store):
    folder = make_zoo(tmp_path / "headless")
    text = (folder / "zoo.yaml").read_text()
    (folder / "zoo.yaml").write_text(text.replace("heads: heads.safetensors\n", ""))
    report = run_recipe(recipe(folder, calibrators=[]), store)
    assert report.accuracy == {}
    assert "nothing could be scored" in report.warnings[0]
    with pytest.raises(EngineError, match="heads"):
        run_recipe(recipe(folder), store)


def test_a_finished_report_follows_its_schema(finished):
    report, _ = finished
    assert Report.model_validate(report.model_dump(mode="json")) == report


def test_a_missing_zoo_names_the_bundled_ones(store):
    with pytest.raises(ZooError, match="There is no zoo 'nowhere'"):
        run_recipe(parse_recipe({"zoo": "nowhere"}), store)


@pytest.mark.parametrize("name", ["1" * 300_000, "/" * 5000, "a\0b"], ids=["long", "slashes", "a null"])
def test_a_name_that_no_file_can_have_is_no_zoo(name):
    with pytest.raises(ZooError, match="There is no zoo") as found:
        locate_zoo(name)
    assert len(str(found.value)) < 1000


def test_what_a_later_seed_warns_of_is_said(tmp_path):
    said = {0: [], 1: ["training diverged at step 3"]}
    seeds = {seed: SimpleNamespace(calibrator={"surgery": tmp_path / str(seed)}) for seed in said}
    for seed, warnings in said.items():
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "calibration.json").write_text(json.dumps({"warnings": warnings}))
    assert _warnings_of("surgery", SimpleNamespace(seeds=seeds)) == ["surgery, seed 1: training diverged at step 3"]
    del seeds[0]
    assert _warnings_of("surgery", SimpleNamespace(seeds=seeds)) == ["surgery: training diverged at step 3"]


def test_clusters_out_of_domain_are_measured_where_the_merge_scores_nothing(zoo, store, tmp_path):
    """EMR has other weights for every expert's task and none for others."""
    recipe = parse_recipe({"zoo": str(zoo), "merge": {"method": "emr"}})
    report = run_recipe(recipe, store, out=tmp_path / "run")
    outside = report.tasks_of("out")
    assert outside
    params = ClusterParams(quantity="neighbours", domain="out")
    found = clusters(tmp_path / "run", report, Zoo.open(str(zoo)), "pretrained", params)
    assert set(found) == set(outside)
