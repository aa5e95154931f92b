"""One task is spoken of by every page: a list of tasks anywhere sets it, and the address names it."""

import re

import pandas as pd
import pytest

from engine.manifest import ASSETS
from pages.shared.selection import ALL, CLASS, TASK
from tests.pages.views import listed

EXAMPLE = "task-arithmetic"
WITH_ALL = ("calibrate.curve.task", "calibrate.task", "calibrate.depth.task", "calibrate.stitching.task")
WITHOUT = ("calibrate.one.task", "calibrate.out.task")


@pytest.fixture
def open_example(open_app, workspace, monkeypatch):
    monkeypatch.setattr("pages.shared.state.EXAMPLES", ASSETS / "examples")
    return lambda page, **query: open_app(page, run=EXAMPLE, **query)


def shown(app, *keys):
    return {listed(app, key).value for key in keys}


def test_lists_start_at_the_worst_task_or_at_all_of_them(open_example):
    assert shown(open_example("accuracy"), "accuracy.task") == {"vehicles"}
    app = open_example("calibrate")
    assert not app.exception
    assert shown(app, *WITH_ALL) == {ALL}
    assert shown(app, *WITHOUT) == {"vehicles"}
    assert TASK not in app.query_params


def test_a_task_that_is_chosen_once_is_shown_by_every_list_of_every_page(open_example):
    app = open_example("accuracy")
    listed(app, "accuracy.task").set_value("signs").run()
    assert app.query_params[TASK] == "signs"
    app.switch_page("pages/calibrate.py").run()
    assert not app.exception
    assert shown(app, *WITH_ALL, *WITHOUT) == {"signs"}
    listed(app, "calibrate.one.task").set_value("digits").run()
    assert shown(app, *WITH_ALL, *WITHOUT) == {"digits"}
    app.switch_page("pages/representations.py").run()
    assert shown(app, "representations.task", "features.shown") == {"digits"}
    app.switch_page("pages/diagnose.py").run()
    assert "digits" in app.title[0].value.lower()
    app.switch_page("pages/calibrate.py").run()
    listed(app, "calibrate.depth.task").set_value(ALL).run()
    assert shown(app, *WITH_ALL) == {ALL}
    assert shown(app, *WITHOUT) == {"vehicles"}
    assert TASK not in app.query_params


def test_the_address_chooses_for_every_page(open_example):
    assert shown(open_example("representations", task="flowers"), "representations.task", "features.shown") == {
        "flowers"
    }
    app = open_example("calibrate", task="flowers")
    assert shown(app, *WITH_ALL, *WITHOUT) == {"flowers"}
    app = open_example("accuracy", task="letters")
    assert shown(app, "accuracy.task") == {"letters"}, "a task that no expert was tuned on has confusions too"


def test_what_an_address_chooses_is_remembered_when_it_goes(open_example):
    app = open_example("calibrate", **{"task": "flowers", "class": "rose"})
    for name in (TASK, CLASS):
        app.query_params.pop(name, None)  # as the browser does on the way to another page
    app.switch_page("pages/accuracy.py").run()
    assert shown(app, "accuracy.task") == {"flowers"}


def test_a_task_that_the_run_does_not_have_chooses_nothing(open_example):
    app = open_example("accuracy", task="nonsense")
    assert not app.exception
    assert shown(app, "accuracy.task") == {"vehicles"}
    assert [note.value for note in app.toast] == [
        "The address names the task 'nonsense', which this run does not have."
    ]
    assert not app.run().toast


def test_lists_of_images_count_all_that_were_measured(open_example):
    app = open_example("representations")
    label = next(button.label for button in app.button if button.key == "features.pick.lost")
    rows = pd.read_parquet(ASSETS / "examples" / EXAMPLE / "samples.parquet")
    right = {
        state: set(own[own["prediction"] == own["label"]][["task", "index"]].itertuples(index=False, name=None))
        for state, own in rows[rows["split"] == "evaluate"].groupby("state")
    }
    drawn = set(pd.read_parquet(ASSETS / "examples" / EXAMPLE / "projections/tsne/projection.parquet")["task"])
    lost = [task for task, _ in right["expert"] - right["merged"] if task in drawn]
    total, shown_ones = re.fullmatch(r"Lost by merging \(([\d,]+); (\d+) shown\)", label).groups()
    assert int(total.replace(",", "")) == len(lost) > int(shown_ones) > 0


@pytest.mark.parametrize(
    ("page", "key"),
    [("runs", "runs.filter"), ("premerging", "premerging.view"), ("weights", "weights.view"), ("", "filmcolour")],
)
def test_an_address_that_chooses_nothing_where_one_is_always_chosen_shows_what_is_chosen_at_first(
    open_example, page, key
):
    usual = open_example(page).segmented_control(key=key).value
    app = open_example(page, **{key: ""})
    assert not app.exception
    assert not app.error
    assert key not in app.query_params
    assert usual
    assert app.segmented_control(key=key).value in (usual, None)
