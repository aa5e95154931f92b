"""Figures carry the report's numbers, units and colours in both themes, and stand missing cells."""

import json
import re

import numpy as np
import pytest

from engine.analysis.accuracy import wilson_interval
from engine.figures import (
    accuracy_bars,
    accuracy_table,
    bias_bars,
    bias_table,
    class_bias,
    confusion_figure,
    confusion_table,
    delta_heatmap,
    kept_curve,
    kept_figure,
    layer_ranking,
    layers_of,
    mask_figure,
    masks_at,
    ranked_layers,
    salience_heatmap,
    state_title,
    task_colours,
    training_curves,
)
from engine.figures.alignment import moved_table
from engine.figures.document import _averages
from engine.figures.drawing import plain, under_groups, wrapped
from engine.figures.palette import INK, STATES, state_pattern
from engine.report import Averages, CalibratorPart, SaliencePart, TaskSummary
from tests.made_run import EVALUATED, LAYERS, TASKS, made_report, made_samples

THEMES = ("light", "dark")


def every_drawing(report, theme):
    part = report.salience
    kept = masks_at(part, 0.7)
    counts = confusion_table(made_samples(report), "digits", "merged", TASKS["digits"])
    return [
        accuracy_bars(report, theme),
        delta_heatmap(report, "merged", theme),
        confusion_figure(counts, "merged", report, theme),
        bias_bars(report, "l1", theme),
        class_bias(report, "digits", theme),
        training_curves(report, "accuracy", theme),
        salience_heatmap(part, theme),
        layer_ranking(part, "digits", theme, title="Handwritten digits"),
        mask_figure(part, kept, theme),
        kept_figure(kept_curve(part), kept, theme),
    ]


def trace(figure, name):
    return next(item for item in figure.data if item.name == name)


@pytest.mark.parametrize("theme", THEMES)
def test_every_figure_is_transparent_in_the_themes_ink_and_has_words_and_a_table(theme):
    for drawing in every_drawing(made_report(), theme):
        layout = drawing.figure.layout
        assert layout.paper_bgcolor == "rgba(0,0,0,0)"
        assert layout.font.color == INK[theme]
        assert len(drawing.alt) > 30, drawing.name
        assert len(drawing.table), drawing.name
        assert re.fullmatch(r"[a-z0-9.\-]+", drawing.name)
        json.loads(drawing.figure.to_json())


@pytest.mark.parametrize(
    ("theme", "merged", "corrected", "expert"),
    [
        ("light", "#D55E00", "#0072B2", "#5F5F5F"),
        ("dark", "#F28E2B", "#56B4E9", "#B8B8B8"),
    ],
)
def test_states_have_their_colours(theme, merged, corrected, expert):
    figure = accuracy_bars(made_report(), theme).figure
    found = {bar.name: bar.marker.color for bar in figure.data}
    assert (found["Merged"], found["Surgery"], found["Expert"]) == (merged, corrected, expert)
    assert found["Pretrained"] == STATES[theme]["pretrained"] not in (merged, corrected, expert)


def test_accuracy_bars_carry_numbers_intervals_and_averages():
    drawing = accuracy_bars(made_report(), "light")
    bar = trace(drawing.figure, "Merged")
    assert list(bar.y) == [55.0, 57.0, 59.0, 56.0, 59.0]
    low, high = wilson_interval(55.0, EVALUATED)
    assert bar.error_y.array[0] == pytest.approx(high - 55)
    assert bar.error_y.arrayminus[0] == pytest.approx(55 - low)
    assert np.isnan(bar.error_y.array[3]), "a mean over tasks is no sample of images"
    assert f"n = {EVALUATED}" in bar.customdata[0]
    assert "%" in drawing.figure.layout.yaxis.title.text
    assert "Merged 56.0 %" in drawing.alt


def test_missing_accuracies_stay_missing():
    report = made_report()
    surgery = accuracy_table(report).query("state == 'surgery' and task == 'scenes'").iloc[0]
    assert np.isnan(surgery["accuracy"])
    assert np.isnan(surgery["low"])
    drawing = delta_heatmap(report, "merged", "light")
    dashes = [note for note in drawing.figure.layout.annotations if note.text == "–"]
    assert [(note.x, note.y) for note in dashes] == [(2, 1), (2, 2)]


