"""Views that the calibrate page computes on demand, on a real small run."""

import re

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from engine.pipeline.local import run_recipe
from engine.pipeline.rates import Rates, keep_rates
from engine.recipe import parse_recipe
from engine.store import Store
from tests.pages.conftest import ROOT
from tests.pages.test_weights import carry_out, charts, texts
from tests.pages.views import listed
from tests.tiny_zoo import make_zoo

CALIBRATORS = [
    {"method": "surgery", "params": {"steps": 10, "rank": 4}},
    {"method": "surgery_v2", "params": {"steps": 3, "rank": 4}},
    {"method": "prob_surgery", "params": {"steps": 10, "hidden": 4}},
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    zoo = make_zoo(tmp_path_factory.mktemp("zoo") / "tiny")
    store = Store(tmp_path_factory.mktemp("store"))
    ids = {}
    for name, calibrators in (("repaired", CALIBRATORS), ("plain", [])):
        run_recipe(parse_recipe({"zoo": str(zoo), "merge": {"method": "ties"}, "calibrators": calibrators}), store)
        ids[name] = store.runs.list(kinds=("run",), limit=1)[0].id
    return store, ids


@pytest.fixture
def open_page(made, monkeypatch, tmp_path):
    store, ids = made
    monkeypatch.setenv("MERGELENS_STORE", str(store.root))
    monkeypatch.delenv("MERGELENS_DATABASE_URL", raising=False)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("pages.shared.service.ensure_service", lambda store: "The engine is not started in tests.")
    monkeypatch.setattr("pages.shared.state.EXAMPLES", tmp_path / "examples")
    st.cache_resource.clear()
    st.cache_data.clear()

    def start(run):
        app = AppTest.from_file(str(ROOT / "pages" / "calibrate.py"), default_timeout=120)
        app.query_params["run"] = ids[run]
        return app.run()

    return start


ASKED = {"predictions", "wrong_task", "coverage", "depth", "stitching", "shift", "outliers"}


def offered(app):
    return [button.key for button in app.button if button.key.endswith(".compute")]


def test_slow_views_wait_for_a_button_that_says_what_they_take(open_page, made):
    store, _ = made
    keep_rates(store, matmul=1.0e4, encode={})
    app = open_page("plain")
    assert not app.exception
    slow = [f"calibrate.{name}.compute" for name in ("depth", "stitching", "shift")]
    assert offered(app) == slow
    said = texts(app)
    assert said.count("by typical rates of a small server") == len(slow)
    assert "About" in said
    assert {row.kind for row in store.runs.list(states=("queued",))} == {"outliers"}, "it passes nothing through models"
    keep_rates(store, matmul=Rates().matmul)
    for row in store.runs.list(states=("queued",)):
        store.runs.request_cancel(row.id)


def test_quick_views_are_asked_for_by_themselves_computed_once_and_shown(open_page, made):
    store, ids = made
    app = open_page("repaired")
    assert not app.exception
    before = charts(app)
    assert offered(app) == []
    rows = store.runs.list(states=("queued",))
    assert {row.kind for row in rows} == ASKED
    app.run()
    assert len(store.runs.list(states=("queued",))) == len(ASKED), "none of them twice"
    assert [(row.parent, row.requested_by) for row in rows] == [(ids["repaired"], "page")] * len(ASKED)
    carry_out(store)
    app = open_page("repaired")
    assert not app.exception
    assert not [button for button in app.button if button.key.endswith("compute")]
    # Blocks, stitched, linearity, shifts, ROC, scores of three states, prototypes, one image, coverage, dimensions, the
    # matrix of modules.
    assert charts(app) == before + 13
    assert "own module" in texts(app)
    assert re.search(r"class token; n = \d+ of \d+ test images a task; ", texts(app).replace("\\", ""))
    listed(app, "calibrate.depth.task").select("beta").run()
    app.segmented_control(key="calibrate.depth.statistic").set_value("mean").run()
    app.segmented_control(key="calibrate.stitching.order").set_value("ends").run()
    app.segmented_control(key="calibrate.stitching.quantity").set_value("cosine").run()
    listed(app, "calibrate.stitching.task").select("beta").run()
    app.segmented_control(key="calibrate.shift.quantity").set_value("l1").run()
    assert not app.exception


def test_one_image_before_and_after(open_page, made):
    store, ids = made
    app = open_page("repaired")
    carry_out(store)
    app = open_page("repaired")
    run = ids["repaired"]
    app.selectbox(key="calibrate.one.by").select("surgery_v2").run()
    listed(app, "calibrate.one.task").select("beta").run()
    groups = app.segmented_control(key=f"calibrate.one.fate.{run}.surgery_v2.beta")
    counts = [int(label.rsplit("(", 1)[1].rstrip(")")) for label in groups.options]
    assert sum(counts) == 24
    place = next(number for number in app.number_input if number.key.startswith(f"calibrate.one.{run}.surgery_v2.beta"))
    place.set_value(place.max).run()
    assert not app.exception
    assert "away from the expert's, with SurgeryV2" in texts(app)
    assert "likeliest classes; n = 1 of 24 test images" in texts(app).replace("\\", "")
    for name, count in zip(("repaired", "broken", "wrong", "right"), counts, strict=True):
        app.segmented_control(key=f"calibrate.one.fate.{run}.surgery_v2.beta").set_value(name).run()
        assert not app.exception
        assert ("No such image" in texts(app)) == (count == 0)


def test_curves_of_one_task(open_page, made):
    app = open_page("repaired")
    assert "mean over tasks" in app.get("plotly_chart")[0].proto.spec
    listed(app, "calibrate.curve.task").select("gamma").run()
    assert not app.exception
    assert "mean over tasks" not in app.get("plotly_chart")[0].proto.spec


def test_a_run_without_calibrators_still_has_blocks_and_outliers(open_page, made):
    app = open_page("plain")
    assert not app.exception
    assert offered(app) == ["calibrate.outliers.compute"], "it was cancelled, so it waits for somebody"
    carry_out(store := made[0])
    finished = store.runs.list(states=("finished",), parent=made[1]["plain"])
    assert {row.kind for row in finished} == {"depth", "stitching", "shift"}
    assert "No calibrator was trained" in texts(app)
