"""Bias by block, outliers and other tasks' calibrators as figures."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from engine.analysis.bias import cka, l1
from engine.analysis.depth import bias_by_block
from engine.figures.block_bias import block_figure, block_table
from engine.figures.coverage import coverage_figure, dimension_figure
from engine.figures.curves import training_curves
from engine.figures.one_image import fates, one_image_figure
from engine.figures.outliers import auroc_table, prototype_map, roc_figure, roc_points, score_histograms
from engine.figures.shift_kinds import shift_kinds_figure, shift_kinds_table
from engine.figures.stitching import linearity_figure, places, stitched_figure, stitched_table
from engine.figures.wrong_task import own_and_others, wrong_task_figure
from tests.made_run import made_report


def outputs(seed):
    random = np.random.default_rng(seed)
    return {
        "class": random.normal(size=(3, 9, 4)),
        "mean": random.normal(size=(3, 9, 4)),
        "features": random.normal(size=(9, 2)),
    }


def document():
    parts = {}
    for number, task in enumerate(("digits", "signs")):
        states = {
            state: bias_by_block(outputs(seed + number), outputs(9))
            for seed, state in enumerate(("pretrained", "merged"), 1)
        }
        parts[task] = {"states": states, "images": 9, "available": 20, "blocks": 3}
    return {"split_seed": 0, "tasks": parts}


def test_every_block_is_compared_by_itself():
    state, expert = outputs(1), outputs(2)
    found = bias_by_block(state, expert)
    assert found["mean"]["l1"][1] == pytest.approx(l1(state["mean"][1], expert["mean"][1]))
    assert found["class"]["cka"][2] == pytest.approx(cka(state["class"][2], expert["class"][2]))
    state["mean"][2] = np.nan
    assert bias_by_block(state, expert)["mean"]["l1"][2] is None


def test_lines_are_means_over_tasks_with_the_features_apart():
    made = document()
    table = block_table(made, "l1", "class", ["digits", "signs"])
    expected = np.mean([part["states"]["merged"]["class"]["l1"][1] for part in made["tasks"].values()])
    row = table[(table["state"] == "merged") & (table["station"] == "Block 2")]
    assert row["value"].item() == pytest.approx(expected)
    figure = block_figure(made, made_report(), "cka", "mean", ["signs"], "dark").figure
    assert [list(trace.x) for trace in figure.data[:2]] == [["1", "2", "3"], ["Features"]]
    assert [trace.showlegend for trace in figure.data] == [True, False] * 2


@pytest.fixture
def scores():
    random = np.random.default_rng(0)
    frames = []
    for state, shift in (("merged", 0.5), ("surgery", 2.0)):
        for outside in (False, True):
            values = random.normal(5 + shift * outside, 1, 40).round(1)
            frames.append(pd.DataFrame({"state": state, "task": "digits", "outside": outside, "score": values}))
    return pd.concat(frames, ignore_index=True)


def test_the_area_under_the_points_is_the_auroc(scores):
    rows = scores[scores["state"] == "merged"]
    false, true = roc_points(*(rows.loc[rows["outside"] == side, "score"].to_numpy() for side in (False, True)))
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 100, 100)
    assert np.trapezoid(true, false) / 1e4 == pytest.approx(roc_auc_score(rows["outside"], rows["score"]))


def test_outlier_figures(scores):
    aurocs = {"merged": {"digits": 64.0}, "surgery": {"digits": 92.0}}
    drawing = roc_figure(scores, aurocs, made_report(), list(aurocs), "digits", "light")
    assert "92.0 %" in drawing.alt
    assert drawing.figure.data[1].name.endswith("(92.0 %)")
    first, second = (score_histograms(scores, made_report(), state, "digits", "dark") for state in aurocs)
    assert list(first.figure.data[0].x) == list(second.figure.data[0].x)
    assert all(sum(bar.y) == pytest.approx(100) for bar in (*first.figure.data, *second.figure.data))
    assert auroc_table(aurocs, made_report())["Mean"].tolist() == [64, 92]


def test_the_colour_of_a_wrong_module_is_what_it_costs():
    matrix = [[90.0, 40.0], [50.0, 80.0]]
    made = {"states": {"surgery": {"tasks": ["digits", "signs"], "accuracy": matrix, "uncorrected": [60.0, 60.0]}}}
    drawing = wrong_task_figure(made, made_report(), "surgery", "light")
    assert np.array(drawing.figure.data[0].z).tolist() == [[30, -20], [-10, 20]]
    assert [list(row) for row in drawing.figure.data[0].text] == [["90.0", "40.0"], ["50.0", "80.0"]]
    assert own_and_others(made, "surgery") == (85, 45)
    alone = {"states": {"surgery": {"tasks": ["digits"], "accuracy": [[90.0]], "uncorrected": [60.0]}}}
    assert own_and_others(alone, "surgery") == (90, None)


def stitched_document():
    def part(number):
        values = {"begins": [90.0, 80.0 + number, 70.0, 60.0], "ends": [60.0, 65.0, 75.0, 90.0]}
        near = {"cosine": [0.9, 0.8], "change": [0.5 + number / 10, 0.4]}
        nothing = {"cosine": [0.7, 0.6], "change": [None, None]}
        return {
            "states": {"merged": values, "expert": values},
            "blocks": 1,
            "images": 9,
            "available": 20,
            "linearity": {"pretrained": nothing, "merged": near},
            "other": "signs",
            "exact": True,
        }

    return {"split_seed": 0, "tasks": {"digits": part(0), "signs": part(2)}}


def test_stitched_lines_go_from_one_whole_model_to_the_other():
    made = stitched_document()
    table = stitched_table(made, ["digits", "signs"])
    begins = table[(table["state"] == "merged") & (table["order"] == "begins")]
    assert begins["first_up_to"].tolist() == places(1) == ["none", "emb.", "1", "all"]
    assert begins["accuracy"].tolist() == [90, 81, 70, 60]
    drawing = stitched_figure(made, made_report(), "begins", ["digits", "signs"], "dark")
    assert [trace.name for trace in drawing.figure.data] == ["Merged", "Another task's expert"]
    assert "Merged 75.5 %" in drawing.alt  # of the two places inside


def test_a_model_that_did_not_move_has_no_line_of_changes():
    made = stitched_document()
    changes = linearity_figure(made, made_report(), "change", ["digits", "signs"], "light")
    assert [(trace.name, list(trace.x)) for trace in changes.figure.data] == [("Merged", ["1", "Output"])]
    assert changes.table["value"].tolist() == pytest.approx([0.6, 0.4])
    assert len(linearity_figure(made, made_report(), "cosine", ["signs"], "light").figure.data) == 2


def test_shifts_are_means_over_the_tasks_that_have_them():
    def states(number):
        return {
            state: {"accuracy": number + place, "l1": place / 10} for place, state in enumerate(("merged", "expert"))
        }

    made = {
        "tasks": {
            "digits": {"shifts": {"none": states(50), "signs": states(10), "noise": states(40)}, "images": 9},
            "signs": {"shifts": {"none": states(70), "noise": states(50)}, "images": 9},
        }
    }
    table = shift_kinds_table(made, ["digits", "signs"]).set_index(["kind", "state"])
    assert table.loc[("none", "merged"), "accuracy"] == 60
    assert table.loc[("signs", "merged"), ["accuracy", "tasks"]].tolist() == [10, 1]
    drawing = shift_kinds_figure(made, made_report(), "l1", ["digits", "signs"], "light")
    assert [trace.name for trace in drawing.figure.data] == ["Merged"]  # the expert is at zero
    lines = drawing.figure.layout.xaxis.title.text.split("<br>")
    assert max(map(len, lines)) <= 30, "an axis title is read whole on a phone"
    assert list(drawing.figure.data[0].y)[::2] == ["As they are", "Noise"]


def test_prototypes_lie_among_images_and_name_their_class():
    places = pd.DataFrame(
        {
            "state": "surgery",
            "task": "digits",
            "kind": ["own", "outside", "prototype", "prototype"],
            "class": [-1, -1, 0, 2],
            "x": [0.0, 3.0, 1.0, -1.0],
            "y": [0.0, 4.0, 0.0, 0.0],
        }
    )
    drawing = prototype_map(places, made_report(), "surgery", "digits", "light")
    assert [list(trace.x) for trace in drawing.figure.data] == [[3], [0], [1, -1]]
    assert list(drawing.figure.data[2].text) == ["zero", "two"]
    assert "2 class prototypes of Digits" in drawing.alt
    assert "outside 5.00" in drawing.alt


def predictions_of_two_images():
    rows = []
    for state, said in {"merged": (1, 0), "surgery": (0, 1), "expert": (0, 0)}.items():
        for index, best in zip((7, 9), said, strict=True):
            for rank, label in enumerate([best, 2, 1 - best], start=1):
                rows.append(
                    {
                        "task": "digits",
                        "index": index,
                        "state": state,
                        "rank": rank,
                        "label": label,
                        "probability": (0.7, 0.2, 0.1)[rank - 1],
                        "shift": 0.5,
                    }
                )
    return pd.DataFrame(rows)


def test_what_became_of_an_image():
    made, labels = predictions_of_two_images(), pd.Series({7: 0, 9: 0})
    assert fates(made, labels, "merged", "surgery").to_dict() == {7: "repaired", 9: "broken"}
    assert fates(made, labels, "merged", "expert").to_dict() == {7: "repaired", 9: "right"}
    assert fates(made, pd.Series({9: 2}), "merged", "surgery").to_dict() == {9: "wrong"}


def test_one_image_has_the_true_class_first_and_a_bar_a_state():
    made = predictions_of_two_images()
    drawing = one_image_figure(
        made[made["index"] == 9], made_report(), "digits", ["merged", "surgery", "expert"], 0, "dark"
    )
    assert [trace.name for trace in drawing.figure.data] == ["Merged", "Surgery", "Expert"]
    assert drawing.figure.data[0].y[0] == "zero ✓"
    surgery = dict(zip(drawing.figure.data[1].y, drawing.figure.data[1].x, strict=True))
    assert surgery == pytest.approx({"zero ✓": 10, "one": 70, "two": 20})
    assert drawing.alt == "An image of zero. Merged zero, 70.0 %; Surgery one, 70.0 %; Expert zero, 70.0 %."
    assert set(drawing.table["class"]) == {"zero", "one", "two"}


def test_curves_of_one_task():
    report = made_report()
    part = report.calibrators["surgery"]
    by_task = {"digits": ((20, 0.5, 0.5, 0.5, None, 61.0), (40, 0.3, 0.2, 0.3, None, 80.0))}
    report = report.model_copy(update={"calibrators": {"surgery": part.model_copy(update={"task_curves": by_task})}})
    drawing = training_curves(report, "accuracy", "light", task="digits")
    assert drawing.table["accuracy_evaluate"].tolist() == [61, 80]
    assert drawing.alt.endswith("on Digits. At the end: Surgery 80.0.")
    assert [shape.y0 for shape in drawing.figure.layout.shapes] == [55, 95]  # merged and expert on this task
    assert training_curves(report, "accuracy", "light").table["accuracy_evaluate"].tolist() == [60, 75]
    assert training_curves(report, "accuracy", "light", task="signs").figure.data == ()


def test_coverage_and_dimensions_are_means_over_tasks():
    def part(shift):
        return {
            "coverage": {"50": 40.0 + shift, "90": 80.0 + shift},
            "dimensions": {"sigma": [3.0, 0.0], "residual": [1.0, 2.0]},
        }

    made = {"surgery": {"digits": part(0), "signs": part(10)}}
    drawing = coverage_figure(made, made_report(), ["digits", "signs"], "light")
    assert drawing.table["covered"].tolist() == [45, 85]
    assert "Surgery 85.0 %" in drawing.alt
    assert coverage_figure(made, made_report(), ["signs"], "dark").table["covered"].tolist() == [50, 90]
    points = dimension_figure(made, made_report(), "surgery", ["digits", "signs"], "light")
    assert (list(points.figure.data[0].x), list(points.figure.data[0].y)) == ([3, 0], [1, 2])
    assert "larger one in 50 %" in points.alt
