"""The preview of what the form holds: asked for after a change, replaced by the next one, drawn beside the run."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from streamlit.testing.v1 import AppTest

from engine.pipeline.rates import keep_rates
from engine.zoo.folder import Zoo

LAMBDA = "form.w.merge.task_arithmetic.scaling.slider"
KEY = "cd" * 32
STATES = {"seen": "higher", "opposite seen": "lower", "undecided": "too small to tell"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Previews of the made zoo are foreseen to be quick, whatever its backbone is said to be."""
    monkeypatch.setattr("pages.forms.preview.foreseen_seconds", lambda asked, store: 0.4)


def said(app: AppTest) -> str:
    return " ".join(element.value for element in (*app.caption, *app.markdown)).replace("\\", "")


FEWER = "Made here from at most 2 images a task; a run makes this merge from all images."


def previews(workspace):
    return workspace.store.runs.list(kinds=("preview",))


def finish(workspace, row, key=KEY, outcome="seen", mean=2.5, uncompared="", graded=()):
    """End a preview as the engine would; ``uncompared`` is why it was not compared, ``graded`` tasks have numbers."""

    def spread(value):
        return {"mean": value, "low": value - 1, "high": value + 1, "images": 64}

    inside = {
        "merged": spread(57.5),
        "against": spread(57.5 - mean),
        "difference": {**spread(mean), "outcome": outcome},
    }
    if uncompared:
        del inside["against"], inside["difference"]
    titles = ("Cars", "Digits")
    tasks = [
        {
            "name": t,
            "title": t,
            "domain": "in",
            "evaluated": 2,
            "available": 80,
            "merged": [50, 9, 91],
            "against": [0, 0, 66],
        }
        for t in titles
    ]
    for task in tasks:
        if task["name"] in graded:
            del task["merged"], task["against"]
    average = {"in": inside if len(graded) < len(titles) else None, "out": None}
    document = {"format": 1, "tasks": tasks, "average": average, "seconds": 0.31, "chance": "", "looked_at": FEWER}
    anchors = ["pretrained", "merged" if uncompared else "against"]
    document["map"] = {"method": "pca", "anchors": anchors, "explained_variance": [20.0, 10.0]}
    document |= {"protocol": "held_out", "split_seed": 0}
    document["uncompared"] = uncompared
    rng = np.random.default_rng(0)
    arrays = {"task": np.array([0, 0, 1, 1], np.int32), "index": np.arange(4, dtype=np.int32)}
    for side in ("merged", "against"):
        arrays |= {f"{side}/points": rng.normal(size=(4, 2)).astype(np.float32)}
        arrays |= {f"{side}/right": np.array([1, 0, 1, 0], np.uint8)}
    with workspace.store.create(key, step="preview") as folder:
        (folder / "preview.json").write_text(json.dumps({**document, "seed": 0}))
        save_file(arrays, folder / "preview.safetensors")
    workspace.store.runs.claim_next("engine")
    workspace.store.runs.finish(row.id, key)


def charts(app: AppTest) -> int:
    return len(app.get("plotly_chart"))


def test_a_change_is_previewed_and_the_next_one_takes_its_place(workspace, open_app):
    workspace.example()
    app = open_app()
    assert not previews(workspace), "the run shown needs no preview"
    app.slider(key=LAMBDA).set_value(0.55).run()
    (row,) = previews(workspace)
    assert row.request["recipe"]["merge"]["params"]["scaling"] == 0.55
    assert row.request["recipe"]["calibrators"] == []
    assert row.request["against"]["merge"]["params"]["scaling"] == 0.3
    assert "Previewing" in said(app)
    app.run()
    assert len(previews(workspace)) == 1, "the same settings are asked for once"
    app.slider(key=LAMBDA).set_value(0.6).run()
    second, first = previews(workspace)
    assert (first.id, first.state, second.state) == (row.id, "cancelled", "queued")


@pytest.mark.parametrize("outcome", sorted(STATES))
def test_a_preview_says_what_it_is_of_and_how_sure_it_is(workspace, open_app, outcome):
    workspace.example()
    app = open_app()
    before = charts(app)
    app.slider(key=LAMBDA).set_value(0.55).run()
    finish(workspace, previews(workspace)[0], outcome=outcome)
    app.run()
    assert not app.exception
    text = said(app)
    assert "**Preview: 57.5\u00a0%** of a sample right in-domain (56.5 to 58.5)" in text
    assert "**+2.5 points** (+1.5" in text or "**+2.5 points** (1.5 to 3.5)" in text
    assert STATES[outcome] in text
    assert "not the run's number: n = 2 of 80 test images a task" in text
    assert "held-out images, split seed 0, seed 0" in text
    assert "95 % intervals, the difference by image; PCA of pretrained and run shown (30 % of the variance)" in text
    assert FEWER in text
    assert "needs Run" in text
    assert charts(app) == before + 2


def test_a_preview_that_cannot_be_compared_says_why(workspace, open_app):
    workspace.example()
    app = open_app()
    app.slider(key=LAMBDA).set_value(0.55).run()
    finish(workspace, previews(workspace)[0], uncompared="The expert 'old' is gone.")
    app.run()
    assert not app.exception
    assert "It is not compared with the run shown: The expert 'old' is gone." in said(app)
    assert "95 % intervals; PCA of pretrained and this merge (30 % of the variance)" in said(app)


