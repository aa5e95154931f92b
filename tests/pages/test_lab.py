"""The lab: it tells a finished run's story, makes recipes from the catalog, submits and follows runs."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from engine.recipe import MethodCall, parse_recipe
from engine.report import MergedPart
from engine.store import FIRST_NUMBERS
from pages.forms import recipe as forms
from pages.sections import story
from pages.shared.chrome import plain
from pages.shared.curves import curves_in
from tests.made_run import made_report

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "open_clip", "transformers", "umap", "dask", "distributed", "sklearn")


def texts(app):
    return " ".join(element.value for kind in ("title", "markdown", "caption") for element in getattr(app, kind))


def problems(app):
    return [element.value for element in app.error]


def test_first_open_tells_the_examples_story(workspace, open_app):
    workspace.example()
    app = open_app()
    assert not app.exception
    assert not problems(app)
    assert app.title[0].value == (
        "Two experts reach **96.0\u00a0%** on their own tasks. Merged by Task Arithmetic, one model keeps "
        ":orange[**56.0\u00a0%**]; Surgery repairs it to :blue[**76.0\u00a0%**]."
    )
    assert [metric.label for metric in app.metric] == ["Pretrained", "Merged", "Surgery", "Experts"]
    assert app.query_params["run"] == "made"


def test_the_first_page_links_to_what_it_leaves_open(workspace, open_app):
    workspace.example()
    links = {link.proto.label: link.proto for link in open_app().get("page_link")}
    broken = next(link for label, link in links.items() if label == "Which images did Surgery break?")
    assert broken.page == "representations"
    assert "list=broken" in broken.query_string
    assert "run=made" in broken.query_string
    assert any(link.page == "salience" for link in links.values())
    why = [link for label, link in links.items() if label.startswith(("Why does", "How far did", "What would help"))]
    assert [link.page for link in why] == ["diagnose"] * 3
    assert all("task=" in link.query_string and "run=made" in link.query_string for link in why)


def test_a_zoo_without_experts_says_how_to_get_some(workspace, open_app):
    workspace.example()
    manifest = workspace.zoo / "zoo.yaml"
    manifest.write_text(yaml.safe_dump({**yaml.safe_load(manifest.read_text()), "experts": []}))
    workspace.store.zoos.add(workspace.zoo)
    app = open_app()
    assert not app.exception
    assert "has no experts yet, so there is nothing to merge" in " ".join(problems(app)).replace("\\", "")
    assert "no experts yet" in app.info[0].value
    assert any(f"zoo finetune {workspace.zoo}" in code.value for code in app.code)
    assert app.button(key="form.run").disabled
    assert any("Or add checkpoints" in link.proto.label for link in app.get("page_link"))


def test_without_any_run_the_form_is_there(workspace, open_app, monkeypatch):
    monkeypatch.setitem(forms.FIRST_RECIPE, "zoo", str(workspace.zoo))
    app = open_app()
    assert not app.exception
    assert "No run has finished yet" in texts(app)
    assert not app.button(key="form.run").disabled


def test_changing_lambda_and_running_submits_that_recipe(workspace, open_app):
    workspace.example()
    app = open_app()
    app.slider(key="form.w.merge.task_arithmetic.scaling.slider").set_value(0.55).run()
    assert "Not run yet" in texts(app).replace("\\", "")
    app.button(key="form.run").click().run()
    assert not app.exception
    (row,) = workspace.store.runs.list()
    recipe = parse_recipe(row.request["recipe"])
    assert recipe.merge.params == {"scaling": 0.55}
    assert [call.name for call in recipe.calibrators] == ["surgery"]
    assert row.state == "queued"
    assert app.query_params["job"] == row.id
    assert "These settings are running" in texts(app)
    assert app.title[0].value.startswith("Two experts reach"), "the old result stays while the new one is computed"


def test_a_reload_follows_the_run_again_and_keeps_its_settings(workspace, open_app):
    workspace.example()
    recipe = workspace.recipe(merge={"method": "task_arithmetic", "params": {"scaling": 0.9}})
    row = workspace.submitted("Followed", recipe, owner=None)
    app = open_app(run="made", job=row.id)
    assert app.button(key="job.cancel")
    assert app.slider(key="form.w.merge.task_arithmetic.scaling.slider").value == 0.9
    app.button(key="job.cancel").click().run()
    assert workspace.store.runs.get(row.id).state == "cancelled"
    assert "was cancelled" in app.info[0].value


def test_a_reload_keeps_settings_that_were_not_run(workspace, open_app):
    workspace.example()
    app = open_app()
    assert "draft" not in app.query_params
    scaling = "form.w.merge.task_arithmetic.scaling.slider"
    app.slider(key=scaling).set_value(0.8).run()
    again = open_app(draft=app.query_params["draft"])
    assert not again.exception
    assert again.slider(key=scaling).value == 0.8
    assert "Not run yet: λ 0.3 → 0.8" in texts(again).replace("\\", "")
    again.button(key="form.reset").click().run()
    assert "draft" not in again.query_params
    assert open_app(draft="of an app that was started again").slider(key=scaling).value == 0.3


def test_runs_of_others_have_one_line_until_somebody_follows_one(workspace, open_app):
    workspace.example()
    row = workspace.submitted("Somebody else's", workspace.recipe(), owner=None)
    app = open_app(run="made")
    assert not app.exception
    assert not [button for button in app.button if button.key == "job.cancel"]
    assert "job" not in app.query_params
    (line,) = [part.value for part in app.caption if "At work" in part.value]
    assert line.replace("\\", "").endswith("At work: Somebody else's, waiting")
    app.button(key="others.follow").click().run()
    assert app.query_params["job"] == row.id
    assert app.button(key="job.cancel")
    assert not [part for part in app.caption if "At work" in part.value]


def test_a_projection_of_an_example_is_no_run_to_open(workspace, open_app):
    workspace.example()
    mine = workspace.finished("Mine")
    asked = {"recipe": workspace.recipe().model_dump(mode="json"), "projection": {"method": "umap"}}
    for by in ("page", "command line"):
        row = workspace.store.runs.submit("run", asked, name=f"UMAP by the {by}", owner="test", requested_by=by)
        workspace.store.runs.finish(row.id, workspace.store.runs.get(mine.id).result)
    app = open_app()
    options = next(box for box in app.selectbox if str(box.key).startswith("chrome.run.")).options
    assert any("UMAP by the command line" in option for option in options)
    assert not any("UMAP by the page" in option for option in options)
    app = open_app("runs")
    assert "UMAP by the page" not in set(app.dataframe[0].value["Run"])
    kinds = app.selectbox(key="runs.kind")
    kinds.set_value("Everything").run()
    table = app.dataframe[0].value.set_index("Run")
    assert table.loc["UMAP by the page", "Kind"] == "Projection"


def test_a_finished_run_becomes_the_run_shown(workspace, open_app):
    workspace.example()
    row = workspace.finished("Mine", merge={"method": "task_arithmetic", "params": {"scaling": 0.7}})
    app = open_app(run="made", job=row.id)
    assert not app.exception
    assert app.query_params["run"] == row.id
    assert "job" not in app.query_params
    assert app.selectbox(key=f"chrome.run.{row.id}").value == row.id


def test_a_failed_run_says_why_and_keeps_the_inputs(workspace, open_app):
    workspace.example()
    row = workspace.failed("Mine", "Expert 'digits' has NaN in conv1.weight.")
    app = open_app(run="made", job=row.id)
    assert "has NaN in conv1" in problems(app)[0].replace("\\", "")
    assert not app.button(key="form.run").disabled
    app.button(key="job.dismiss").click().run()
    assert not problems(app)


def test_an_address_of_no_run_shows_another_one(workspace, open_app):
    workspace.example()
    app = open_app(run="../../etc")
    assert not app.exception
    assert app.query_params["run"] == "made"
    assert app.toast


def test_names_from_files_are_shown_as_they_are():
    assert plain("![x](http://a.b/c.png) <b> :red[x] $x$") == (
        r"\!\[x\]\(http\:\/\/a\.b\/c\.png\) \<b\> \:red\[x\] \$x\$"
    )


def test_harm_is_said_as_plainly_as_success():
    report = made_report()

    def with_mean(state, value):
        changed = report.average[state].model_copy(update={"within": value})
        return story.headline(report.model_copy(update={"average": {**report.average, state: changed}}))

    assert "less than the pretrained model's 31.0\u00a0%" in with_mean("merged", 20.0)
    assert "less than" not in story.headline(report)
    assert "Surgery takes it down to" in with_mean("surgery", 20.0)
    assert "Surgery leaves it at" in with_mean("surgery", 56.1)
    assert "no accuracy to show" in story.headline(report.model_copy(update={"average": {}, "accuracy": {}}))


def test_a_run_at_work_shows_its_first_accuracies(workspace, open_app):
    workspace.example()
    row = workspace.submitted("mine", workspace.recipe())
    app = open_app(run="made", job=row.id)
    assert "First numbers" not in " ".join(text.value for text in app.markdown)
    tasks = [
        {
            "name": "sun",
            "title": "Sun",
            "domain": "in",
            "evaluated": 40,
            "merged": [60.0, 45, 74],
            "expert": [90.0, 77, 96],
        },
        {"name": "scores", "title": "Scores", "domain": "in", "evaluated": 30},
    ]
    first = {
        "tasks": tasks,
        "means": {"merged": 60.0, "expert": 90.0},
        "protocol": "held_out",
        "split_seed": 0,
        "seed": 3,
    }
    curve = {"columns": ["step", "loss"], "curve": [[1, 0.5], [2, 0.4]]}  # of a calibrator of that name
    workspace.store.runs.set_progress(row.id, metrics={"glance": curve})
    app.run()
    assert not app.exception
    workspace.store.runs.set_progress(row.id, metrics={FIRST_NUMBERS: first, "glance": curve})
    app.run()
    said = " ".join(text.value for text in (*app.markdown, *app.caption))
    assert "before any repair:** merged 60.0\u00a0%, experts 90.0\u00a0%" in said
    assert "n = 40 evaluation images a task" in said
    assert "seed 3" in said


@pytest.mark.parametrize("nested", [False, True])
def test_live_curves_are_found_in_the_metrics(nested):
    metrics = {"columns": ["step", "loss"], "curve": [[1, 0.5], [2, 0.4], [3]]}
    found = list(curves_in({"surgery": metrics} if nested else metrics))
    assert found == [("surgery" if nested else "", ["step", "loss"], [[1, 0.5], [2, 0.4]])]


def test_the_page_process_stays_light(tmp_path: Path):
    """The app with every page, in a process of its own, imports nothing heavy."""
    code = f"""
