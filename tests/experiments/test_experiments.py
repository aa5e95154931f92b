"""Experiments as documents, their verdicts, and telling outliers."""

import re

import numpy as np
import pytest
import yaml

from engine.analysis.outliers import prototype_distance, prototypes
from engine.errors import DataError, EngineError, RecipeError
from engine.experiments import Experiment, Finding, experiment_names, judge_again, read_experiment, read_result
from engine.experiments.claims import claims_table, clause, clause_lists, fits, shipped_path
from engine.experiments.elsewhere import elsewhere, elsewhere_table
from engine.experiments.places import number_at
from engine.experiments.sizes import names_group, scaled, shape_of, with_group
from engine.experiments.spec import FOLDER
from engine.lessons import networks_table
from engine.manifest import read_manifest
from engine.pipeline.run.numbers import ANALYSES, kept_coefficient
from engine.pipeline.studies.foreseen import estimate_experiments
from engine.pipeline.views import all_views, view_of
from engine.pipeline.zoos.derived import derived_names, read_derived
from engine.recipe import REFERENCE_STATES, MethodCall
from engine.store import Store
from tests.made_run import made_report
from tests.tiny_text_zoo import make_text_zoo
from tests.tiny_zoo import make_zoo

MINIMAL = """
format: 1
name: small
title: Small
paper: A paper
part: Table 1
claim: More is better.
base: {merge: {method: task_arithmetic}}
points:
  - {name: low, title: Low, set: {merge: {method: task_arithmetic, params: {scaling: 0.1}}}}
  - {name: high, title: High}
measures: [{name: accuracy, title: Accuracy, path: "average.{state}.in"}]
checks: [{text: High beats low., measure: accuracy, left: high, relation: above, right: low}]
"""


def estimated(tmp_path, **changes):
    spec = Experiment.model_validate({**yaml.safe_load(MINIMAL), **changes})
    return estimate_experiments([spec], "mini8", Store(tmp_path / "store"), quick=False)


def test_an_estimate_counts_views_and_validation_and_what_is_equal_once(tmp_path):
    plain = estimated(tmp_path)
    assert plain.runs == 2
    same = {"points": [{"name": name, "title": name} for name in ("low", "high")]}
    assert estimated(tmp_path, **same).runs == 1
    view = {"name": "moved", "title": "Moved", "view": "depth", "path": "average.distance[0]"}
    viewed = estimated(tmp_path, measures=[*yaml.safe_load(MINIMAL)["measures"], view])
    assert viewed.seconds > plain.seconds
    first, second = yaml.safe_load(MINIMAL)["points"]
    tuned = estimated(tmp_path, points=[first, {**second, "tune": {"merge.params.scaling": [1.0]}}])
    fixed = {"merge": {"method": "task_arithmetic", "params": {"scaling": 1.0}}}
    untuned = estimated(tmp_path, points=[first, {**second, "set": fixed}])
    assert tuned.runs == untuned.runs == 2
    assert tuned.seconds > untuned.seconds
    strange = estimated(
        tmp_path, measures=[view], points=[{**first, "ask": {"depth": {"colour": 1}}}, second], checks=[]
    )
    assert strange.runs == 1, "a point that asks what the view does not know is left to the plan, which says why"


@pytest.mark.parametrize("name", experiment_names())
def test_every_experiment_of_the_app_is_valid_on_its_bundled_zoo(name):
    spec = read_experiment(name)
    assert spec.name == name
    zoo = read_derived(spec.zoo).zoo if spec.zoo in derived_names() else spec.zoo
    whole, quick = spec.recipes(zoo), spec.recipes(zoo, quick=True)
    assert {run.point.name for run in whole} == {point.name for point in spec.points}
    assert 0 < len(quick) <= len(whole)
    tasks = {task.name for task in read_manifest(FOLDER.parent / "zoos" / zoo).tasks}
    for run in whole:
        states = {"pretrained", "merged", "expert", *REFERENCE_STATES, *(call.name for call in run.recipe.calibrators)}
        assert run.point.state in states
    for measure in spec.measures:
        parts = measure.path.split(".")
        assert parts[0] != "accuracy" or parts[-1] in tasks
        assert not measure.analysis or measure.analysis in ANALYSES
        assert not measure.view or measure.view in all_views()


