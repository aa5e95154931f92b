"""Another run's bars as outlines around those of the run shown; the address names it."""

import json

import numpy as np
import pytest

from engine.figures import accuracy_bars
from tests.made_run import made_report


@pytest.fixture
def runs(workspace):
    workspace.example()
    return workspace.finished("One"), workspace.finished("Other", merge={"method": "ties"})


def outlines(app):
    specs = (json.loads(chart.proto.spec) for chart in app.get("plotly_chart"))
    return [bar for spec in specs for bar in spec["data"] if bar.get("legendgroup") == "baseline"]


def test_a_baseline_is_chosen_beside_the_bars_and_kept_in_the_address(runs, open_app):
    one, other = runs
    app = open_app("accuracy", run=one.id)
    assert not outlines(app)
    box = app.selectbox(key="baseline.accuracy.bars")
    assert one.id not in box.options
    box.set_value(other.id).run()
    assert not app.exception
    assert app.query_params["baseline"] == other.id
    assert outlines(app)
    assert [bar["showlegend"] for bar in outlines(app)] == [True] + [False] * (len(outlines(app)) - 1)
    again = open_app("accuracy", run=one.id, baseline=other.id)
    assert again.selectbox(key="baseline.accuracy.bars").value == other.id
    again.selectbox(key="baseline.accuracy.bars").set_value("").run()
    assert "baseline" not in again.query_params
    assert not outlines(again)


@pytest.mark.parametrize("asked", ["nonsense", "<b>"])
def test_a_baseline_that_is_not_there_is_told(runs, open_app, asked):
    app = open_app("accuracy", run=runs[0].id, baseline=asked)
    assert not app.exception
    assert any("baseline is not here" in toast.value for toast in app.toast)
    assert not outlines(app)


def test_the_run_itself_is_no_baseline(runs, open_app):
    app = open_app("accuracy", run=runs[0].id, baseline=runs[0].id)
    assert not app.exception
    assert not outlines(app)


def test_outlines_stand_at_the_place_of_the_bars_with_their_own_values():
    report = made_report()
    other = report.model_copy(
        update={
            "accuracy": {
                state: {t: v / 2 for t, v in row.items() if v is not None} for state, row in report.accuracy.items()
            }
        }
    )
    drawing = accuracy_bars(report, "light", baseline=("Half", other))
    bars = {bar.offsetgroup: bar for bar in drawing.figure.data if bar.legendgroup != "baseline"}
    rings = {bar.offsetgroup: bar for bar in drawing.figure.data if bar.legendgroup == "baseline"}
    assert set(rings) == set(bars) == set(report.accuracy)
    tasks = len(report.tasks)
    for state, ring in rings.items():
        assert list(ring.x) == list(bars[state].x)
        np.testing.assert_allclose(
            np.array(ring.y[:tasks], float), np.array(bars[state].y[:tasks], float) / 2, err_msg=state
        )
    table = drawing.table.dropna(subset="baseline")
    np.testing.assert_allclose(table["difference"], table["accuracy"] - table["baseline"])
    assert "Outlines: Half." in drawing.alt


def test_outlines_of_means_are_over_the_runs_own_tasks():
    whole = made_report()
    part = whole.model_copy(update={"tasks": {name: whole.tasks[name] for name in ("digits", "scenes")}})
    for report, baseline, within in ((part, whole, whole.accuracy["merged"]["digits"]), (whole, part, np.nan)):
        drawing = accuracy_bars(report, "light", ["merged"], ("Other", baseline))
        ring = next(bar for bar in drawing.figure.data if bar.legendgroup == "baseline")
        means = dict(zip(ring.x, ring.y, strict=True))
        np.testing.assert_equal(means["<b>Mean in</b>"], within)
        assert means["<b>Mean out</b>"] == whole.accuracy["merged"]["scenes"]


def test_a_baseline_without_the_runs_tasks_draws_nothing():
    report = made_report()
    other = report.model_copy(update={"tasks": {}, "accuracy": {state: {} for state in report.accuracy}})
    drawing = accuracy_bars(report, "dark", baseline=("Elsewhere", other))
    assert not [bar for bar in drawing.figure.data if bar.legendgroup == "baseline"]