import sys
from pathlib import Path
from streamlit.testing.v1 import AppTest
import pages.shared.service
pages.shared.service.ensure_service = lambda store: ""
app = AppTest.from_file("app.py", default_timeout=120).run()
for path in sorted(Path("pages").glob("[a-z]*.py")):
    app.switch_page(str(path)).run()
    assert not app.exception, path
heavy = [name for name in {HEAVY!r} if name in sys.modules]
assert not heavy, heavy
"""
    environment = {"MERGELENS_STORE": str(tmp_path), "PATH": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("method", "kind", "headline", "what"),
    [
        ("task_arithmetic", "static", "one model", "nothing was trained"),
        ("emr", "per_task", "told the task", "An encoder for each task"),
        ("twin", "per_sample", "for every image", "only the router was trained"),
        ("adamerging", "static", "one model", "from images without labels"),
        ("evolutionary", "static", "one model", "chosen by accuracy on labelled validation images"),
        ("localize_and_stitch_learned", "static", "one model", "learned on labelled validation images"),
    ],
)
def test_the_story_says_what_a_merged_model_is(method, kind, headline, what):
    recipe = made_report().recipe.model_copy(update={"merge": MethodCall(method=method, params={})})
    report = made_report(recipe=recipe, merged=MergedPart(kind=kind))
    assert headline in story.headline(report)
    assert what in story.what_merged_is(report)
    of_texts = report.model_copy(update={"recipe": recipe.model_copy(update={"zoo": "mini_text"})})
    assert "image" not in story.headline(of_texts) + story.what_merged_is(of_texts)