def test_differences_are_centred_on_zero_and_printed_when_small():
    report = made_report()
    heat = delta_heatmap(report, "merged", "dark").figure.data[0]
    assert heat.zmin == -heat.zmax == -40
    assert heat.text[0][0] == "−25.0"
    assert heat.texttemplate == "%{text}"
    many = {f"t{i}": TaskSummary(title="", domain="in", classes=("a", "b")) for i in range(13)}
    accuracy = {state: dict.fromkeys(many, 50.0) for state in ("merged", "expert")}
    wide = made_report(tasks=many, accuracy=accuracy, average={}, samples={})
    assert delta_heatmap(wide, "merged", "light").figure.data[0].texttemplate is None


def test_tasks_of_one_title_are_told_apart():
    tasks = {name: TaskSummary(title="Same", domain="in", classes=("a", "b")) for name in ("x", "y")}
    accuracy = {"merged": {"x": 10.0, "y": 20.0}}
    report = made_report(tasks=tasks, accuracy=accuracy, average={}, samples={}, calibrators={})
    assert list(accuracy_bars(report, "light").figure.data[0].x) == ["Same (x)", "Same (y)"]


def test_long_titles_go_on_two_lines_and_stay_text():
    assert wrapped("Handwritten <b> digits") == "Handwritten<br>&lt;b&gt; digits"
    assert wrapped("Landcoverclassification") == "Landcoverclassification"
    assert under_groups(["Handwritten digits"] * 10)[0] == "Handwritten<br>digits"
    assert under_groups(["Handwritten digits"] * 11)[0] == "Handwritten digits"


def test_names_are_shown_as_they_are():
    assert plain("<b>left</b> & %{x}") == "&lt;b&gt;left&lt;/b&gt; &amp; %&#8203;{x}"
    report = made_report()
    counts = confusion_table(made_samples(report), "signs", "merged", TASKS["signs"])
    text = confusion_figure(counts, "merged", report, "light").figure.to_json()
    assert "<b>left" not in text.replace("\\u003c", "<")


def test_confusion_counts_images_and_compares_on_one_scale():
    report = made_report()
    counts = confusion_table(made_samples(report), "digits", "expert", TASKS["digits"])
    assert counts.to_numpy().sum() == EVALUATED
    assert np.trace(counts.to_numpy()) == 12
    heat = confusion_figure(counts, "expert", report, "light").figure.data[0]
    assert (heat.zmin, heat.zmax) == (0, 100)
    assert np.nansum(heat.z, axis=1).tolist() == [100, 100, 100]
    assert confusion_table(made_samples(report), "scenes", "expert", TASKS["scenes"]).empty


def test_class_names_that_look_like_numbers_are_categories():
    report = made_report()
    counts = confusion_table(made_samples(report), "digits", "merged", ("0", "1", "2"))
    layout = confusion_figure(counts, "merged", report, "light").figure.layout
    assert layout.xaxis.type == layout.yaxis.type == "category"


@pytest.mark.parametrize("measure", ["l1", "l2", "cosine", "cka"])
def test_bias_bars_carry_values_and_units(measure):
    report = made_report()
    drawing = bias_bars(report, measure, "light")
    value = getattr(report.bias["surgery"], measure)["digits"]
    assert trace(drawing.figure, "Surgery").y[0] == value
    assert "(" in drawing.figure.layout.yaxis.title.text
    assert set(drawing.table["state"]) == {"pretrained", "merged", "surgery"}


def test_means_of_bias_are_over_in_domain_tasks():
    report = made_report()
    l1 = {"digits": 1.0, "signs": 3.0, "scenes": 50.0}
    tasks = {**report.tasks, "scenes": report.tasks["scenes"].model_copy(update={"domain": "shifted"})}
    bias = {state: part.model_copy(update={"l1": l1}) for state, part in report.bias.items()}
    shifted = made_report(tasks=tasks, bias=bias)
    alt = bias_bars(shifted, "l1", "light").alt
    assert "Means over in-domain tasks: " in alt
    assert "2.000" in alt
    assert "18.000" not in alt
    assert _averages(shifted).count("<td>2.000</td>") == len([state for state in shifted.bias if state != "expert"])


