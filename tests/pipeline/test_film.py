"""Films of a small made zoo: exact at their frames, whatever a value does, whatever is drawn at random."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from safetensors.numpy import load_file
from sklearn.decomposition import PCA
from typer.testing import CliRunner

from engine.__main__ import app
from engine.analysis.film import MISSING, Grid
from engine.calibration.output import OutputCalibrator
from engine.commands.film import printed
from engine.errors import RecipeError
from engine.pipeline.executor import needed_steps
from engine.pipeline.local import make_view, run_recipe
from engine.pipeline.planners import plan_request
from engine.pipeline.preview import models as preview_models
from engine.pipeline.run.plan import plan_run
from engine.pipeline.views.film import FILM
from engine.recipe import parse_recipe
from engine.rounding import rounded
from tests.tiny_text_zoo import make_text_zoo

SCALING = "merge.params.scaling"
SURGERY = {"method": "surgery", "params": {"rank": 4, "steps": 20, "batch_size": 8}}
VALUES = [0.0, 0.5, 99.0, 1.0]
STATES = ("merged", "surgery")


def recipe(zoo, **changes):
    return parse_recipe({"zoo": str(zoo), "calibrators": [SURGERY], **changes})


def make(store, asked_of, **settings):
    asked = FILM.request.parse(FILM.ask(asked_of, **{"images": "all", **settings}).model_dump(mode="json"))
    folder = make_view(FILM, asked, store)
    return FILM.read(folder), load_file(folder / "film.safetensors")


@pytest.fixture(scope="module")
def film(zoo, store):
    return make(store, recipe(zoo), place=SCALING, values=VALUES, points=9)


@pytest.fixture(scope="module")
def runs(zoo, store, tmp_path_factory):
    """The runs at three frames, with all that they leave."""
    found = {}
    for frame in (0, 1, 3):
        folder = tmp_path_factory.mktemp("run") / "out"
        at = recipe(zoo, merge={"method": "task_arithmetic", "params": {"scaling": VALUES[frame]}})
        report = run_recipe(at, store, out=folder)
        found[frame] = report, load_file(folder / "features.safetensors"), pd.read_parquet(folder / "samples.parquet")
    return found


def drawn(features, arrays, document, state):
    """Features of the images that are drawn, task by task, of the run's evaluation images."""
    parts = []
    for number, task in enumerate(document["tasks"]):
        own = features.get(f"{state}/{task['name']}/evaluate")
        if own is not None:
            parts.append(own[arrays["index"][arrays["task"] == number]])
    return np.concatenate(parts)


def test_accuracies_and_biases_of_a_frame_are_those_of_its_run(film, runs):
    document, _ = film
    for frame, (report, _, _) in runs.items():
        for state in STATES:
            for task, percent in report.accuracy[state].items():
                assert document["accuracy"][state][task][frame] == pytest.approx(percent, abs=1e-9), (state, task)
            for task, value in report.bias[state].l1.items():
                assert document["l1"][state][task][frame] == pytest.approx(value, abs=1e-6)
    assert document["accuracy"]["surgery"]["outside"] == [None] * 4
    report = runs[0][0]
    assert document["accuracy"]["expert"]["alpha"] == [pytest.approx(report.accuracy["expert"]["alpha"])]


def test_predictions_and_distances_of_a_frame_are_those_of_its_run(film, runs):
    document, arrays = film
    names = [document["tasks"][number]["name"] for number in arrays["task"]]
    for frame, (_, _, table) in runs.items():
        for state in STATES:
            own = table[table["state"] == state].set_index(["task", "index"])
            for row, key in enumerate(zip(names, arrays["index"].tolist(), strict=True)):
                if key not in own.index:
                    assert state == "surgery"
                    assert arrays["surgery/points"][frame, row].tolist() == [MISSING, MISSING]
                    continue
                assert arrays[f"{state}/predictions"][frame, row] == own.loc[key, "prediction"]
                assert arrays["label"][row] == own.loc[key, "label"]
                if key[0] != "outside":
                    shift = arrays[f"{state}/shift"][frame, row] * document["shift_step"]
                    assert shift == pytest.approx(own.loc[key, "shift"], abs=document["shift_step"])


