"""Uncertainty against errors, and the distribution of distances."""

import numpy as np
import pandas as pd
import pytest

from engine.figures.shift import shift_distribution, shift_table
from engine.figures.uncertainty import agreement, uncertain_states, uncertainty_figure, uncertainty_table
from engine.recipe import CalibratorCall
from engine.report import CalibratorPart
from tests.made_run import made_report


@pytest.fixture
def report():
    made = made_report()
    part = CalibratorPart(method="prob_surgery", on="merged", parameters=1)
    recipe = made.recipe.model_copy(update={"calibrators": (CalibratorCall(method="prob_surgery"),)})
    return made.model_copy(update={"calibrators": {**made.calibrators, "prob_surgery": part}, "recipe": recipe})


@pytest.fixture
def samples():
    """Twenty images of two tasks; the less sure, the farther, and the last four of each are wrong."""
    frames = []
    for scale, task in enumerate(("digits", "signs"), 1):
        sigma = scale * np.arange(1, 21) / 20
        wrong = np.arange(20) >= 16
        frames.append(
            pd.DataFrame(
                {
                    "task": task,
                    "state": "prob_surgery",
                    "sigma": sigma,
                    "shift": 2 * sigma,
                    "label": 0,
                    "prediction": wrong.astype(int),
                }
            )
        )
        frames.append(frames[-1].assign(state="merged", sigma=np.nan, shift=3 * sigma))
    return pd.concat(frames, ignore_index=True)


def test_images_are_grouped_within_their_task(samples):
    table = uncertainty_table(samples, "prob_surgery")
    assert table["n"].tolist() == [4] * 10
    assert table["sigma"].iloc[0] == pytest.approx(np.mean([0.05, 0.1, 0.1, 0.2]))
    assert table["shift"].tolist() == pytest.approx((2 * table["sigma"]).tolist())
    assert table["wrong"].tolist() == [0.0] * 8 + [100.0] * 2
    assert uncertainty_table(samples, "prob_surgery", "signs")["n"].tolist() == [2] * 10


def test_agreement_is_a_rank_correlation_and_two_error_rates(samples):
    found = agreement(samples, "prob_surgery")
    assert (found.rank_correlation, found.wrong_low, found.wrong_high, found.images) == (pytest.approx(1), 0, 100, 40)
    turned = samples.assign(shift=-samples["shift"])
    assert agreement(turned, "prob_surgery", "digits").rank_correlation == pytest.approx(-1)


def test_numbers_are_never_wrong(samples, report):
    table = uncertainty_table(samples, "prob_surgery", graded=["signs"])
    assert table["wrong"].tolist() == uncertainty_table(samples, "prob_surgery", "digits")["wrong"].tolist()
    assert table["n"].tolist() == [4] * 10
    alone = agreement(samples, "prob_surgery", "signs", ["signs"])
    assert (alone.wrong_low, alone.wrong_high, alone.images) == (None, None, 20)
    tasks = {**report.tasks, "signs": report.tasks["signs"].model_copy(update={"graded": True})}
    drawing = uncertainty_figure(samples, "prob_surgery", report.model_copy(update={"tasks": tasks}), "light", "signs")
    assert "errors from – % to – %" in drawing.alt


def test_only_calibrators_that_predict_a_spread_are_uncertain(samples, report):
    assert uncertain_states(samples, report) == ["prob_surgery"]
    assert uncertain_states(samples.assign(sigma=np.nan), report) == []


def test_the_figure_shows_what_is_left_and_what_is_wrong(samples, report):
    drawing = uncertainty_figure(samples, "prob_surgery", report, "light")
    assert list(drawing.figure.data[0].y) == [0.0] * 8 + [100.0] * 2
    assert "from 0.23 to 2.92" in drawing.alt
    assert len(drawing.table) == 10


def test_boxes_are_percentiles(samples, report):
    table = shift_table(samples, "digits", report)
    assert table["state"].tolist() == ["merged", "prob_surgery"]
    merged = samples[(samples["task"] == "digits") & (samples["state"] == "merged")]["shift"]
    assert table["p50"].iloc[0] == pytest.approx(merged.median())
    assert table["p95"].iloc[0] == pytest.approx(merged.quantile(0.95))
    figure = shift_distribution(samples, "digits", report, "dark").figure
    assert [box.median[0] for box in figure.data] == pytest.approx(table["p50"].tolist())
