"""The weights page on real small runs: asked for, shown when there, refused with a reason."""

import json
import re
import shutil

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from engine.pipeline.executor import run_inline
from engine.pipeline.local import run_recipe
from engine.pipeline.planners import plan_request
from engine.recipe import parse_recipe
from engine.store import Store
from tests.pages.conftest import ROOT
from tests.tiny_zoo import make_zoo

LEARN = {"granularity": "layer", "steps": 2, "batch_size": 4}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store with a plain run and two that learned coefficients, one of them behind LwPTV."""
    zoo = make_zoo(tmp_path_factory.mktemp("zoo") / "tiny")
    store = Store(tmp_path_factory.mktemp("store"))
    ids = {}
    for name, transforms, method in (
        ("learned", [], {"method": "adamerging", "params": LEARN}),
        ("behind", [{"method": "lwptv", "params": {"eta": 0.5}}], {"method": "adamerging", "params": LEARN}),
        ("plain", [], {"method": "ties"}),
    ):
        run_recipe(parse_recipe({"zoo": str(zoo), "transforms": transforms, "merge": method}), store)
        ids[name] = store.runs.list(kinds=("run",), limit=1)[0].id
    return store, ids


@pytest.fixture
def open_view(made, monkeypatch, tmp_path):
    store, ids = made
    monkeypatch.setenv("MERGELENS_STORE", str(store.root))
    monkeypatch.delenv("MERGELENS_DATABASE_URL", raising=False)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("pages.shared.service.ensure_service", lambda store: "The engine is not started in tests.")
    monkeypatch.setattr("pages.shared.state.EXAMPLES", tmp_path / "examples")
    st.cache_resource.clear()
    st.cache_data.clear()

    def start(view, run="plain"):
        app = AppTest.from_file(str(ROOT / "pages" / "weights.py"), default_timeout=120)
        app.query_params["run"] = ids[run]
        app.session_state["weights.view"] = view
        return app.run()

    return start


def carry_out(store):
    """Carry out the rows that wait, as the engine service would."""
    while row := store.runs.claim_next("process:test:1:1"):
        plan = plan_request(row.kind, row.request, store)
        run_inline(plan, store)
        store.runs.finish(row.id, plan.result)


def texts(app):
    kinds = ("title", "markdown", "caption", "subheader", "info")
    return "\n".join(item.value for kind in kinds for item in getattr(app, kind)).replace("\\", "")


def charts(app):
    return len(app.get("plotly_chart"))


@pytest.mark.parametrize("view", ["vectors", "kept", "spectra", "path", "receipt"])
def test_a_view_is_asked_for_computed_once_and_shown(open_view, made, view):
    store, ids = made
    app = open_view(view)
    assert not app.exception
    key = f"weights.{view if view in ('spectra', 'path', 'receipt') else 'measure'}.compute"
    if not charts(app):  # the first two views share what is measured; all are quick, so that nobody has to ask
        (row,) = store.runs.list(states=("queued",))
        assert (row.parent, row.requested_by) == (ids["plain"], "page")
        assert app.button(key=key.replace("compute", "cancel"))
        carry_out(store)
        app.run()
    assert not app.exception
    assert not app.error
    assert charts(app) >= 1
    assert not [button for button in app.button if button.key == key]


def test_measures_can_be_changed(open_view, made):
    carry_out(made[0])
    app = open_view("vectors")
    if not charts(app):
        carry_out(made[0])
        app.run()
    for measure in ("cancelled", "conflict", "norm"):
        app.selectbox(key="weights.geometry").set_value(measure).run()
        assert not app.exception
    assert "The length of the change" in texts(app)
    app.selectbox(key="weights.pairs.layer").set_value("visual.proj").run()
    assert not app.exception
    assert charts(app) == 2


def test_learned_coefficients_are_shown_beside_those_behind_lwptv(open_view):
    app = open_view("coefficients", "learned")
    assert not app.exception
    assert charts(app) == 2
    assert "The same behind LwPTV" in texts(app)
    captions = [item.value for item in app.caption if item.value.startswith("Learned coefficient")]
    assert len(captions) == 2
    assert all(re.search(r"; n = \d+ adaptation images a task; ", said) for said in captions)
    table = app.dataframe[0].value
    assert list(table.columns) == ["expert", "with", "without", "ratio"]
    assert (table["ratio"] > 0).all()
    other = open_view("coefficients", "behind")
    other.toggle(key="weights.used").set_value(True).run()
    assert not other.exception
    assert "behind LwPTV, η = 0.5" in texts(other)


def test_a_run_without_coefficients_offers_to_learn_them(open_view, made):
    store, _ = made
    app = open_view("coefficients")
    assert "learned no coefficients" in texts(app)
    app.button(key="weights.learn.compute").click().run()
    (row,) = store.runs.list(states=("queued",))
    assert parse_recipe(row.request["recipe"]).merge.params["granularity"] == "layer"
    store.runs.request_cancel(row.id)


def test_a_run_without_coefficients_shows_those_that_came_with_its_experts(open_view, made, tmp_path):
    store, ids = made
    example = tmp_path / "examples" / "made"
    for place, run in (("", "plain"), ("learned/adamerging", "learned"), ("learned/lwptv-adamerging", "behind")):
        (example / place).mkdir(parents=True)
        shutil.copy(store.find(store.runs.get(ids[run]).result) / "report.json", example / place)
    index = {"examples": [{"name": "made", "title": "Made"}]}
    (tmp_path / "examples" / "index.json").write_text(json.dumps(index))
    app = open_view("coefficients")
    assert not app.exception
    assert "a run that came with the app" in texts(app)
    assert charts(app) == 2
    assert "The same behind LwPTV" in texts(app)


def test_a_path_needs_two_models_and_says_why_it_failed(open_view, made):
    store, _ = made
    app = open_view("path")
    carry_out(store)  # the path that it opens with
    app.selectbox(key="weights.end").set_value("pretrained").run()
    assert "two different models" in texts(app)
    app.selectbox(key="weights.end").set_value("beta").run()
    (row,) = store.runs.list(states=("queued",))
    store.runs.claim_next("process:test:1:1")
    store.runs.fail(row.id, "Expert 'beta' has NaN in conv1.weight.", "CheckpointError")
    app.run()
    assert "has NaN in conv1" in app.error[0].value.replace("\\", "")
    assert app.button(key="weights.path.compute")


def test_no_page_shares_its_address_with_a_shared_module():
    """On a first address below the root, Streamlit lists every file of the folder by its name without underscores."""
    names = [path.stem.lstrip("_") for path in (ROOT / "pages").glob("*.py")]
    assert len(set(names)) == len(names)