@pytest.mark.parametrize("graded", [("Cars",), ("Cars", "Digits")])
def test_tasks_whose_answers_are_numbers_have_no_accuracy(workspace, open_app, graded):
    workspace.example()
    app = open_app()
    before = charts(app)
    app.slider(key=LAMBDA).set_value(0.55).run()
    finish(workspace, previews(workspace)[0], graded=graded)
    app.run()
    assert not app.exception
    assert not app.error
    assert f"no accuracy of {', '.join(graded)}, where answers are numbers" in said(app)
    assert ("No task of the sample has an accuracy" in said(app)) == (len(graded) == 2)
    assert charts(app) == before + 3 - len(graded)


def test_the_preview_before_stays_until_the_next_one_is_there(workspace, open_app):
    workspace.example()
    app = open_app()
    app.slider(key=LAMBDA).set_value(0.55).run()
    finish(workspace, previews(workspace)[0])
    app.run()
    app.slider(key=LAMBDA).set_value(0.6).run()
    assert "Previewing; below, the settings before." in said(app)
    assert "**Preview: 57.5" in said(app)
    finish(workspace, previews(workspace)[0], key="ef" * 32, mean=-1.5, outcome="opposite seen")
    app.run()
    assert "\u22121.5 points" in said(app)
    assert "Previewing" not in said(app)


def test_going_back_to_the_run_shown_and_run_withdraw_it(workspace, open_app):
    workspace.example()
    app = open_app()
    app.slider(key=LAMBDA).set_value(0.55).run()
    app.slider(key=LAMBDA).set_value(0.3).run()
    assert [row.state for row in previews(workspace)] == ["cancelled"]
    assert "Previewing" not in said(app)
    app.slider(key=LAMBDA).set_value(0.7).run()
    app.button(key="form.run").click().run()
    assert {row.state for row in previews(workspace)} == {"cancelled"}


def test_what_trains_needs_run_and_says_so(workspace, open_app):
    workspace.example()
    app = open_app()
    app.button(key="form.w.c0.remove").click().run()
    assert "The merge is that of the run shown. Calibrators train, so what they do needs Run." in said(app)
    app.selectbox(key="form.w.merge").set_value("adamerging").run()
    assert "learns from images, so there is no preview" in said(app)
    assert not previews(workspace)


def test_a_slow_preview_waits_for_a_button(workspace, open_app, monkeypatch):
    monkeypatch.setattr("pages.forms.preview.foreseen_seconds", lambda asked, store: 12.0)
    workspace.example()
    app = open_app()
    app.slider(key=LAMBDA).set_value(0.55).run()
    assert not previews(workspace)
    assert "A preview takes about 12 s here, so it does not follow by itself." in said(app)
    app.button(key="preview.ask").click().run()
    assert len(previews(workspace)) == 1
    assert "Previewing" in said(app)


def test_the_time_measured_here_decides(workspace, open_app, monkeypatch):
    from engine.pipeline.preview.request import foreseen_seconds, rate_name

    monkeypatch.setattr("pages.forms.preview.foreseen_seconds", foreseen_seconds)
    workspace.example()
    sampled, zoo = workspace.recipe(probe={"samples_per_task": 32}), Zoo.open(str(workspace.zoo))
    keep_rates(workspace.store, preview={rate_name(sampled, zoo): 0.2})
    app = open_app()
    app.slider(key=LAMBDA).set_value(0.55).run()
    assert len(previews(workspace)) == 1, app.caption
    keep_rates(workspace.store, preview={rate_name(sampled, zoo): 20.0})
    app.slider(key=LAMBDA).set_value(0.6).run()
    assert "about 20 s here" in said(app)


def test_failed_and_forgotten_previews_say_so(workspace, open_app):
    workspace.example()
    app = open_app()
    app.slider(key=LAMBDA).set_value(0.55).run()
    workspace.store.runs.claim_next("engine")
    workspace.store.runs.fail(previews(workspace)[0].id, "The features are not finite.", "EngineError")
    app.run()
    assert "The features are not finite." in said(app)
    app.slider(key=LAMBDA).set_value(0.5).run()
    workspace.store.runs.claim_next("engine")
    finish(workspace, previews(workspace)[0])
    app.run()
    assert "Preview: 57.5 %" in said(app).replace("\xa0", " ")
    app.slider(key=LAMBDA).set_value(0.6).run()
    workspace.store.runs.cancelled(previews(workspace)[0].id)
    from engine.store.passing import forget_passing

    forget_passing(workspace.store, ("preview",), kept=-1)
    app.run()
    assert not app.exception
    assert "no longer kept" in said(app)


def test_whoever_may_start_nothing_is_told(workspace, open_app, monkeypatch):
    from engine.store.people import Person

    workspace.example()
    monkeypatch.setattr("pages.shared.people.person", lambda: Person("ana@example.org", "Ana", "viewer"))
    app = open_app()
    app.slider(key=LAMBDA).set_value(0.55).run()
    assert not app.exception
    assert not previews(workspace)
    assert "No preview:" in said(app)