def test_points_are_the_principal_components_of_still_states_and_ends(film, runs):
    document, arrays = film
    still, first, last = runs[0][1], runs[0][1], runs[3][1]
    ends = [drawn(features, arrays, document, state) for state in STATES for features in (first, last)]
    anchors = [*ends, drawn(still, arrays, document, "pretrained"), drawn(still, arrays, document, "expert")]
    model = PCA(n_components=2, svd_solver="covariance_eigh").fit(np.concatenate(anchors).astype(np.float64))
    grid = Grid(tuple(document["grid"]["low"]), document["grid"]["step"])
    for frame, (_, features, _) in runs.items():
        expected = model.transform(drawn(features, arrays, document, "merged").astype(np.float64))
        found = grid.unpack(arrays["merged/points"][frame])
        assert np.abs(found - expected).max() <= grid.step / 2 + 1e-5
    assert all(0 < value <= 1 for value in document["map"]["trust"]["merged"] if value is not None)


def test_a_refused_value_marks_its_frame_and_the_film_stays(film):
    document, arrays = film
    assert list(document["failed"]) == ["2"]
    assert "99" in document["failed"]["2"]
    assert (arrays["merged/points"][2] == MISSING).all()
    assert document["accuracy"]["merged"]["alpha"][2] is None


def test_a_step_that_fails_marks_its_frame(zoo, store):
    document, arrays = make(
        store, recipe(zoo), place="calibrators.surgery.params.batch_size", values=[8, 500, 6], points=4
    )
    assert list(document["failed"]) == ["1"]
    assert "batch size of 500" in document["failed"]["1"]
    assert (arrays["surgery/points"][[0, 2], :12] != MISSING).all()


def test_a_film_of_refusals_is_refused(zoo, store):
    with pytest.raises(RecipeError, match=r"No frame of the film can be made\. .*98"):
        make(store, recipe(zoo), place=SCALING, values=[98, 99])
    with pytest.raises(RecipeError, match="densty"):
        make(store, recipe(zoo), place="merge.params.densty", values=[0.1, 0.2])
    once = {"recipe": recipe(zoo).model_dump(mode="json"), "place": SCALING, "values": [0.1, 0.1]}
    with pytest.raises(RecipeError, match="at least two values"):
        plan_request("film", once, store)


@pytest.mark.parametrize(
    "place",
    ["probe.split_seed", "probe.samples_per_task", "probe.protocol", "probe", "zoo", "forward", "experts.0.name"],
)
def test_a_film_over_what_stands_still_is_refused(zoo, store, place):
    """Rows, labels and experts are the run's own; another frame's features would be scored with those of others."""
    asked = {"recipe": recipe(zoo).model_dump(mode="json"), "place": place, "values": [8, 9]}
    with pytest.raises(RecipeError, match="same experts in every frame; vary this in a sweep"):
        plan_request("film", asked, store)


def test_a_task_whose_answers_are_numbers_has_no_accuracy(tmp_path, store):
    folder = make_text_zoo(tmp_path / "zoo", experts=("alpha", "beta"))
    manifest = yaml.safe_load((folder / "zoo.yaml").read_text())
    manifest["tasks"][0] |= {"grades": [0, 1, 2], "measure": "spearman"}
    (folder / "zoo.yaml").write_text(yaml.safe_dump(manifest))
    at = recipe(folder, calibrators=[{"method": "surgery", "params": {"rank": 2, "steps": 3, "batch_size": 4}}])
    document, _ = make(store, at, place=SCALING, values=[0.1, 0.3], points=4)
    report = run_recipe(
        at.model_copy(update={"merge": at.merge.model_copy(update={"params": {"scaling": 0.3}})}), store
    )
    for state, tasks in document["accuracy"].items():
        assert set(tasks["alpha"]) == {None}, state
        assert tasks["beta"][-1] == pytest.approx(report.accuracy[state]["beta"])
    assert None not in document["l1"]["merged"]["alpha"]
    assert printed(document, "texts").splitlines()[2].split()[1] == rounded(report.average["merged"].within)


