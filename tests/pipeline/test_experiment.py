"""Experiments on a small made zoo: measures, failures, what is shared with runs."""

import pytest
import yaml

from engine.commands.experiment import printed
from engine.errors import CalibrationError, RecipeError
from engine.experiments import Point, read_experiment
from engine.pipeline.executor import needed_steps
from engine.pipeline.local import run_experiment, run_recipe
from engine.pipeline.planners import plan_request
from engine.pipeline.run.plan import plan_run
from engine.pipeline.studies.measure import choose
from engine.pipeline.studies.sides import RunAt
from engine.report import read_report
from engine.store import Store
from tests.tiny_text_zoo import make_text_zoo
from tests.tiny_zoo import make_zoo

SURGERY = {"method": "surgery", "params": {"rank": 4, "steps": 20, "batch_size": 8}}
PROB = {"method": "prob_surgery", "params": {"hidden": 4, "steps": 20, "batch_size": 8}}
SPEC = {
    "format": 1,
    "name": "tiny",
    "title": "Tiny",
    "paper": "A paper",
    "part": "Table 1",
    "claim": "Surgery narrows the bias.",
    "seeds": 2,
    "base": {"merge": {"method": "task_arithmetic", "params": {"scaling": 0.5}}, "calibrators": [SURGERY, PROB]},
    "points": [
        {"name": "merged", "title": "Merged"},
        {"name": "surgery", "title": "Surgery", "state": "surgery"},
        {"name": "prob", "title": "ProbSurgery", "state": "prob_surgery"},
        {"name": "average", "title": "Average", "set": {"merge": {"method": "weight_average"}, "calibrators": []}},
    ],
    "measures": [
        {"name": "l1", "title": "L1", "path": "bias.{state}.l1", "unit": "feature units"},
        {"name": "accuracy", "title": "Accuracy", "path": "average.{state}.in"},
        {"name": "normalised", "title": "Normalised", "analysis": "normalised"},
        {"name": "fitted", "title": "Fitted", "analysis": "curve_end", "params": {"column": "l1_adapt"}},
        {"name": "sigma", "title": "σ", "analysis": "sigma"},
        {"name": "away", "title": "Away", "analysis": "distance", "params": {"to": "pretrained", "domain": "out"}},
        {
            "name": "away_l2",
            "title": "Away",
            "analysis": "distance",
            "params": {"to": "pretrained", "domain": "out", "norm": "l2"},
        },
        {"name": "pure", "title": "Neighbours", "analysis": "clusters", "params": {"quantity": "neighbours"}},
        {
            "name": "clear",
            "title": "Silhouette",
            "analysis": "clusters",
            "params": {"quantity": "silhouette", "domain": "out"},
        },
        {"name": "kept", "title": "Kept", "analysis": "kept_layers", "params": {"components": ["Attention", "MLP"]}},
        {"name": "wrong", "title": "Wrong task", "analysis": "wrong_task"},
        {"name": "auroc", "title": "AUROC", "analysis": "outlier_auroc"},
        {"name": "seam", "title": "Stitched", "view": "stitching", "path": "tasks.*.states.{state}.begins[1:-1]"},
        {"name": "whole", "title": "Whole", "view": "stitching", "path": "tasks.*.states.{state}.ends[0]"},
        {"name": "linear", "title": "Linear", "view": "stitching", "path": "tasks.*.linearity.{state}.change[:-1]"},
        {"name": "as_is", "title": "As is", "view": "shift", "path": "tasks.*.shifts.none.{state}.accuracy"},
        {"name": "shifted", "title": "Shifted", "view": "shift", "path": "tasks.*.mean.{state}.accuracy"},
    ],
    "checks": [
        {"text": "It does.", "measure": "l1", "left": "surgery", "relation": "below", "right": "merged", "margin": 0}
    ],
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return make_zoo(tmp_path_factory.mktemp("zoo") / "tiny", experts=("alpha", "beta"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("spec") / "tiny.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    return str(path)


@pytest.fixture(scope="module")
def result(zoo, store, file):
    return run_experiment(file, store, zoo=str(zoo))


def test_measures_are_those_of_the_runs(zoo, store, file, result):
    spec = read_experiment(file)
    run = spec.recipes(str(zoo))[3]
    assert run.seed == 1
    recipe = run.recipe
    plan = plan_run(recipe, store)
    assert needed_steps(plan, store) == []
    report = run_recipe(recipe, store)
    mean = sum(report.bias["surgery"].l1.values()) / len(report.bias["surgery"].l1)
    assert result.cell("surgery", "l1").values[1] == pytest.approx(mean)
    assert result.cell("surgery", "accuracy").values[1] == pytest.approx(report.average["surgery"].within)
    shares = [report.accuracy["surgery"][task] / report.accuracy["expert"][task] for task in report.tasks_of("in")]
    assert result.cell("surgery", "normalised").values[1] == pytest.approx(100 * sum(shares) / len(shares))
    columns = report.calibrators["surgery"].curve_columns
    last = dict(zip(columns, report.calibrators["surgery"].curve[-1], strict=True))
    assert result.cell("surgery", "fitted").values[1] == pytest.approx(last["l1_adapt"])


def test_what_a_point_does_not_have_is_left_out(result):
    assert {name for name in ("sigma", "fitted", "wrong") if result.cell("merged", name)} == set()
    assert result.cell("prob", "sigma").mean > 0
    assert result.cell("merged", "away").mean > 0
    assert result.cell("surgery", "away") is None  # no calibrator out of domain
    for point in ("merged", "surgery", "prob"):
        assert 0 <= result.cell(point, "auroc").mean <= 100
    assert len(result.cell("average", "l1").values) == 1  # nothing depends on the seed
    assert [point.failed for point in result.points] == [""] * 4


def test_clusters_and_layers(zoo, store, file, result):
    assert result.cell("merged", "away_l2").mean > result.cell("merged", "away").mean  # length against mean of 16
    for point in ("merged", "surgery", "prob"):
        assert 0 < result.cell(point, "pure").mean <= 100
    assert -1 <= result.cell("merged", "clear").mean <= 1
    assert result.cell("surgery", "clear") is None  # no calibrator out of domain
    report = run_recipe(read_experiment(file).recipes(str(zoo))[0].recipe, store)
    named = [name for name in report.salience.layers if "attn" in name or "mlp" in name]
    kept = [report.salience.shared_mask[report.salience.layers.index(name)] for name in named]
    assert result.cell("merged", "kept").mean == pytest.approx(100 * sum(kept) / len(kept))
    assert result.cell("surgery", "kept") is None


def test_views_on_the_runs_are_computed_along(zoo, store, file, result):
    for point in ("merged", "surgery", "prob"):
        accuracy = result.cell(point, "accuracy").values
        for name in ("whole", "as_is"):
            assert result.cell(point, name).values == pytest.approx(accuracy)
        assert result.cell(point, "shifted").mean != result.cell(point, "as_is").mean
    assert result.cell("surgery", "seam").values == result.cell("merged", "seam").values  # it acts on the output
    assert -1 <= result.cell("merged", "linear").mean <= 1
    assert result.cell("average", "linear").mean > 0.9  # small steps are nearly linear
    assert result.cell("surgery", "linear") is None
    recipe = read_experiment(file).recipes(str(zoo))[0].recipe
    for view in ("stitching", "shift"):
        plan = plan_request(view, {"recipe": recipe.model_dump(mode="json")}, store)
        assert needed_steps(plan, store) == []  # the page shows them at once


def test_the_wrong_tasks_calibrator_differs_from_the_own(result):
    assert result.cell("surgery", "wrong").values != result.cell("surgery", "accuracy").values


def test_runs_get_rows_under_the_experiment(store, result):
    row = next(row for row in store.runs.list(kinds=["experiment"]) if row.state == "finished")
    children = store.runs.list(parent=row.id)
    assert len(children) == 3
    assert all(read_report(store.find(child.result)).status == "finished" for child in children)


def test_a_run_that_fails_is_said_and_loses_no_other(zoo, tmp_path, file, monkeypatch):
    from engine.pipeline.run import calibrating

    def fail(*_):
        raise CalibrationError("It went wrong on purpose.")

    monkeypatch.setattr(calibrating, "_read", fail)
    found = run_experiment(file, Store(tmp_path / "store"), zoo=str(zoo))
    assert "on purpose" in found.points[1].failed
    assert found.cell("average", "accuracy") is not None
    assert found.verdict == "not judged"


def test_a_view_that_fails_loses_the_point_that_asks_it_and_no_other(zoo, store, tmp_path):
    path = tmp_path / "two.yaml"
    asked = {"connection": {"points": 3, "images": 8, "shuffle": True}}
    points = [{"name": "plain", "title": "Plain"}, {"name": "asked", "title": "Asked", "ask": asked}]
    measures = [{"name": "moved", "title": "Moved", "view": "connection", "path": "units.moved.*"}]
    base = {"experts": ["alpha"], "merge": {"method": "weight_average"}}
    path.write_text(yaml.safe_dump({**SPEC, "base": base, "points": points, "measures": measures, "checks": []}))
    plan = plan_request("experiment", {"name": str(path), "zoo": str(zoo)}, store)
    views = [step.key for step in plan.steps if step.name == "connection"]
    assert len(views) == 2
    left = plan.without(views[1], "It went wrong.")
    params = left.steps[-1].params
    assert (set(params.runs), params.failed) == ({"plain"}, {"asked": "It went wrong."})
    assert left.without(views[0], "This one too.") is None


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        ({"analysis": "curve_end"}, "'column' is missing"),
        ({"analysis": "curve_and"}, "Did you mean 'curve_end'"),
        ({"analysis": "clusters", "params": {"quantity": "shape"}}, "'quantity'"),
        ({"path": "averge.{state}.in"}, "Did you mean 'average'"),
        ({"path": "average.{state}.inn"}, "Did you mean 'in'"),
    ],
)
def test_a_measure_that_no_run_could_have_is_refused_before_anything_runs(zoo, store, tmp_path, measure, said):
    path = tmp_path / "bad.yaml"
    path.write_text(
        yaml.safe_dump({**SPEC, "measures": [{"name": "number", "title": "A number", **measure}], "checks": []})
    )
    with pytest.raises(RecipeError, match=rf"tiny, A number: .*{said}"):
        plan_request("experiment", {"name": str(path), "zoo": str(zoo)}, store)


def test_the_plan_refuses_what_the_zoo_cannot_do(zoo, store, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump({**SPEC, "base": {"experts": ["gamma"], "merge": {"method": "ties"}}}))
    with pytest.raises(RecipeError, match="gamma"):
        plan_request("experiment", {"name": str(path), "zoo": str(zoo)}, store)


def test_an_experiment_runs_on_the_zoo_that_it_is_meant_for_or_on_another(tmp_path):
    folder, store = make_text_zoo(tmp_path / "words"), Store(tmp_path / "store")
    spec = {**SPEC, "zoo": str(folder), "seeds": 1, "quick": {"steps": 5}}
    spec["measures"] = [measure for measure in SPEC["measures"] if measure["name"] in ("l1", "accuracy", "sigma")]
    tuned = {"name": "tuned", "title": "Tuned", "set": {"transforms": [{"method": "pwptv"}], "calibrators": []}}
    spec["points"] = [*SPEC["points"], {**tuned, "tune": {"transforms.0.params.eta": [0.1, 0.7]}}]
    path = tmp_path / "texts.yaml"
    path.write_text(yaml.safe_dump(spec))
    found = run_experiment(str(path), store)
    assert (found.zoo, found.kind) == ("tiny-text", "text")
    assert [point.failed for point in found.points] == [""] * 5
    assert found.cell("surgery", "l1").mean < found.cell("merged", "l1").mean
    assert found.points[-1].tuned[0].values == (0.1, 0.7)
    said = printed(read_experiment(path), found)
    assert "evaluation texts a task" in said
    assert "on validation texts" in said
    other = run_experiment(str(path), store, zoo=str(make_zoo(tmp_path / "tiny", experts=("alpha", "beta"))))
    assert (other.zoo, other.kind) == ("tiny", "image")
    assert other.form == found.form


def test_a_coefficient_is_chosen_by_what_tasks_out_of_domain_keep(zoo, store, tmp_path):
    def chosen(keeps, *shares):
        point = Point(name="kept", title="Kept", tune={"merge.params.scaling": (0.1, 0.2, 0.3)}, keeps=keeps)
        runs = [RunAt(0, (), tmp_path, None, {}, 90.0, (value,), kept) for value, kept in shares]
        return choose(point, runs)[1][0].chosen

    assert chosen(0.95, (0.1, 0.99), (0.2, 0.96), (0.3, 0.9)) == 0.2
    assert chosen(0.95, (0.1, 0.99), (0.2, 0.9), (0.3, 0.96)) == 0.3, "the last, as is written"
    with pytest.raises(RecipeError, match=r"leaves 95 % .* the most is 90.0 %"):
        chosen(0.95, (0.1, 0.9), (0.2, 0.8), (0.3, None))
    with pytest.raises(RecipeError, match="has no accuracy above 0 to compare with"):
        chosen(0.95, (0.1, None), (0.2, None))
    assert chosen(0.95, (0.1, 1.0), (0.2, 0.98), (0.2, 0.9), (0.3, 0.9)) == 0.1, "a mean over seeds"
    tune = {"merge.params.scaling": [0.0]}
    points = [
        {"name": "nothing", "title": "Nothing", "tune": tune, "keeps": 1.0},
        {"name": "most", "title": "Most", "set": {"merge": {"method": "weight_average"}}},
    ]
    measures = [{"name": "out", "title": "Out", "path": "average.{state}.out"}]
    checks = [{"text": "It is.", "measure": "out", "left": "nothing", "relation": "above", "right": "most"}]
    base = {"experts": [{"name": "alpha", "weight": -1.0}], "merge": {"method": "task_arithmetic"}}
    spec = {**SPEC, "base": base, "points": points, "measures": measures, "checks": checks, "seeds": 1}
    file = tmp_path / "kept.yaml"
    file.write_text(yaml.safe_dump(spec))
    found = run_experiment(str(file), store, zoo=str(zoo))
    assert found.points[0].failed == ""
    said = printed(read_experiment(file), found)
    assert (
        "chosen of 0.0, on validation images, by the last that leaves 100 % of the pretrained model's accuracy" in said
    )


def test_a_point_that_peeks_takes_the_best_of_every_run_and_says_that_scored_images_chose(zoo, store, tmp_path):
    steps = {"calibrators.0.params.steps": [15, 30, 60]}
    call = {"name": "surgery", "method": "surgery", "params": {"rank": 2, "steps": 60, "learning_rate": 0.05}}
    shared = {"state": "surgery", "set": {"calibrators": [call]}}
    points = [
        {"name": "last", "title": "Last", **shared},
        {"name": "best", "title": "Best", "tune": steps, "peeks": True, **shared},
    ]
    measures = [{"name": "accuracy", "title": "Accuracy", "path": "average.{state}.in"}]
    checks = [{"text": "It is.", "measure": "accuracy", "left": "best", "relation": "above", "right": "last"}]
    spec = {**SPEC, "points": points, "measures": measures, "checks": checks, "seeds": 3}
    file = tmp_path / "peeks.yaml"
    file.write_text(yaml.safe_dump(spec))
    found = run_experiment(str(file), store, zoo=str(zoo))
    best, last = (found.cell(name, "accuracy").values for name in ("best", "last"))
    assert all(b >= a for b, a in zip(best, last, strict=True))
    report = run_recipe(read_experiment(file).recipes(str(zoo))[0].recipe, store).calibrators["surgery"]
    column = report.curve_columns.index("accuracy_evaluate")
    looks = {row[0]: row[column] for row in report.curve}
    choice = found.points[1].tuned[0]
    assert len(choice.chosen) == 3
    assert best[0] == pytest.approx(looks[choice.chosen[0]], abs=1e-4), "the first steps of the whole training"
    assert looks[choice.chosen[0]] == max(looks[step] for step in (15, 30, 60))
    assert found.findings[0].basis == "images", "not seeds alone"
    said = printed(read_experiment(file), found)
    assert "on evaluation images, by accuracy in domain of each run by itself" in said
    for wrong in ({"keeps": 0.9}, {"tune": {}}):
        with pytest.raises(ValueError, match="'best' peeks, which is for one that tunes by accuracy in domain"):
            Point.model_validate({**points[1], **wrong})


def test_of_values_without_chance_the_one_run_stands_for_all_seeds():
    point = Point(name="best", title="Best", tune={"merge.method": ["plain", "learned"]}, peeks=True)
    learned = [RunAt(seed, (), None, None, choice=80.0 + seed, values=("learned",)) for seed in range(3)]
    runs, tuned = choose(point, [RunAt(0, (), None, None, choice=81.5, values=("plain",)), *learned])
    assert [(run.seed, run.choice) for run in runs] == [(0, 81.5), (1, 81.5), (2, 82.0)]
    assert tuned[0].chosen == ("plain", "plain", "learned")


def test_a_point_sets_what_a_view_is_asked_and_groups_of_experts_are_units(zoo, store, tmp_path):
    file = tmp_path / "asked.yaml"
    asked = {"connection": {"points": 3, "images": 8, "shuffle": False}}
    points = [
        {"name": "plain", "title": "Plain", "each": 1, "ask": asked},
        {"name": "mixed", "title": "Mixed", "each": 1, "ask": {"connection": {**asked["connection"], "shuffle": True}}},
    ]
    measures = [
        {"name": "moved", "title": "Moved", "view": "connection", "path": "units.moved.*"},
        {"name": "found", "title": "Found", "view": "connection", "path": "units.found.*"},
    ]
    checks = [{"text": "Shuffled.", "measure": "moved", "left": "mixed", "relation": "above", "right": "plain"}]
    base = {"experts": ["{each}"], "merge": {"method": "weight_average"}}
    spec = {**SPEC, "base": base, "points": points, "measures": measures, "checks": checks}
    file.write_text(yaml.safe_dump(spec))
    found = run_experiment(str(file), store, zoo=str(zoo))
    assert found.cell("plain", "moved").mean == 0
    assert found.cell("mixed", "moved").mean > 0.5
    assert found.findings[0].outcome == "seen"
    assert found.findings[0].basis == "groups"
    asked["connection"]["place"] = 3
    file.write_text(yaml.safe_dump(spec))
    refused = run_experiment(str(file), store, zoo=str(zoo))
    assert "place" in refused.points[0].failed
