"""The guide's examples at work on a small zoo; run by test_guide.py inside a copy of the program that has them."""

import json
from pathlib import Path

import numpy as np
import pytest
import streamlit as st
import torch
from safetensors.torch import load_file
from streamlit.testing.v1 import AppTest

from engine.experiments import read_experiment, read_result
from engine.experiments.spec import FOLDER
from engine.lessons import Numbers, lesson_names, read_lesson
from engine.lessons.numbers import places_in
from engine.manifest import ASSETS
from engine.pipeline.executor import run_inline
from engine.pipeline.kinds import all_kinds
from engine.pipeline.local import run_experiment, run_recipe
from engine.pipeline.planners import plan_request
from engine.recipe import parse_recipe
from engine.report import read_report
from engine.store import Store
from tests.tiny_zoo import EXPERTS, make_zoo

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = "median-concentration"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return make_zoo(tmp_path_factory.mktemp("zoo") / "tiny")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def recipe(zoo):
    calibrators = [{"method": "mean_shift", "params": {"steps": 300, "learning_rate": 0.01, "batch_size": 8}}]
    return parse_recipe({"zoo": str(zoo), "merge": {"method": "coordinate_median"}, "calibrators": calibrators})


@pytest.fixture(scope="module")
def bundle(recipe, store):
    run_recipe(recipe, store)
    return store.find(store.runs.list(kinds=("run",), limit=1)[0].result)


@pytest.fixture(scope="module")
def measured(recipe, store, bundle):
    """The view's document for the recipe."""
    plan = plan_request("concentration", {"recipe": recipe.model_dump(mode="json")}, store)
    return json.loads((run_inline(plan, store) / "concentration.json").read_text())


def test_the_method_merges(zoo, bundle):
    merged, base = load_file(bundle / "merged.safetensors"), load_file(zoo / "base.safetensors")
    experts = [load_file(zoo / "experts" / f"{name}.safetensors") for name in EXPERTS]
    for name, tensor in base.items():
        median = torch.stack([expert[name] for expert in experts]).median(dim=0).values  # of three: the middle one
        torch.testing.assert_close(merged[name], median, msg=name)
        assert not torch.equal(merged[name], tensor)


def test_the_calibrator_trains(bundle):
    bias = read_report(bundle).bias
    for task in EXPERTS:
        assert bias["mean_shift"].l1[task] < 0.9 * bias["merged"].l1[task]
    stored = load_file(bundle / "calibrators" / "mean_shift.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == {"shift": (3, 16)}


def test_the_view_is_planned_and_computed(zoo, bundle, measured):
    assert all_kinds()["concentration"].title == "Concentration"
    merged, base = load_file(bundle / "merged.safetensors"), load_file(zoo / "base.safetensors")
    largest = whole = 0.0
    for name in measured["layers"]:
        squares = np.sort((merged[name].double() - base[name].double()).square().numpy(), axis=None)[::-1]
        largest += squares[: -(-squares.size // 20)].sum()
        whole += squares.sum()
    assert measured["share"] == pytest.approx(100 * largest / whole)
    assert len(measured["shares"]) == len(measured["layers"]) > 10


def test_the_section_asks_for_the_view_and_draws_it(recipe, store, bundle, monkeypatch, tmp_path):
    monkeypatch.setenv("MERGELENS_STORE", str(store.root))
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("pages.shared.service.ensure_service", lambda store: "The engine is not started in tests.")
    monkeypatch.setattr("pages.shared.state.EXAMPLES", tmp_path / "examples")
    st.cache_resource.clear()

    def open_page():
        app = AppTest.from_file(str(ROOT / "pages" / "weights.py"), default_timeout=120)
        app.query_params["run"] = store.runs.list(kinds=("run",), limit=1)[0].id
        app.session_state["weights.view"] = "concentration"
        return app.run()

    app = open_page()
    assert not app.exception
    app.button(key="weights.concentration.compute").click().run()
    row = store.runs.claim_next("process:test:1:1")
    assert (row.kind, row.name) == ("concentration", "Concentration")
    plan = plan_request(row.kind, row.request, store)
    run_inline(plan, store)
    store.runs.finish(row.id, plan.result)
    app = open_page()
    assert not app.exception
    assert [chart.proto.spec for chart in app.get("plotly_chart") if "squared length" in chart.proto.spec]


def test_the_experiment_reads_the_views_number(zoo, store, measured):
    result = run_experiment(EXPERIMENT, store, zoo=str(zoo))
    assert [point.failed for point in result.points] == ["", "", ""]
    assert result.cell("median", "share").mean == pytest.approx(measured["share"])
    assert result.cell("ties", "share").mean > result.cell("mean", "share").mean
    assert [finding.outcome for finding in result.findings] != ["missing", "missing"]
    (FOLDER / f"{EXPERIMENT}.json").write_text(result.model_dump_json())


def test_the_lesson_quotes_the_experiment():
    assert lesson_names()[-1] == "the-median"
    lesson, result = read_lesson("the-median"), read_result(FOLDER / f"{EXPERIMENT}.json")
    numbers = Numbers(read_report(ASSETS / "examples" / lesson.run), {EXPERIMENT: result})
    share = result.cell("median", "share").mean
    asked = [step.predict for step in lesson.steps if step.predict]
    assert f"the median {share:.1f} %" in numbers.fill(asked[0].because)
    assert numbers.answer(asked[0]) == int(share > result.cell("mean", "share").mean)
    for step in lesson.steps:
        for text in (step.text, *((step.predict.because,) if step.predict else ())):
            assert not places_in(numbers.fill(text))
    spec = read_experiment(EXPERIMENT)
    assert {step.measure for step in lesson.steps if step.experiment == spec.name} <= {m.name for m in spec.measures}
