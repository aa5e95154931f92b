"""Sweeps on a small made zoo: what is shared, what the best is chosen by, what becomes of a run that fails."""

import json

import numpy as np
import pytest

from engine.errors import CalibrationError, RecipeError
from engine.pipeline.executor import needed_steps
from engine.pipeline.local import run_recipe, run_sweep
from engine.pipeline.planners import plan_request
from engine.pipeline.run.plan import plan_run
from engine.pipeline.views.film import FILM
from engine.recipe import parse_recipe
from engine.report import read_report
from engine.store import Store
from tests.tiny_zoo import make_zoo

SURGERY = {"method": "surgery", "params": {"rank": 4, "steps": 20, "batch_size": 8}}
SCALING = "merge.params.scaling"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return make_zoo(tmp_path_factory.mktemp("zoo") / "tiny", experts=("alpha", "beta"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


def recipe(zoo, **changes):
    return parse_recipe({"zoo": str(zoo), "calibrators": [SURGERY], **changes})


def request(zoo, *settings, **changes):
    listed = [{"place": place, "values": list(values)} for place, values in settings]
    return {"recipe": recipe(zoo, **changes).model_dump(mode="json"), "settings": listed}


@pytest.fixture(scope="module")
def swept(zoo, store):
    return run_sweep(recipe(zoo), [(SCALING, [0.1, 0.8]), ("calibrators.surgery.params.rank", [2, 4])], store)


def test_every_point_is_the_run_of_its_recipe(zoo, store, swept):
    assert [point.values for point in swept.points] == [(0.1, 2), (0.1, 4), (0.8, 2), (0.8, 4)]
    assert swept.titles == ("Scaling coefficient λ", "Surgery: Rank")
    calibrators = [{**SURGERY, "params": {**SURGERY["params"], "rank": 2}}]
    alone = recipe(zoo, merge={"method": "task_arithmetic", "params": {"scaling": 0.8}}, calibrators=calibrators)
    plan = plan_run(alone, store)
    assert needed_steps(plan, store) == []
    report = run_recipe(alone, store)
    point = swept.points[2]
    assert point.run == plan.result == report.identity
    assert point.evaluation["surgery"] == report.average["surgery"]


def test_points_have_rows_of_their_own_under_the_sweep(store, swept):
    sweep = next(row for row in store.runs.list(kinds=["sweep"]) if row.state == "finished")
    children = store.runs.list(parent=sweep.id)
    assert {row.result for row in children} == {point.run for point in swept.points}
    assert {(row.kind, row.state) for row in children} == {("run", "finished")}
    for row in children:
        assert read_report(store.find(row.result)).recipe.model_dump(mode="json") == row.request["recipe"]
    assert not any(row.parent for row in store.runs.list(children=False))


def test_what_points_share_is_one_step(zoo, store):
    plan = plan_request("sweep", request(zoo, ("calibrators.surgery.params.rank", [2, 3, 4])), store)
    names = [step.name for step in plan.steps]
    assert names.count("merge") == names.count("salience") == 1
    assert names.count("features") == 3 + 3 + 2  # pretrained, merged on all tasks; two experts
    assert names.count("validation_features") == 2  # merged, once for all ranks
    assert names.count("calibrate") == names.count("bundle") == names.count("validate") == 3
    assert names[-1] == "sweep"


def test_the_steps_of_a_run_keep_their_keys(zoo, store):
    plan = plan_request("sweep", request(zoo, (SCALING, [0.3])), store)
    alone = plan_run(recipe(zoo, merge={"method": "task_arithmetic", "params": {"scaling": 0.3}}), store)
    assert {step.key for step in alone.steps if step.name != "glance"} <= {step.key for step in plan.steps}


def test_the_best_is_chosen_on_validation_images(store, swept, zoo):
    assert (swept.split, swept.choice_images, swept.evaluation_images) == ("validation", (12, 12), (24, 24))
    values = {point.number: point.choice["surgery"] for point in swept.points}
    best = swept.best("surgery")
    assert best.choice["surgery"] == max(values.values())
    assert best.number == min(number for number, value in values.items() if value == max(values.values()))
    assert "12 labelled validation images" in swept.provenance()


def test_accuracy_on_validation_images_is_that_of_the_merged_model(store, zoo, swept):
    """Checked against features that are encoded anew, image by image."""
    import torch
    from safetensors.torch import load_file

    from engine.zoo.encoders.backbone import architecture, load_encoder, preprocessing, to_tensor
    from engine.zoo.folder import Zoo

    opened = Zoo.open(str(zoo))
    folder = store.find(swept.points[0].run)
    encoder = load_encoder(architecture(zoo, opened.manifest), opened.weights("base"))
    encoder.load_state_dict(
        {name.removeprefix("visual."): value for name, value in load_file(folder / "merged.safetensors").items()},
        strict=False,
    )
    heads, right = load_file(zoo / "heads.safetensors"), []
    for task in ("alpha", "beta"):
        arrays = np.load(zoo / "data" / f"{task}.npz")
        with torch.no_grad():
            z = encoder(to_tensor(arrays["val_x"], preprocessing(zoo, opened.manifest)))
        right.append(100 * float(((z @ heads[task].T).argmax(1).numpy() == arrays["val_y"]).mean()))
    assert swept.points[0].choice["merged"] == pytest.approx(np.mean(right))


def test_without_validation_images_the_labelled_half_decides(tmp_path, store):
    zoo = make_zoo(tmp_path / "half", experts=("alpha", "beta"), adapt=False)
    drop_validation(zoo)
    table = run_sweep(recipe(zoo), [(SCALING, [0.2, 0.4])], store)
    assert (table.split, table.choice_images, table.evaluation_images) == ("adaptation", (12, 12), (12, 24))
    assert table.best("surgery") is not None
    paper = plan_request("sweep", request(zoo, (SCALING, [0.2]), probe={"protocol": "paper"}), store)
    assert paper.steps[-1].params.split is None
    assert "evaluated on" in paper.steps[-1].params.reason


@pytest.mark.parametrize(
    ("place", "values", "images", "said"),
    [
        ("probe.samples_per_task", [20, 8], (8, 20), "on 8-20 evaluation images a task"),
        ("probe.protocol", ["held_out", "paper"], (24, 24), "protocol as in the table, split seed 0,"),
        ("probe.split_seed", [0, 7], (24, 24), "protocol held out, split seed as in the table,"),
    ],
)
def test_what_points_were_measured_on_is_said_of_all_of_them(zoo, store, place, values, images, said):
    table = run_sweep(recipe(zoo, calibrators=[]), [(place, values)], store)
    assert table.evaluation_images == images
    assert said in table.measured_on()


def test_unlabelled_adaptation_images_decide_nothing(tmp_path, store):
    zoo = make_zoo(tmp_path / "unlabelled", experts=("alpha", "beta"))
    drop_validation(zoo)
    table = run_sweep(recipe(zoo, calibrators=[]), [(SCALING, [0.2])], store)
    assert table.split is None
    assert table.best("merged") is None
    assert "no labelled validation images (val_x, val_y) of alpha, beta" in table.provenance()
    other = plan_request("sweep", request(zoo, ("probe.split_seed", [0, 1])), store)
    assert "different images" in other.steps[-1].params.reason


def drop_validation(zoo):
    for path in (zoo / "data").glob("*.npz"):
        arrays = dict(np.load(path))
        np.savez(path, **{name: array for name, array in arrays.items() if not name.startswith("val")})


def test_a_deep_calibrator_is_chosen_by_what_it_does_inside(zoo, store):
    deep = {"method": "interv_merge", "params": {"steps": 2, "batch_size": 4}}
    table = run_sweep(recipe(zoo, calibrators=[deep]), [("calibrators.0.params.steps", [1, 2])], store)
    assert all(0 <= point.choice["interv_merge"] <= 100 for point in table.points)


def test_weights_by_task_are_scored_too(zoo, store):
    table = run_sweep(recipe(zoo, merge={"method": "tall"}), [("merge.method", ["tall", "ties"])], store)
    assert table.split == "validation"
    assert set(table.points[0].choice) == {"merged", "surgery"}


def test_a_point_that_fails_leaves_the_others(zoo, store):
    table = run_sweep(recipe(zoo), [("calibrators.surgery.params.batch_size", [8, 500])], store)
    fine, failed = table.points
    assert fine.evaluation["surgery"].within is not None
    assert "batch size of 500" in failed.failed
    assert failed.run == ""
    row = store.runs.list(kinds=["sweep"], limit=1)[0]
    assert row.state == "finished"
    assert len(store.runs.list(parent=row.id)) == 1
    assert "batch size of 500" in table.to_csv()
    again = plan_request("sweep", row.request, store)
    assert {step.name for step in needed_steps(again, store)} >= {"calibrate", "sweep"}  # it is tried again


def test_a_sweep_of_failures_fails_with_the_reason(zoo, store):
    with pytest.raises(CalibrationError, match="batch size of 60"):
        run_sweep(recipe(zoo), [("calibrators.surgery.params.batch_size", [600, 601])], store)
    row = store.runs.list(kinds=["sweep"], limit=1)[0]
    assert row.state == "failed"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([(SCALING, [0.1, 99])], "Scaling coefficient λ 99: Parameters of Task Arithmetic"),
        ([(SCALING, [n / 1000 for n in range(201)])], "201 runs; at most 200"),
        ([("merge.params.densty", [1])], "densty"),
        ([("calibrators.nobody.params.rank", [1])], "numbered from 0, named surgery"),
        ([(SCALING, [1]), (SCALING, [2])], "given twice"),
        ([(SCALING, [1]), ("seeds", [[0]]), ("zoo", ["x"])], "one or two places"),
        ([(SCALING, [])], "values"),
    ],
)
def test_bad_sweeps_are_refused_before_anything_runs(zoo, store, settings, words):
    before = len(store.runs.list(kinds=["sweep"], limit=1000))
    with pytest.raises(RecipeError) as refused:
        run_sweep(recipe(zoo), settings, store)
    assert words in str(refused.value)
    assert len(store.runs.list(kinds=["sweep"], limit=1000)) == before


def test_the_table_is_what_the_artefact_holds(store, swept):
    sweep = next(row for row in store.runs.list(kinds=["sweep"], limit=100) if len(row.request["settings"]) == 2)
    folder = store.find(sweep.result)
    assert json.loads((folder / "sweep.json").read_text())["titles"] == list(swept.titles)
    assert (folder / "table.csv").read_text() == swept.to_csv()


def test_a_film_over_a_sweeps_place_computes_no_frame_again(zoo, store):
    values = [0.1, 0.8]
    run_sweep(recipe(zoo), [(SCALING, values)], store)
    asked = FILM.ask(recipe(zoo), place=SCALING, values=values, images="all")
    needed = needed_steps(plan_request(FILM.name, asked.model_dump(mode="json"), store), store)
    assert [node.name for node in needed] == ["film"]
