"""Experiments as documents, their verdicts, and telling outliers."""

import json

import numpy as np
import pytest

from engine.analysis.outliers import prototype_distance, prototypes
from engine.errors import DataError, EngineError, RecipeError
from engine.experiments import Cell, Check, experiment_names, judge, read_experiment, read_result
from engine.experiments.claims import claims_table
from engine.experiments.places import number_at
from engine.experiments.spec import FOLDER
from engine.experiments.verdict import deviation
from engine.manifest import read_manifest
from engine.pipeline.run.numbers import ANALYSES, kept_coefficient
from engine.pipeline.views import all_views, view_of
from tests.made_run import made_report

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


def cell(*values):
    return Cell(values=values, mean=sum(values) / len(values), sd=deviation(values))


@pytest.mark.parametrize("name", experiment_names())
def test_every_experiment_of_the_app_is_valid_on_the_bundled_zoo(name):
    spec = read_experiment(name)
    assert spec.name == name
    whole, quick = spec.recipes("mini8"), spec.recipes("mini8", quick=True)
    assert {point.name for point, _, _ in whole} == {point.name for point in spec.points}
    assert 0 < len(quick) <= len(whole)
    tasks = {task.name for task in read_manifest(FOLDER.parent / "zoos" / "mini8").tasks}
    for point, _, recipe in whole:
        states = {"pretrained", "merged", "expert", "multitask", *(call.name for call in recipe.calibrators)}
        assert point.state in states
    for measure in spec.measures:
        parts = measure.path.split(".")
        assert parts[0] != "accuracy" or parts[-1] in tasks
        assert not measure.analysis or measure.analysis in ANALYSES
        assert not measure.view or measure.view in all_views()


def test_numbers_of_documents_are_found_by_their_place():
    document = {"tasks": {"a": {"x": [1.0, 2.0, 4.0], "y": 3}, "b": {"x": [3.0, 6.0, 8.0], "y": None}}}
    assert number_at(document, "tasks.a.y") == 3
    assert number_at(document, "tasks.*.x[1:-1]") == 4.0
    assert number_at(document, "tasks.*.x[-1]") == 6.0
    assert number_at(document, "tasks.*.x[:2]") == pytest.approx((1.5 + 4.5) / 2)
    assert number_at(document, "tasks.a.x") == pytest.approx(7 / 3)
    for missing in ("tasks.*.y", "tasks.c.y", "tasks.a.x[7]", "tasks.a.x[3:]", "tasks.a.y.z", "tasks.a.z[0]", "none.*"):
        assert number_at(document, missing) is None
    for wrong in ("tasks.a.x[]", "tasks.a.x[one]", "tasks.a.x[1"):
        with pytest.raises(RecipeError, match="a number or a range"):
            number_at(document, wrong)


def test_a_view_that_does_not_exist_is_refused_by_name():
    with pytest.raises(EngineError, match=r"There is no view 'dpeth'\. Did you mean 'depth'"):
        view_of("dpeth")