def test_undefined_bias_is_missing_not_zero():
    table = bias_table(made_report(), "cosine")
    assert table.loc[table["task"] == "signs", "value"].isna().all()


def test_classes_are_ordered_by_distance_and_missing_ones_come_last():
    drawing = class_bias(made_report(), "digits", "light")
    assert drawing.table["class"].tolist() == ["one", "zero", "two"]
    assert "one at 0.800" in drawing.alt


def test_names_that_people_give_stand_beside_columns_of_the_same_names():
    report = made_report()
    report.bias["class"] = report.bias["surgery"]
    report.calibrators["class"] = report.calibrators["surgery"]
    drawing = class_bias(report, "digits", "light")
    assert list(drawing.table) == ["class", "pretrained", "merged", "surgery", "class (state)"]
    only = class_bias(report, "digits", "light", ["class"])
    assert only.table["class (state)"].dropna().tolist() == [0.5, 0.3]
    tasks = {("state" if name == "signs" else name): task for name, task in report.tasks.items()}
    assert "state (task)" in delta_heatmap(report.model_copy(update={"tasks": tasks}), "merged", "light").table
    counts = confusion_table(made_samples(report), "digits", "merged", ("true class", "one", "two"))
    assert "true class (class)" in confusion_figure(counts, "merged", report, "light").table
    part = report.salience
    kept, titles = masks_at(part, 0.7), ["layer", "Shared mask"]
    assert "layer (expert)" in salience_heatmap(part, "light", titles=titles).table
    assert list(mask_figure(part, kept, "light", titles=titles).table)[1:] == [
        "layer (expert)",
        "Shared mask (expert)",
        "Shared mask",
    ]
    assert list(moved_table({"group": {"moved": {"units_0": 0.5}}})) == ["group", "group (expert)"]


def test_curves_show_both_splits_and_where_they_start():
    drawing = training_curves(made_report(), "bias", "light")
    assert [line.name for line in drawing.figure.data] == ["Surgery, adaptation", "Surgery, evaluation"]
    assert list(drawing.figure.data[1].y) == [0.52, 0.31]
    level = drawing.figure.layout.shapes[0]
    assert level.y0 == pytest.approx(0.65)


def test_curves_of_what_was_not_measured_are_left_out():
    curve = ((10, 0.5, None, None, None, None),)
    columns = made_report().calibrators["surgery"].curve_columns
    part = CalibratorPart(method="surgery_v2", on="merged", parameters=1, curve_columns=columns, curve=curve)
    report = made_report(calibrators={"deep": part})
    assert not training_curves(report, "accuracy", "light").figure.data
    assert list(training_curves(report, "loss", "light").figure.data[0].y) == [0.5]
    assert state_title("deep", report) == "SurgeryV2 (deep)"


def test_layers_are_sorted_by_depth():
    names = [
        "visual.proj",
        "visual.transformer.resblocks.10.mlp.c_fc.weight",
        "visual.ln_post.weight",
        "visual.transformer.resblocks.2.attn.in_proj_bias",
        "visual.conv1.weight",
    ]
    found = layers_of(names)
    assert [layer.column for layer in found] == [4, 3, 1, 0, 2]
    assert [layer.component for layer in found] == ["Embedding", "Attention", "MLP", "Projection", "Norm"]
    assert [layer.group for layer in found] == ["In", "Block 3", "Block 11", "Out", "Out"]


def test_masks_follow_the_threshold_rule():
    part = made_report().salience
    kept = masks_at(part, 0.6)  # the threshold is the fourth smallest of five: one layer an expert is above it
    assert kept.masks.tolist() == [[True, False, False, False, False], [False, True, False, False, False]]
    assert (kept.layers, kept.parameters, kept.of_parameters) == (2, 500, 1400)
    assert kept.megabytes == pytest.approx(500 * 4 / 2**20)
    assert masks_at(part, 0.0).layers == len(LAYERS)
    assert masks_at(part, 1.0).layers == 0


def test_kept_shares_fall_as_the_ratio_grows():
    curve = kept_curve(made_report().salience)
    assert curve["parameters_percent"].iloc[[0, -1]].tolist() == [100, 0]
    assert (np.diff(curve["parameters_percent"]) <= 0).all()
    assert curve["digits_layers_percent"].iloc[60] == pytest.approx(20)