def test_frames_share_the_steps_of_runs(film, zoo, store, runs):
    at = recipe(zoo, merge={"method": "task_arithmetic", "params": {"scaling": 0.5}})
    shared = {step.key for step in plan_run(at, store).steps}
    asked = FILM.ask(recipe(zoo), images="all", place=SCALING, values=[0.5, 0.7]).model_dump(mode="json")
    plan = plan_request("film", asked, store)
    assert len(shared & {step.key for step in plan.steps}) >= 4 + 1 + 1  # features, merge, calibrator
    assert not shared & {step.key for step in needed_steps(plan, store)}


def test_fewer_images_are_looked_at_where_that_is_asked_for(zoo, store):
    document, arrays = make(store, recipe(zoo), images=9, place=SCALING, values=[0.1, 0.3])
    assert {task["evaluated"] for task in document["tasks"]} == {9}
    assert {task["adapted"] for task in document["tasks"] if task["domain"] == "in"} == {9}
    assert len(arrays["index"]) == 4 * 9


PROB_SURGERY = {"method": "prob_surgery", "params": {"hidden": 4, "steps": 20, "batch_size": 8}}
SHARED = {"method": "surgery", "params": {"rank": 4, "steps": 10, "batch_size": 8, "sharing": "all"}}
BY_STEPS = "engine.pipeline.preview.frames.MOST"


@pytest.mark.parametrize(
    "changes",
    [
        {"calibrators": [SURGERY, PROB_SURGERY]},
        {"calibrators": [SHARED]},
        {"merge": {"method": "emr"}},
        {"probe": {"protocol": "paper"}, "forward": "linearised"},
    ],
)
def test_frames_made_in_memory_are_those_of_the_runs_steps(zoo, store, monkeypatch, changes):
    place = SCALING if "merge" not in changes else "calibrators.surgery.params.learning_rate"
    at = recipe(zoo, **changes)
    values = [0.1, 0.4, 0.5] if place == SCALING else [0.001, 0.01]
    document, arrays = make(store, at, images=9, place=place, values=values)
    monkeypatch.setattr(BY_STEPS, 0)
    expected, others = make(store, at, images=9, place=place, values=values)
    assert document["accuracy"] == expected["accuracy"]
    assert document["states"] == expected["states"]
    for state, tasks in expected["l1"].items():
        for task, found in tasks.items():
            assert [None if value is None else pytest.approx(value, rel=1e-4) for value in found] == document["l1"][
                state
            ][task]
    for name in others:
        if name.endswith("predictions"):
            np.testing.assert_array_equal(arrays[name], others[name])


def test_a_frame_that_diverges_leaves_those_that_trained_beside_it_alone(zoo, store, monkeypatch):
    fits, whole = [], OutputCalibrator.fit

    def fit(self, merged, *args, **settings):
        report = whole(self, merged, *args, **settings)
        fits.append(len(merged))
        return replace(report, diverged_at=3) if len(merged) > 3 else report

    monkeypatch.setattr(OutputCalibrator, "fit", fit)
    document, _ = make(store, recipe(zoo), images=10, place=SCALING, values=[0.15, 0.35])
    assert fits == [6, 3, 3]
    assert document["failed"] == {}
    assert None not in document["accuracy"]["surgery"]["alpha"]


def test_a_frame_whose_features_are_no_numbers_is_marked(zoo, store, monkeypatch):
    whole = preview_models.encode

    def encode(*args):
        found = whole(*args)
        return found * np.nan if len(made) == 1 else found

    made = []
    monkeypatch.setattr(
        preview_models.Models,
        "encoder",
        lambda self, params, own=preview_models.Models.encoder: made.append(1) or own(self, params),
    )
    monkeypatch.setattr(preview_models, "encode", encode)
    document, _ = make(store, recipe(zoo), images=11, place=SCALING, values=[0.15, 0.25, 0.35])
    assert list(document["failed"]) == ["0"]
    assert "not finite" in document["failed"]["0"]
    assert None not in document["accuracy"]["surgery"]["alpha"][1:]