def test_a_seed_counts_only_where_something_is_trained_or_drawn(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(MINIMAL)
    spec = read_experiment(file)
    assert [(point.name, seed) for point, seed, _ in spec.recipes("mini8")] == [("low", 0), ("high", 0)]
    trained = spec.model_copy(update={"base": {**spec.base, "calibrators": [{"method": "surgery"}]}})
    assert [seed for point, seed, _ in trained.recipes("mini8") if point.name == "low"] == [0, 1, 2]


def test_the_quick_form_trains_less_on_fewer_images_and_keeps_the_protocol(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(MINIMAL + "quick: {probe: {samples_per_task: 50}, steps: 20}\n")
    spec = read_experiment(file)
    calibrators = [{"method": "surgery", "params": {"steps": 500}}, {"method": "prob_surgery", "params": {"steps": 5}}]
    spec = spec.model_copy(update={"base": {**spec.base, "calibrators": calibrators, "probe": {"protocol": "paper"}}})
    _, _, recipe = spec.recipes("mini8", quick=True)[0]
    assert [call.params["steps"] for call in recipe.calibrators] == [20, 5]
    assert (recipe.probe.protocol, recipe.probe.samples_per_task) == ("paper", 50)


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


def test_an_unknown_experiment_names_the_nearest():
    with pytest.raises(RecipeError, match="Did you mean 'scaling'"):
        read_experiment("scalling")


def test_a_recipe_that_cannot_be_used_names_its_point(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(MINIMAL.replace("scaling: 0.1", "scalling: 0.1"))
    with pytest.raises(RecipeError, match=r"small, Low.*scaling"):
        read_experiment(file).recipes("mini8")


def check(relation, **changes):
    values = {"text": "It is.", "measure": "m", "left": "a", "right": "b", "relation": relation, **changes}
    return Check.model_validate(values)


@pytest.mark.parametrize(
    ("relation", "left", "right", "outcome"),
    [
        ("above", [80.0], [70.0], "yes"),
        ("above", [70.0], [80.0], "no"),
        ("above", [80.3], [80.0], "unclear"),  # within the margin
        ("above", [70.0, 90.0, 80.0], [75.0, 74.0, 76.0], "unclear"),  # within two standard errors
        ("below", [70.0], [80.0], "yes"),
        ("near", [80.3], [80.0], "yes"),
        ("near", [82.0], [80.0], "no"),
        ("above_or_near", [79.7], [80.0], "yes"),
        ("above_or_near", [79.0], [80.0], "no"),
    ],
)
def test_comparisons(relation, left, right, outcome):
    findings, _, _ = judge([check(relation)], {"a": {"m": cell(*left)}, "b": {"m": cell(*right)}})
    assert findings[0].outcome == outcome
    assert findings[0].difference == pytest.approx(np.mean(left) - np.mean(right))


def test_seeds_are_paired():
    table = {"a": {"m": cell(60.0, 80.0, 70.0)}, "b": {"m": cell(58.0, 78.0, 68.0)}}
    findings, verdict, _ = judge([check("above")], table)
    assert (findings[0].outcome, findings[0].sd, verdict) == ("yes", 0.0, "holds")


def test_verdicts():
    table = {"a": {"m": cell(80.0)}, "b": {"m": cell(70.0)}, "c": {"m": cell(80.0)}}
    rival = check("above_or_near", left="c", right="a", control=True, text="C does as well.")
    assert judge([check("above")], table)[1] == "holds"
    assert judge([check("above"), rival], table)[1:] == ("explained by a control", "C does as well.")
    assert judge([check("below"), rival], table)[1] == "does not hold here"
    assert judge([check("above", right="absent")], table)[1] == "cannot be judged on this zoo"
    assert judge([check("above", left="c", right="a")], table)[1] == "cannot be judged on this zoo"
    assert judge([rival], table)[1] == "cannot be judged on this zoo"


def test_other_measures_and_raised_sides():
    table = {"a": {"m": cell(80.0)}, "b": {"m": cell(70.0), "n": cell(90.0)}}
    assert judge([check("above", right_measure="n")], table)[0][0].outcome == "no"
    assert judge([check("above", plus=-5)], table)[0][0].difference == 15
    assert judge([check("above", plus=15)], table)[0][0].outcome == "no"


def test_prototypes_are_class_means_and_distances_euclidean():
    features = np.array([[0.0, 0.0], [2.0, 0.0], [10.0, 1.0]])
    centres = prototypes(features, np.array([4, 4, 7]))
    assert centres.tolist() == [[1.0, 0.0], [10.0, 1.0]]
    assert prototype_distance(np.array([[1.0, 3.0], [10.0, 1.0]]), centres) == pytest.approx([3.0, 0.0])
    with pytest.raises(DataError, match="3 features and 1 classes"):
        prototypes(features, np.array([4]))


def test_the_claims_are_those_of_the_shipped_results():
    page = (FOLDER.parent.parent / "docs" / "claims.md").read_text("utf-8")
    assert claims_table() in page, "put the output of `python -m engine experiment --table` into docs/claims.md"


def test_shipped_results_belong_to_their_experiments():
    for path in FOLDER.glob("*.json"):
        spec, result = read_experiment(path.stem), read_result(path)
        assert result.name == spec.name
        assert not result.quick
        assert [point.name for point in result.points] == [point.name for point in spec.points]
        table = {point.name: point.cells for point in result.points}
        assert judge(spec.checks, table) == (result.findings, result.verdict, result.reason)
        assert json.loads(path.read_text())["zoo"] == "mini8"


def test_learned_coefficients_are_averaged_over_the_layers_that_are_kept():
    report = made_report()
    details = {
        "layers": list(report.salience.layers),
        "coefficients": {"digits": [0.1, 0.3, 9, 9, 9], "signs": [0.2, 0.6, 9, 9, 9]},
    }
    learned = report.model_copy(update={"merged": report.merged.model_copy(update={"details": details})})
    assert kept_coefficient(FOLDER, learned, None, "merged", {}) == pytest.approx(0.3)
    assert kept_coefficient(FOLDER, report, None, "merged", {}) is None