def test_numbers_of_documents_are_found_by_their_place():
    document = {"tasks": {"a": {"x": [1.0, 2.0, 4.0], "y": 3}, "b": {"x": [3.0, 6.0, 8.0], "y": None}}}
    table = {"map": [[1.0, 2.0], [3.0, 5.0]]}
    assert number_at(table, "map[-1][0]") == 3.0
    assert number_at(table, "map[1:][1:]") is None  # a range of rows, of which there is one
    assert number_at(table, "map[-1]") == 4.0
    for missing in ("map[2][0]", "map[0][0][0]"):
        assert number_at(table, missing) is None
    assert number_at(document, "tasks.a.y") == 3
    assert number_at(document, "tasks.*.x[1:-1]") == 4.0
    assert number_at(document, "tasks.*.x[-1]") == 6.0
    assert number_at(document, "tasks.*.x[:2]") == pytest.approx((1.5 + 4.5) / 2)
    assert number_at(document, "tasks.a.x") == pytest.approx(7 / 3)
    for missing in ("tasks.*.y", "tasks.c.y", "tasks.a.x[7]", "tasks.a.x[3:]", "tasks.a.y.z", "tasks.a.z[0]", "none.*"):
        assert number_at(document, missing) is None
    for wrong in ("tasks.a.x[]", "tasks.a.x[one]", "tasks.a.x[1", "tasks.a.x[1][]", "tasks.a.x[1]y"):
        with pytest.raises(RecipeError, match="a number or a range"):
            number_at(document, wrong)


def test_a_view_that_does_not_exist_is_refused_by_name():
    with pytest.raises(EngineError, match=r"There is no view 'dpeth'\. Did you mean 'depth'"):
        view_of("dpeth")


def test_a_point_asks_something_of_a_view(tmp_path):
    file = tmp_path / "small.yaml"
    asking = MINIMAL.replace("title: Low,", "title: Low, ask: {VIEW: {points: 3}},")
    file.write_text(asking.replace("VIEW", "connection"))
    with pytest.raises(RecipeError, match="asks something of the view 'connection', which no measure reads"):
        read_experiment(file)
    file.write_text(
        asking.replace("VIEW", "depth").replace('title: Accuracy, path: "', 'title: A, view: depth, path: "')
    )
    assert read_experiment(file).points[0].ask == {"depth": {"points": 3}}


def test_a_point_for_groups_of_experts_names_their_place(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(MINIMAL.replace("title: Low,", "title: Low, each: 2,"))
    with pytest.raises(RecipeError, match=r"names no '\{each\}'"):
        read_experiment(file).recipes("mini8")


def test_groups_are_of_one_expert_a_task_and_name_those_of_other_recipes(tmp_path):
    zoo = make_zoo(tmp_path / "zoo", experts=("alpha", "beta"))
    manifest = yaml.safe_load((zoo / "zoo.yaml").read_text())
    by_saft = [{**entry, "name": f"{entry['name']}-saft", "method": "saft"} for entry in manifest["experts"]]
    manifest["experts"] = [*by_saft, *manifest["experts"]]
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(manifest))
    assert shape_of(str(zoo)).experts == ("alpha", "beta")
    asked = ["{each}-saft", {"name": "{each}-lora", "weight": -1.0}, "gamma"]
    assert names_group(asked)
    assert not names_group(["alpha"])
    found = with_group(asked, ["alpha", "beta"])
    assert found[:2] == ["alpha-saft", "beta-saft"]
    assert found[2:4] == [{"name": f"{name}-lora", "weight": -1.0} for name in ("alpha", "beta")]
    assert found[4] == "gamma"


