"""Views on runs through the pipeline: blocks compared with the experts', outliers, calibrators of other tasks."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from sklearn.metrics import roc_auc_score

from engine.analysis.outliers import plane_of
from engine.calibration.base import load_calibrator
from engine.calibration.stations import block_outputs
from engine.errors import EngineError, RecipeError, StoreError
from engine.experiments.places import number_at
from engine.figures.shift_kinds import others_of
from engine.pipeline.executor import needed_steps, run_inline
from engine.pipeline.local import run_recipe
from engine.pipeline.planners import plan_request
from engine.pipeline.run.encoding import encoder_of
from engine.pipeline.run.numbers import ANALYSES, outlier_parts
from engine.pipeline.viewing.by_image import packed, unpacked, values_at
from engine.pipeline.views import view_of
from engine.pipeline.views.depth import deep_only
from engine.pipeline.views.stitching import combination
from engine.recipe import parse_recipe
from engine.report import read_report
from engine.zoo.encoders.backbone import to_tensor
from engine.zoo.folder import Zoo
from engine.zoo.images.corruptions import CORRUPTIONS
from tests.tiny_zoo import EXPERTS, make_zoo, write_task

CALIBRATORS = [
    {"method": "surgery", "params": {"steps": 30, "rank": 4}},
    {"method": "surgery_v2", "params": {"steps": 30, "rank": 4, "learning_rate": 0.01}},
    {"method": "interv_merge", "params": {"steps": 4}},
]


@pytest.fixture(scope="module")
def recipe(zoo, store):
    made = parse_recipe({"zoo": str(zoo), "merge": {"method": "task_arithmetic"}, "calibrators": CALIBRATORS})
    run_recipe(made, store)
    return made


@pytest.fixture(scope="module")
def bundle(recipe, store):
    return store.find(plan_request("run", {"recipe": recipe.model_dump(mode="json")}, store).result)


def asked(recipe, **request):
    return {"recipe": recipe.model_dump(mode="json"), **request}


def images(count=5):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_block_outputs_are_those_of_the_encoders_own_blocks(zoo):
    encoder, seen = encoder_of(Zoo.open(str(zoo)), "alpha"), []
    hooks = [block.register_forward_hook(lambda m, i, out: seen.append(out)) for block in encoder.transformer.resblocks]
    with torch.no_grad():
        features = encoder(images())
    for hook in hooks:
        hook.remove()
    found = block_outputs(encoder, images().split(2))
    torch.testing.assert_close(found["features"], features)
    torch.testing.assert_close(found["class"], torch.stack([out[:, 0] for out in seen]))
    torch.testing.assert_close(found["mean"], torch.stack([out.mean(1) for out in seen]))


@pytest.mark.parametrize("name", ["surgery_v2", "interv_merge"])
def test_a_calibrator_inside_the_encoder_counts(zoo, bundle, name):
    encoder = encoder_of(Zoo.open(str(zoo)), "pretrained")
    module = load_calibrator(bundle / "calibrators" / f"{name}.safetensors")
    plain, corrected = block_outputs(encoder, [images()]), block_outputs(encoder, [images()], module, "beta")
    torch.testing.assert_close(corrected["features"], module.correct_features(encoder, images(), "beta"))
    assert not torch.equal(plain["class"][0], corrected["class"][0])
    assert corrected["mean"][-1].isnan().all() == (name == "interv_merge")  # its last block computes the class token
    if name == "surgery_v2":
        aligned = module.student(*_student(module, encoder), slice(1, 2))[0]
        torch.testing.assert_close(corrected["mean"][1], aligned[:, 32:64])


def _student(module, encoder):
    from engine.calibration.tower import Tower

    tower = Tower(encoder)
    return tower, module.prefix(tower, images())


def test_bias_through_depth_of_every_state(recipe, store):
    plan = plan_request("depth", asked(deep_only(recipe), images=10), store)
    assert {step.name for step in needed_steps(plan, store)} == {"depth", "view_table"}  # the run has all the rest
    document = json.loads((run_inline(plan, store) / "depth.json").read_text())
    assert list(document["tasks"]) == list(EXPERTS)
    part = document["tasks"]["alpha"]
    assert (part["images"], part["available"], part["blocks"]) == (10, 24, 2)
    assert list(part["states"]) == ["pretrained", "merged", "surgery_v2", "interv_merge"]
    merged, corrected = part["states"]["merged"], part["states"]["surgery_v2"]
    assert all(0 < value <= 1 for value in merged["class"]["cka"])
    assert corrected["mean"]["l1"][-1] < merged["mean"]["l1"][-1]
    assert part["states"]["interv_merge"]["mean"]["l1"][-1] is None


def test_one_expert_merged_alone_is_that_expert_in_every_block(zoo, store):
    alone = parse_recipe(
        {"zoo": str(zoo), "experts": ["beta"], "merge": {"method": "task_arithmetic", "params": {"scaling": 1.0}}}
    )
    folder = run_inline(plan_request("depth", asked(alone, images=8), store), store)
    part = json.loads((folder / "depth.json").read_text())["tasks"]["beta"]["states"]
    assert part["merged"]["class"]["l1"] == pytest.approx([0, 0], abs=1e-5)
    assert part["merged"]["mean"]["cka"] == pytest.approx([1, 1], abs=1e-5)
    assert min(part["pretrained"]["class"]["l1"]) > 1e-3


def test_outliers_and_their_curve(recipe, bundle, store):
    folder = run_inline(plan_request("outliers", asked(recipe), store), store)
    table = pd.read_parquet(folder / "scores.parquet")
    found = json.loads((folder / "outliers.json").read_text())["auroc"]
    assert set(found) == {"merged", "surgery"}  # deep calibrators have no adaptation features
    for (state, task), rows in table.groupby(["state", "task"]):
        assert len(rows) == 48
        assert found[state][task] == pytest.approx(100 * roc_auc_score(rows["outside"], rows["score"]))


def test_prototypes_on_a_map_keep_distances_in_its_plane(recipe, bundle, store):
    folder = run_inline(plan_request("outliers", asked(recipe), store), store)
    table, document = pd.read_parquet(folder / "map.parquet"), json.loads((folder / "outliers.json").read_text())
    part = outlier_parts(bundle, read_report(bundle), Zoo.open(recipe.zoo), "surgery")["alpha"]
    rows = table[(table["state"] == "surgery") & (table["task"] == "alpha")]
    centres = rows[rows["kind"] == "prototype"]
    assert centres["class"].tolist() == part.classes.tolist()
    assert np.abs(centres[["x", "y"]].to_numpy().mean(0)).max() < 1e-4  # the origin is their mean
    flat = rows.loc[rows["kind"] == "own", ["x", "y"]].to_numpy()
    assert len(flat) == len(part.inside)
    assert (
        np.linalg.norm(flat[0] - flat[1:], axis=1) <= np.linalg.norm(part.inside[0] - part.inside[1:], axis=1) + 1e-4
    ).all()
    assert document["plane"]["surgery"]["alpha"] == pytest.approx(100 * plane_of(part.known, part.centres)[2])
    auroc = document["auroc"]["surgery"]["alpha"]
    assert auroc == pytest.approx(100 * roc_auc_score([0] * 24 + [1] * 24, np.concatenate(part.scores())))


def test_outliers_are_told_in_pairs_where_they_are_named(recipe, bundle):
    report, zoo = read_report(bundle), Zoo.open(recipe.zoo)
    out = report.tasks_of("out")[0]
    pairs = {"pairs": {out: "beta"}}
    (task, part), *others = outlier_parts(bundle, report, zoo, "surgery", {"beta": out}).items()
    assert (task, others) == ("beta", [])
    inside, outside = part.scores()
    found = ANALYSES["outlier_auroc"](bundle, report, zoo, "surgery", pairs)
    expected = 100 * roc_auc_score([0] * len(inside) + [1] * len(outside), np.concatenate([inside, outside]))
    assert np.mean([values.mean() for values in found.values()]) == pytest.approx(expected)
    assert {name: len(values) for name, values in found.items()} == {"beta": len(inside), out: len(outside)}
    assert ANALYSES["outlier_auroc"](bundle, report, zoo, "surgery", {"pairs": {"nothing": "beta"}}) is None


def test_five_likeliest_classes_of_every_image(recipe, bundle, store):
    folder = run_inline(plan_request("predictions", asked(recipe), store), store)
    table, report = pd.read_parquet(folder / "predictions.parquet"), read_report(bundle)
    kept = pd.read_parquet(bundle / "samples.parquet")
    kept = kept[(kept["split"] == "evaluate") & kept["task"].isin(EXPERTS)]
    first = table[table["rank"] == 1].merge(kept, on=["task", "index", "state"], suffixes=("", "_kept"))
    assert len(first) == len(kept)
    assert (first["label"] == first["prediction"]).all()
    np.testing.assert_allclose(first["probability"], first["probability_kept"], rtol=1e-4)
    np.testing.assert_allclose(first["shift"], first["shift_kept"].fillna(0), rtol=1e-4, atol=1e-5)
    sums = table.groupby(["state", "task", "index"])["probability"].agg(["sum", "count"])
    assert (sums["count"] == 3).all()  # there are three classes
    np.testing.assert_allclose(sums["sum"], 1, rtol=1e-5)
    assert set(table["state"]) == {"pretrained", "merged", *report.calibrators, "expert"}


def test_spreads_against_residuals(zoo, store, tmp_path):
    call = {"method": "prob_surgery", "params": {"steps": 30, "hidden": 4}}
    made = parse_recipe({"zoo": str(zoo), "merge": {"method": "task_arithmetic"}, "calibrators": [call]})
    run_recipe(made, store, out=tmp_path / "run")
    folder = run_inline(plan_request("coverage", asked(made), store), store)
    found = json.loads((folder / "coverage.json").read_text())["prob_surgery"]
    assert list(found) == list(EXPERTS)
    features = load_file(tmp_path / "run" / "features.safetensors")
    module = load_calibrator(tmp_path / "run" / "calibrators" / "prob_surgery.safetensors")
    left = features["prob_surgery/beta/evaluate"] - features["expert/beta/evaluate"]
    inside = (left.abs() <= 1.6448536 * module.sigma(features["merged/beta/evaluate"], "beta")).float().mean()
    assert found["beta"]["coverage"]["90"] == pytest.approx(100 * inside.item(), abs=0.5)
    plain = parse_recipe({"zoo": str(zoo), "merge": {"method": "task_arithmetic"}})
    with pytest.raises(EngineError, match="Add ProbSurgery"):
        run_inline(plan_request("coverage", asked(plain), store), store)


def test_calibrators_of_other_tasks(recipe, bundle, store):
    folder = run_inline(plan_request("wrong_task", asked(recipe), store), store)
    found = json.loads((folder / "wrong_task.json").read_text())["states"]
    report = read_report(bundle)
    assert list(found) == ["surgery"]
    matrix = np.array(found["surgery"]["accuracy"])
    assert matrix.shape == (3, 3)
    for row, task in enumerate(EXPERTS):
        assert matrix[row, row] == pytest.approx(report.accuracy["surgery"][task])
        assert found["surgery"]["uncorrected"][row] == pytest.approx(report.accuracy["merged"][task])


def test_what_cannot_be_looked_at_is_refused(zoo, store):
    plain = parse_recipe({"zoo": str(zoo), "merge": {"method": "task_arithmetic"}})
    with pytest.raises(EngineError, match="Add Surgery"):
        run_inline(plan_request("wrong_task", asked(plain), store), store)
    with pytest.raises(RecipeError, match="images"):
        plan_request("depth", asked(plain, images=1), store)
    with pytest.raises(EngineError, match=r"There is no kind of work 'predictoins'\. Did you mean 'predictions'"):
        plan_request("predictoins", asked(plain), store)
    routed = parse_recipe({"zoo": str(zoo), "merge": {"method": "twin"}})
    with pytest.raises(RecipeError, match="every image"):
        plan_request("depth", asked(routed), store)


@pytest.fixture(scope="module")
def stitched(recipe, store):
    plan = plan_request("stitching", asked(recipe, images=20), store)
    run_inline(plan, store)
    return json.loads((store.find(plan.result) / "stitching.json").read_text())


def test_both_ends_of_a_stitched_network_are_the_whole_models(stitched, bundle):
    report = read_report(bundle)
    part = stitched["tasks"]["beta"]
    assert (part["blocks"], part["images"], part["other"], part["exact"]) == (2, 20, "gamma", True)
    assert set(part["states"]) == {"pretrained", "merged", "expert", "surgery", "surgery_v2", "interv_merge"}
    for values in part["states"].values():
        assert len(values["begins"]) == len(values["ends"]) == 5
        assert values["begins"][0] == values["ends"][-1]  # the task's own expert
        assert values["begins"][-1] == values["ends"][0]  # the state itself
    assert report.samples["beta"].evaluate == 24
    merged, surgery = part["states"]["merged"], part["states"]["surgery"]
    assert surgery["begins"][:-1] == merged["begins"][:-1]  # it acts on the output only


def test_all_images_give_the_accuracies_of_the_report(recipe, store, bundle):
    report = read_report(bundle)
    plan = plan_request("stitching", asked(recipe, images=24), store)
    run_inline(plan, store)
    tasks = json.loads((store.find(plan.result) / "stitching.json").read_text())["tasks"]
    for task, part in tasks.items():
        for state in ("pretrained", "merged", "surgery", "surgery_v2", "interv_merge"):
            assert part["states"][state]["begins"][-1] == pytest.approx(report.accuracy[state][task])
        assert part["states"]["merged"]["begins"][0] == pytest.approx(report.accuracy["expert"][task])


def test_linearity_is_that_of_the_block_outputs(zoo, recipe, store):
    plan = plan_request("stitching", asked(recipe, images=24), store)
    run_inline(plan, store)
    part = json.loads((store.find(plan.result) / "stitching.json").read_text())["tasks"]["alpha"]["linearity"]
    assert set(part) == {"pretrained", "merged", "expert", "surgery_v2", "interv_merge"}
    assert all(len(values["cosine"]) == len(values["change"]) == 3 for values in part.values())
    assert part["pretrained"]["change"] == [None] * 3
    opened = Zoo.open(str(zoo))
    pixels = to_tensor(opened.data["alpha"].samples("test"), opened.preprocess())
    outputs = {name: block_outputs(encoder_of(opened, name), [pixels])["class"] for name in ("pretrained", *EXPERTS)}
    target = 0.1 * outputs["pretrained"] + sum(0.3 * outputs[name] for name in EXPERTS)  # λ = 0.3, three experts
    base = outputs["pretrained"]
    for block in range(2):
        near = torch.nn.functional.cosine_similarity(outputs["alpha"][block], target[block]).mean().item()
        assert part["expert"]["cosine"][block] == pytest.approx(near, abs=1e-5)
        moved = outputs["alpha"][block] - base[block], target[block] - base[block]
        change = torch.nn.functional.cosine_similarity(*moved).mean().item()
        assert part["expert"]["change"][block] == pytest.approx(change, abs=1e-4)


def test_only_sums_of_task_vectors_have_coefficients():
    weights, sums = {"a": 1.0, "b": 0.5}, {"weight_average": [0.5, 0.25], "task_arithmetic": [0.3, 0.15]}
    for method, expected in sums.items():
        summed = parse_recipe({"zoo": "z", "merge": {"method": method}})
        assert combination(summed, weights) == pytest.approx(dict(zip("ab", expected, strict=True)))
        assert combination(summed.model_copy(update={"transforms": ({"method": "dare"},)}), weights) is None


def test_shifted_images_are_scored_by_every_state(recipe, store, bundle):
    report = read_report(bundle)
    plan = plan_request("shift", asked(recipe), store)
    run_inline(plan, store)
    found = json.loads((store.find(plan.result) / "shift.json").read_text())["tasks"]
    for task, part in found.items():
        assert list(part["shifts"]) == ["none", "noise", "blur", "contrast", "negative"]
        for state in ("expert", "pretrained", "merged", "surgery", "surgery_v2", "interv_merge"):
            assert part["shifts"]["none"][state]["accuracy"] == pytest.approx(report.accuracy[state][task])
        assert part["shifts"]["negative"]["expert"]["l1"] == 0
        assert part["shifts"]["negative"]["merged"]["l1"] != part["shifts"]["none"]["merged"]["l1"]
        assert part["shifts"]["none"]["surgery"]["l1"] == pytest.approx(report.bias["surgery"].l1[task], rel=1e-4)


@pytest.mark.parametrize(
    ("view", "place"),
    [
        ("shift", "tasks.*.mean.merged.accuracy"),
        ("shift", "tasks.*.shifts.noise.surgery.accuracy"),
        ("stitching", "tasks.*.states.merged.begins[1:-1]"),
        ("stitching", "tasks.*.states.merged.ends[0]"),
    ],
)
def test_accuracies_of_views_are_means_over_their_images(recipe, store, view, place):
    plan = plan_request(view, asked(recipe, images=20), store)
    run_inline(plan, store)
    document = view_of(view).read(store.find(plan.result))
    by_image = values_at(document, place)
    assert {task: len(values) for task, values in by_image.items()} == dict.fromkeys(document["tasks"], 20)
    assert np.mean([values.mean() for values in by_image.values()]) == pytest.approx(number_at(document, place))
    for elsewhere in ("tasks.*.mean.merged.l1", "split_seed", "tasks.*", "tasks.alpha.images"):
        assert values_at(document, elsewhere) is None


def test_which_images_are_right_is_packed_and_read_back():
    right = np.random.default_rng(0).random(203) < 0.7
    assert np.array_equal(unpacked(packed(right)), right)
    for damaged in ("", "203:", "9:AA==", f"{packed(right)}!", "x:AA=="):
        with pytest.raises(StoreError, match="Compute the view again"):
            unpacked(damaged)


def test_corruptions_are_a_set_of_their_own(recipe, store, bundle):
    usual = plan_request("shift", asked(recipe), store)
    plan = plan_request("shift", asked(recipe, drawn="corruptions"), store)
    assert plan.result != usual.result
    run_inline(plan, store)
    found = json.loads((store.find(plan.result) / "shift.json").read_text())["tasks"]
    for part in found.values():
        assert list(part["shifts"]) == ["none", *CORRUPTIONS]
        kinds = [part["shifts"][kind]["merged"]["l1"] for kind in CORRUPTIONS]
        assert part["mean"]["merged"]["l1"] == pytest.approx(sum(kinds) / 7)


def test_a_zoos_own_shifted_task_is_shown_to_the_tasks_states(zoo, store, tmp_path):
    folder = make_zoo(tmp_path / "shifted", experts=("alpha", "beta"))
    manifest = yaml.safe_load((folder / "zoo.yaml").read_text())
    extra = {**manifest["tasks"][0], "name": "alpha_dark", "shifted_from": "alpha", "data": "data/alpha_dark.npz"}
    manifest["tasks"].append(extra)
    (folder / "zoo.yaml").write_text(yaml.safe_dump(manifest))
    write_task(folder / "data" / "alpha_dark.npz", 7, 12, adapt=False)
    heads = load_file(folder / "heads.safetensors")
    save_file({**heads, "alpha_dark": heads["alpha"].clone()}, folder / "heads.safetensors")
    made = parse_recipe({"zoo": str(folder), "merge": {"method": "ties"}, "calibrators": CALIBRATORS})
    report = run_recipe(made, store)
    plan = plan_request("shift", asked(made), store)
    run_inline(plan, store)
    found = json.loads((store.find(plan.result) / "shift.json").read_text())["tasks"]
    assert (found["alpha"]["own"], found["beta"]["own"]) == (["alpha_dark"], [])
    assert (found["alpha"]["images"], found["alpha"]["images_of"]) == (24, {"alpha_dark": 12})
    assert "images_of" not in found["beta"]
    assert others_of({"tasks": found}, report, ["alpha", "beta"]) == " (alpha_dark 12)"
    assert others_of({"tasks": found}, report, ["beta"]) == ""
    for state in ("expert", "merged", "surgery", "surgery_v2", "interv_merge"):
        score = found["alpha"]["shifts"]["alpha_dark"][state]["accuracy"]
        assert score == pytest.approx(report.accuracy[state]["alpha_dark"])
    assert report.tasks["alpha_dark"].domain == "shifted"
    merged = report.accuracy["merged"]
    assert report.average["merged"].within == pytest.approx((merged["alpha"] + merged["beta"]) / 2)
    assert report.average["merged"].out == pytest.approx(merged["outside"])
    routed = run_recipe(parse_recipe({"zoo": str(folder), "merge": {"method": "emr"}}), store)
    assert routed.accuracy["merged"]["alpha_dark"] is not None  # by the weights of alpha


def test_what_cannot_be_stitched_is_refused(recipe, store):
    routed = parse_recipe({"zoo": recipe.zoo, "merge": {"method": "twin"}})
    with pytest.raises(RecipeError, match="no blocks to stitch"):
        plan_request("stitching", asked(routed), store)
    with pytest.raises(RecipeError, match="cannot be shifted"):
        plan_request("shift", asked(recipe, images=1), store)


@pytest.mark.parametrize("method", ["twin", "emr"])
def test_merges_by_image_or_by_task_see_shifted_images_too(zoo, store, method):
    made = parse_recipe({"zoo": str(zoo), "merge": {"method": method}, "calibrators": CALIBRATORS[:1]})
    report = run_recipe(made, store)
    folder = run_inline(plan_request("shift", asked(made), store), store)
    part = json.loads((folder / "shift.json").read_text())["tasks"]["gamma"]["shifts"]
    for state in ("merged", "surgery"):
        assert part["none"][state]["accuracy"] == pytest.approx(report.accuracy[state]["gamma"])
