"""All views of a run from one button, and the example's picture where a slow view is not there yet."""

import pytest
import streamlit as st
import yaml
from streamlit.testing.v1 import AppTest

from engine.manifest import ASSETS
from engine.pipeline.local import run_recipe
from engine.pipeline.offered import offered_views
from engine.pipeline.rates import Rates, keep_rates
from engine.recipe import parse_recipe
from engine.report import read_report
from engine.store import Store
from tests.pages.conftest import ROOT
from tests.pages.test_weights import carry_out, charts, texts
from tests.tiny_zoo import make_zoo

MARKED = "The example's picture, not this run's"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    zoo = make_zoo(tmp_path_factory.mktemp("zoo") / "tiny")
    store = Store(tmp_path_factory.mktemp("store"))
    run_recipe(parse_recipe({"zoo": str(zoo), "merge": {"method": "ties"}}), store)
    return store, store.runs.list(kinds=("run",), limit=1)[0].id


@pytest.fixture
def opened(made, monkeypatch):
    store, run = made
    monkeypatch.setenv("MERGELENS_STORE", str(store.root))
    monkeypatch.delenv("MERGELENS_DATABASE_URL", raising=False)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("pages.shared.service.ensure_service", lambda store: "The engine is not started in tests.")
    monkeypatch.setattr("pages.shared.state.EXAMPLES", ASSETS / "examples")
    st.cache_resource.clear()
    st.cache_data.clear()

    def start(page, **state):
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
        app.query_params["run"] = run
        for name, value in state.items():
            app.session_state[name.replace("__", ".")] = value
        app.run()
        return app.switch_page(f"pages/{page}.py").run()

    return start


def test_one_button_asks_for_every_view_that_is_missing(opened, made):
    store, run = made
    app = opened("lab", lab__views=True)
    assert not app.exception
    offered = offered_views(read_report(store.find(store.runs.get(run).result)))
    app.button(key="lab.views.all").click().run()
    assert not app.exception
    rows = store.runs.list(states=("queued",), parent=run)
    assert sorted((row.kind, row.request.get("task", "")) for row in rows) == sorted(
        (view.name, getattr(asked, "task", "")) for view, asked in offered
    )
    assert not [button for button in app.button if button.key == "lab.views.all"], "all of them are coming"
    assert f"{len(rows) - 1} more wait" in texts(app)
    first = store.runs.claim_next("process:test:1:1")
    store.runs.fail(first.id, "There is nothing to tell apart.", "RecipeError")
    app = opened("lab", lab__views=True)
    states = dict(zip(app.dataframe[-1].value["View"], app.dataframe[-1].value["State"], strict=True))
    assert "Not computed: There is nothing to tell apart." in states.values()
    assert list(states.values()).count("Queued") == len(rows) - 1
    for row in store.runs.list(states=("queued",)):
        store.runs.request_cancel(row.id)
    app = opened("lab", lab__views=True)
    assert app.button(key="lab.views.all").label == f"Compute the {len(rows) - 1} missing views"


def test_a_slow_view_shows_the_examples_picture_marked_as_that(opened, made):
    store, _ = made
    keep_rates(store, matmul=1.0e4, encode={})
    app = opened("calibrate")
    assert not app.exception
    said = texts(app)
    assert said.count(MARKED) == 3, "depth, stitching and shifted images"
    assert said.count("example task-arithmetic") >= 3
    drawn = charts(app)
    keep_rates(store, matmul=Rates().matmul)
    st.cache_data.clear()
    quick = opened("calibrate")
    assert MARKED not in texts(quick)
    assert charts(quick) < drawn


def test_an_expert_trained_linearised_is_said_to_be_walked_away_from_by_the_ordinary_encoder(
    workspace, open_app, tmp_path
):
    zoo, store = make_zoo(tmp_path / "mixed"), workspace.store
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document["experts"][0] |= {"method": "linearised", "forward": "linearised"}
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    run_recipe(parse_recipe({"zoo": str(zoo)}), store)
    run = store.runs.list(kinds=("run",), limit=1)[0].id
    for task, said in (("alpha", True), ("beta", False)):
        query = {"run": run, "premerging.view": "Sharpness", "premerging.sharp.task": task}
        app = open_app("premerging", **query)
        carry_out(store)
        app.run()
        assert not app.exception
        assert charts(app) == 1
        assert ("alpha was trained linearised" in texts(app)) == said, task