def test_experts_join_one_after_another(zoo, store):
    order = ["gamma", "alpha", "beta"]
    document, arrays = make(store, recipe(zoo), place="experts", values=[0, 1, 2, 3], order=order, points=5)
    assert document["title"] == "Experts merged"
    assert document["accuracy"]["merged"]["beta"][0] == document["accuracy"]["pretrained"]["beta"][0]
    np.testing.assert_array_equal(arrays["merged/points"][0], arrays["pretrained/points"][0])
    two = run_recipe(recipe(zoo, experts=["gamma", "alpha"]), store)
    for task in ("gamma", "alpha", "outside"):
        assert document["accuracy"]["merged"][task][2] == pytest.approx(two.accuracy["merged"][task])
    whole = run_recipe(recipe(zoo), store)
    assert document["accuracy"]["merged"]["beta"][3] == pytest.approx(whole.accuracy["merged"]["beta"])
    with pytest.raises(RecipeError, match="name each of alpha, beta, gamma once"):
        make(store, recipe(zoo), place="experts", values=[1, 2], order=["alpha", "beta"])


def test_a_film_over_training_steps_follows_one_training(zoo, store):
    """Stopping earlier is the same training, seen earlier: the curve of the longest passes through all frames."""
    document, _ = make(store, recipe(zoo), place="calibrators.surgery.params.steps", values=[5, 10, 20])
    part = run_recipe(recipe(zoo), store).calibrators["surgery"]
    curve = {row[0]: dict(zip(part.curve_columns, row, strict=True)) for row in part.curve}
    for frame, steps in enumerate((5, 10, 20)):
        values = [document["l1"]["surgery"][task][frame] for task in ("alpha", "beta", "gamma")]
        assert np.mean(values) == pytest.approx(curve[steps]["l1_evaluate"], abs=1e-6)


def test_a_film_of_what_is_drawn_at_random_says_so(zoo, store, film):
    assert film[0]["chance"] == ""
    drop = {"transforms": [{"method": "dare"}], "calibrators": []}
    document, _ = make(store, recipe(zoo, **drop), place=SCALING, values=[0.2, 0.4])
    assert "DARE" in document["chance"]
    assert "seed 0 in every frame" in document["chance"]


def test_a_film_over_seeds_shows_chance_alone(zoo, store):
    document, arrays = make(store, recipe(zoo), place="seed", values=[0, 1, 2], images=12, points=12, map="tsne")
    assert document["title"] == "Training seed"
    assert "what moves is chance" in document["chance"]
    assert document["map"]["method"] == "tsne"
    np.testing.assert_array_equal(arrays["merged/predictions"][0], arrays["merged/predictions"][2])
    shift = arrays["surgery/shift"].astype(float)
    assert (shift[0] != shift[1]).any(), "a calibrator's start and batches are drawn"
    other = run_recipe(recipe(zoo, seeds=[2], probe={"samples_per_task": 12}), store)
    assert document["l1"]["surgery"]["alpha"][2] == pytest.approx(other.bias["surgery"].l1["alpha"], rel=1e-4)
    with pytest.raises(RecipeError, match=r"'1\.5' is no training seed"):
        make(store, recipe(zoo), place="seed", values=[1.5, -1])


def test_the_command_makes_a_film(zoo, store, tmp_path, monkeypatch):
    monkeypatch.setenv("MERGELENS_STORE", str(store.root))
    (tmp_path / "recipe.yaml").write_text(recipe(zoo, calibrators=[]).to_yaml())
    command = ["film", str(tmp_path / "recipe.yaml"), "--over", f"{SCALING}=0:1:0.5", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*command, "--images", "6", "--quiet"], catch_exceptions=False)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].split() == ["Scaling", "coefficient", "λ", "merged"]
    assert [line.split()[0] for line in lines[1:4]] == ["0", "0.5", "1"]
    assert (tmp_path / "out" / "film.safetensors").is_file()