def test_what_points_got_later_changes_no_digest(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(MINIMAL)
    spec = read_experiment(file)
    assert "ask" not in spec.points[0].model_dump()
    asked = spec.points[0].model_copy(update={"ask": {"depth": {}}})
    assert spec.model_copy(update={"points": (asked, *spec.points[1:])}).digest() != spec.digest()


def test_a_seed_counts_only_where_something_is_trained_or_drawn(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(MINIMAL)
    spec = read_experiment(file)
    assert [(run.point.name, run.seed) for run in spec.recipes("mini8")] == [("low", 0), ("high", 0)]
    trained = spec.model_copy(update={"base": {**spec.base, "calibrators": [{"method": "surgery"}]}})
    assert [run.seed for run in trained.recipes("mini8") if run.point.name == "low"] == [0, 1, 2, 3, 4]


def test_the_quick_form_trains_less_on_fewer_images_and_keeps_the_protocol(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(MINIMAL + "quick: {probe: {samples_per_task: 50}, steps: 20}\n")
    spec = read_experiment(file)
    calibrators = [{"method": "surgery", "params": {"steps": 500}}, {"method": "prob_surgery", "params": {"steps": 5}}]
    spec = spec.model_copy(update={"base": {**spec.base, "calibrators": calibrators, "probe": {"protocol": "paper"}}})
    recipe = spec.recipes("mini8", quick=True)[0].recipe
    assert [call.params["steps"] for call in recipe.calibrators] == [20, 5]
    assert (recipe.probe.protocol, recipe.probe.samples_per_task) == ("paper", 50)


@pytest.mark.parametrize(
    ("merge", "params"),
    [
        ({"method": "adamerging"}, {"steps": 20}),
        (
            {"method": "adamerging", "params": {"steps": 5, "granularity": "layer"}},
            {"steps": 5, "granularity": "layer"},
        ),
        ({"method": "ties", "params": {"density": 0.2}}, {"density": 0.2}),
    ],
)
def test_the_quick_form_learns_coefficients_in_fewer_steps(tmp_path, merge, params):
    file = tmp_path / "small.yaml"
    file.write_text(MINIMAL + "quick: {steps: 20}\n")
    spec = read_experiment(file)
    points = (spec.points[0].model_copy(update={"set": {"merge": merge}}),)
    found = spec.model_copy(update={"points": points}).recipes("mini8", quick=True)[0].recipe.merge.params
    assert {name: found[name] for name in params} == params


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("left: high", "left: hihg"), "Did you mean 'high'"),
        (("measure: accuracy, left", "measure: acuracy, left"), "Did you mean 'accuracy'"),
        (("name: low", "name: high"), "same name"),
        (('path: "average.{state}.in"', "unit: s"), "either a path or an analysis"),
        (("claim:", "clam:"), "claim"),
    ],
)
def test_a_wrong_experiment_is_refused_with_the_reason(tmp_path, change, message):
    file = tmp_path / "small.yaml"
    file.write_text(MINIMAL.replace(*change, 1))
    with pytest.raises(RecipeError, match=message):
        read_experiment(file)


