"""Every page on a run with a task whose answers are numbers: no accuracy, and why."""

from pathlib import Path

import pytest
import yaml
from streamlit.testing.v1 import AppTest

from engine.pipeline.local import make_view, run_recipe
from engine.pipeline.views.measures import TASK_MEASURES
from engine.recipe import parse_recipe
from engine.store import Store
from pages.shared.differences import paired_table
from pages.shared.state import open_run
from tests.pages.views import texts
from tests.tiny_text_zoo import make_text_zoo

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.stem for path in (ROOT / "pages").glob("[a-z]*.py"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A store with a finished run on a small zoo of texts, one task of which is graded."""
    folder = tmp_path_factory.mktemp("graded")
    zoo = make_text_zoo(folder / "zoo", experts=("alpha", "beta"))
    manifest = yaml.safe_load((zoo / "zoo.yaml").read_text())
    manifest["tasks"][0] |= {"grades": [0, 1, 2], "measure": "spearman"}
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(manifest))
    store = Store(folder / "store")
    recipe = parse_recipe({"zoo": str(zoo), "calibrators": [{"method": "surgery", "params": {"steps": 3}}]})
    report = run_recipe(recipe, store, view={"method": "tsne"})
    make_view(TASK_MEASURES, TASK_MEASURES.ask(report.recipe), store)
    assert report.accuracy["merged"]["alpha"] is None
    assert report.average["merged"].within == report.accuracy["merged"]["beta"]
    return folder


def test_every_page_opens_on_a_graded_task(place, monkeypatch):
    monkeypatch.setenv("MERGELENS_STORE", str(place / "store"))
    monkeypatch.setenv("MERGELENS_ROOTS", f"{place}:{ROOT}")
    monkeypatch.setattr("pages.shared.service.ensure_service", lambda store: "not started in tests")
    monkeypatch.setattr("pages.shared.state.EXAMPLES", place / "no examples")
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120).run()
    for page in PAGES:
        app = app.switch_page(f"pages/{page}.py").run()
        assert not app.exception, (page, app.exception)
        assert not app.error, page
        if page == "accuracy":
            app.selectbox(key="accuracy.task").set_value("alpha").run()
            assert not app.exception
            said = texts(app).replace("\\", "")
            assert "asks for a number" in said
            assert "grades nearest to them" in said
            assert "answers are numbers, which are near or far" in said
    app.query_params["task"] = "alpha"
    app = app.switch_page("pages/diagnose.py").run()
    assert next(box for box in app.selectbox if box.label == "Task").options == ["beta"]
    assert "which has no accuracy to lose" in app.toast[0].value


def test_differences_of_accuracies_leave_numbers_out(place, monkeypatch):
    monkeypatch.setenv("MERGELENS_STORE", str(place / "store"))
    run = open_run(Store(place / "store").runs.list(kinds=("run",), limit=1)[0].id)
    (row,) = paired_table({"expert": (run, "expert")}, (run, "merged")).to_dict("records")
    mean = {state: run.report.average[state].within for state in ("expert", "merged")}
    assert row["difference"] == pytest.approx(mean["expert"] - mean["merged"])
    assert row["images"] == run.report.samples["beta"].evaluate