def test_salience_on_a_logarithmic_scale_marks_untrained_layers_as_missing():
    part = made_report().salience
    heat = salience_heatmap(part, "light").figure.data[0]
    assert np.isnan(heat.z[1][3])
    assert heat.z[0][0] == pytest.approx(np.log10(0.5))
    plainly = salience_heatmap(part, "light", logarithmic=False).figure.data[0]
    assert plainly.z[1][3] == 0


def test_salience_can_be_narrowed_to_a_kind_of_layer():
    drawing = salience_heatmap(made_report().salience, "dark", components=["MLP"])
    assert drawing.table["layer"].tolist() == [LAYERS[2]]


def test_layers_are_ranked_for_one_expert_beside_the_others():
    part = made_report().salience
    digits, signs = ranked_layers(part, "digits"), ranked_layers(part, "signs")
    assert digits["salience"].tolist() == [0.5, 0.4, 0.3, 0.2, 0.1]
    assert digits["layer"].tolist() == list(LAYERS)
    assert digits["others"].tolist() == [0.1, 0.5, 0.2, 0.0, 0.3]
    assert signs["layer"].iloc[0] == LAYERS[1]
    assert ranked_layers(part, "signs", components=["MLP"])["layer"].tolist() == [LAYERS[2]]
    drawing = layer_ranking(part, "signs", "light", title="Traffic signs")
    bars, marks = drawing.figure.data
    assert list(bars.x) == [0.5, 0.3, 0.2, 0.1, 0.0]
    assert list(marks.x) == [0.4, 0.1, 0.3, 0.5, 0.2]
    assert LAYERS[1] in drawing.alt


def test_a_lone_expert_is_compared_with_nobody():
    part = made_report().salience.model_copy(update={"score": {"digits": (0.5, 0.4, 0.3, 0.2, 0.1)}})
    assert ranked_layers(part, "digits")["others"].isna().all()
    assert len(layer_ranking(part, "digits", "dark", title="Digits").figure.data) == 1


def test_layers_can_be_sorted_by_their_mean_salience():
    part = made_report().salience
    drawing = salience_heatmap(part, "light", by_value=True)
    means = drawing.table.drop(columns=["layer", "component", "parameters"]).mean(axis=1)
    assert means.is_monotonic_decreasing
    assert drawing.table["layer"].iloc[0] == LAYERS[1]
    masks = mask_figure(part, masks_at(part, 0.6), "light", by_value=True)
    assert masks.table["layer"].tolist() == drawing.table["layer"].tolist()


def test_many_layers_are_named_by_block():
    layers = tuple(f"visual.transformer.resblocks.{b}.mlp.c_fc.{i}" for b in range(4) for i in range(10))
    ones = (1.0,) * len(layers)
    true = (True,) * len(layers)
    part = SaliencePart(
        layers=layers,
        parameters=(1,) * len(layers),
        score={"a": ones, "b": ones},
        eta=0.7,
        mask={"a": true, "b": true},
        shared_mask=true,
        kept_layers=40,
        kept_parameters_percent=100,
        kept_megabytes=0.1,
        applied=True,
    )
    assert list(salience_heatmap(part, "light").figure.layout.xaxis.ticktext) == ["1", "2", "3", "4"]
    assert layers_of([layers[0]])[0].short.startswith("1 ")
    assert "block 1: " in ranked_layers(part, "a")["label"].iloc[0]
    by_value = salience_heatmap(part, "light", by_value=True).figure.layout
    assert list(by_value.xaxis.ticktext) == ["most", "least salient"]
    assert not by_value.shapes


def test_eight_tasks_have_eight_colours_and_calibrators_are_told_apart():
    names = [f"t{i}" for i in range(8)]
    for theme in THEMES:
        assert len(set(task_colours(names, theme).values())) == 8
    states = ["merged", "surgery", "prob_surgery", "expert"]
    assert state_pattern("surgery", states) != state_pattern("prob_surgery", states)


def test_a_run_without_out_of_domain_tasks_has_one_mean():
    average = {state: Averages(within=50.0) for state in made_report().average}
    bar = accuracy_bars(made_report(average=average), "light").figure.data[0]
    assert list(bar.x)[-1] == "<b>Mean in</b>"