def test_the_quick_form_takes_what_the_long_one_takes(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(MINIMAL + "quick: {probe: {samples_per_task: 50}, steps: 700}\n")
    spec = read_experiment(file)
    given = {"merge": {"method": "ties"}, "calibrators": [{"method": "surgery"}, {"method": "surgery_v2"}]}
    spec = spec.model_copy(update={"base": {**spec.base, **given}})
    points = (spec.points[0].model_copy(update={"set": {}}),)
    short, long = (
        spec.model_copy(update={"points": points}).recipes("mini8", quick=quick)[0].recipe for quick in (1, 0)
    )
    assert short.merge == long.merge
    for ours, theirs in zip(short.calibrators, long.calibrators, strict=True):
        assert ours.params["steps"] == min(theirs.params["steps"], 700), "never more than the long form"
    wrong = spec.model_copy(update={"base": {**spec.base, "merge": "ties"}})
    for quick in (True, False):
        with pytest.raises(RecipeError, match=r"small, .*'merge'"):
            wrong.recipes("mini8", quick=quick)


def test_sizes_are_scaled_where_values_are_tried(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(MINIMAL)
    spec = read_experiment(file)
    call = {"method": "surgery", "params": {"rank": "d/8"}}
    tune = {"calibrators.0.params.rank": ("d/32", "d/8")}
    point = spec.points[0].model_copy(update={"set": {"calibrators": [call]}, "state": "surgery", "tune": tune})
    tried = spec.model_copy(update={"points": (point,), "seeds": 1}).recipes("mini8")
    assert [run.recipe.calibrators[0].params["rank"] for run in tried] == [4, 16]
    broken = point.model_copy(update={"set": {"calibrators": [{**call, "params": {"rank": "d/0"}}]}, "tune": {}})
    with pytest.raises(RecipeError, match="d/0"):
        spec.model_copy(update={"points": (broken,)}).recipes("mini8")


def test_an_unknown_experiment_names_the_nearest():
    with pytest.raises(RecipeError, match="Did you mean 'scaling'"):
        read_experiment("scalling")


def test_a_recipe_that_cannot_be_used_names_its_point(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(MINIMAL.replace("scaling: 0.1", "scalling: 0.1"))
    with pytest.raises(RecipeError, match=r"small, Low.*scaling"):
        read_experiment(file).recipes("mini8")


def test_prototypes_are_class_means_and_distances_euclidean():
    features = np.array([[0.0, 0.0], [2.0, 0.0], [10.0, 1.0]])
    centres = prototypes(features, np.array([4, 4, 7]))
    assert centres.tolist() == [[1.0, 0.0], [10.0, 1.0]]
    assert prototype_distance(np.array([[1.0, 3.0], [10.0, 1.0]]), centres) == pytest.approx([3.0, 0.0])
    with pytest.raises(DataError, match="3 features and 1 classes"):
        prototypes(features, np.array([4]))


def test_the_claims_are_those_of_the_shipped_results():
    page = (FOLDER.parent.parent / "docs" / "claims.md").read_text("utf-8")
    assert networks_table() in page
    assert claims_table() in page, "put the output of `python -m engine experiment --table` into docs/claims.md"
    assert clause_lists() in page
    assert all(f"](#{name})" in page for name in re.findall(r"^### ([a-z0-9-]+)$", page, re.MULTILINE))


def test_what_only_other_models_show_names_what_there_is():
    page = (FOLDER.parent.parent / "docs" / "claims.md").read_text("utf-8")
    assert elsewhere_table() in page
    assert len(elsewhere()) >= 10
    for entry in elsewhere():
        for command in entry.commands:
            python, *words = command.split()
            assert python == "python"
            if words[0].startswith("benchmarks/"):
                assert (FOLDER.parents[1] / words[0]).is_file()
                continue
            assert words[:2] == ["-m", "engine"]
            zoo = words[words.index("--zoo") + 1] if "--zoo" in words else words[4] if words[2] == "zoo" else "FOLDER"
            assert zoo == "FOLDER" or (FOLDER.parent / "zoos" / f"{zoo}.yaml").is_file()
            assert words[2:4] == ["zoo", "fetch"] or (words[2] == "experiment" and words[3] in experiment_names())


@pytest.mark.slow
def test_shipped_results_belong_to_their_experiments():
    for path in FOLDER.glob("*.json"):
        result = read_result(path)
        spec = read_experiment(result.name)
        assert path == shipped_path(spec, result.zoo)
        assert not result.quick
        assert fits(spec, result), "of another form of the experiment: run it again with --ship"
        assert [point.name for point in result.points] == [point.name for point in spec.points]
        place = spec.zoo.partition("-")[0]  # whose encoder its derived zoos have
        again = judge_again(spec, result, shape_of(place).sizes)
        assert (again.verdict, again.reason, again.points) == (result.verdict, result.reason, result.points)
        assert list(map(worded, again.findings)) == list(map(worded, result.findings))
        assert numbers(again.findings) == pytest.approx(numbers(result.findings), abs=1e-4, rel=0, nan_ok=True), (
            "order of sums"
        )


def test_a_clause_says_that_it_is_asked_here_where_it_is():
    for spec in map(read_experiment, experiment_names()):
        for check in spec.checks:
            assert ("(asked here)" in check.text) == check.asked, check.text
            assert not (check.asked and check.control), check.text


def test_a_headline_is_shipped_of_two_sets_of_experts_and_nothing_else_is():
    headlines = [spec for spec in map(read_experiment, experiment_names()) if spec.headline]
    assert {spec.paper.split(",")[0] for spec in headlines} == {"Osial et al.", "Wei et al.", "Zhang et al."}
    for spec in map(read_experiment, experiment_names()):
        second = shipped_path(spec, f"{spec.zoo}-experts2")
        assert (second is not None) == spec.headline
        assert shipped_path(spec, "another") is None
        if second is not None and second.is_file():
            one, two = read_result(shipped_path(spec)), read_result(second)
            assert one.zoo_digest != two.zoo_digest
            assert one.form == two.form
            assert any(f"and with other experts {found.verdict}" in clause_lists() for found in two.findings)


def test_a_clause_says_what_other_experts_give():
    finding = Finding(text="A beats B.", outcome="seen", verdict="seen here", difference=2.0, low=1.0, high=3.0)
    again = finding.model_copy(update={"verdict": "undecided here", "difference": -0.5, "low": -1.0, "high": 0.5})
    assert clause(finding) == "A beats B: seen here (+2, 1 to 3)"
    assert clause(finding, again).endswith(" and with other experts undecided here (−0.5, −1 to 0.5)")
    assert clause(finding, again.model_copy(update={"difference": None})) == clause(finding)


NUMBERS = ("left", "right", "difference", "sd", "low", "high")


def worded(finding):
    """A finding without its numbers."""
    return finding.model_copy(update=dict.fromkeys(NUMBERS))


def numbers(findings):
    """All numbers of findings; their last digits depend on the order in which values are added up."""
    return np.array([getattr(finding, name) for finding in findings for name in NUMBERS], dtype=float)


def test_learned_coefficients_are_averaged_over_the_layers_that_are_kept():
    report = made_report()

    def mean(transforms, **coefficients):
        details = {"layers": list(report.salience.layers), "coefficients": coefficients}
        changed = {
            "merged": report.merged.model_copy(update={"details": details}),
            "recipe": report.recipe.model_copy(update={"transforms": transforms}),
        }
        return kept_coefficient(FOLDER, report.model_copy(update=changed), None, "merged", {})

    lwptv = (MethodCall(method="lwptv"),)
    assert mean((), digits=[0.1, 0.3, 0.3, 9, 9], signs=[0.2, 0.6, 0.3, 9, 9]) == pytest.approx(0.3), "of LwPTV's mask"
    assert mean(lwptv, digits=[0.3, 0.3, 0.3, 0.6, 0.3], signs=[0.3, 0.3, 0.3, 0.4, 0.3]) == pytest.approx(0.5)
    assert mean(lwptv, digits=[0.3] * 5, signs=[0.3] * 5) is None, "nothing was learned"
    assert kept_coefficient(FOLDER, report, None, "merged", {}) is None


def test_sizes_are_those_of_the_encoder_whatever_the_kind_of_data(tmp_path):
    assert shape_of("mini8").sizes == {"d": 128, "w": 128, "blocks": 8}
    text = shape_of("mini_text")
    assert text.sizes == {"d": 64, "w": 64, "blocks": 4}
    assert len(text.experts) == 7
    brought = shape_of(str(make_text_zoo(tmp_path / "zoo")))
    assert brought.sizes == {"d": 16, "w": 16, "blocks": 2}
    with pytest.raises(RecipeError, match="states no feature width"):
        scaled({"rank": "d/8"}, {"w": 64})


def test_an_experiment_on_texts_is_said_to_be_one():
    lines = claims_table().splitlines()
    row = next(line for line in lines if "Table 3" in line and "texts" in line)
    assert "(mini_text)" in row
    assert not any("(mini8)" in line for line in lines)


def test_an_experiment_says_for_how_many_updates_its_calibrators_are_trained():
    assert read_experiment("prob-surgery-width").updates() == [1000, 5000]
    assert read_experiment("prob-surgery-convergence").updates(quick=True) == [30, 60]
    assert read_experiment("tuned-calibrators").updates() == []
