"""The targets that a zoo is measured against."""

import pytest

from benchmarks.zoo import targets

AVERAGE = {
    "experts": {"in": 95.0},
    "pretrained": {"in": 45.0, "out": 75.0},
    "weight_average": {"in": 60.0, "out": 74.0},
    "task_arithmetic": {"in": 65.0, "out": 60.0},
    "tsv_m": {"in": 70.0, "out": 65.0},
    "surgery on task_arithmetic": {"in": 80.0},
    "surgery on pretrained": {"in": 74.0},
    "prob_surgery on task_arithmetic": {"in": 85.0},
    "prob_surgery on pretrained": {"in": 78.0},
}


def zoo(average=AVERAGE, lowest=85.0, near=90.0, pooled=94.0):
    """Return what is measured of one zoo."""
    experts = {"digits": 99.0, "signs": lowest}
    outliers = {"pooled": pooled, "near": {"letters against digits": near}}
    return {"average": average, "by_task": {"experts": experts}, "outliers": {"task_arithmetic": outliers}}


def missed(*zoos):
    """Names of targets that are not met."""
    return [row["target"] for row in targets(list(zoos)) if not row["met"]]


def test_a_zoo_that_allows_a_judgement_meets_every_target():
    assert missed(zoo()) == []


@pytest.mark.parametrize(
    ("state", "group", "value", "words"),
    [
        ("surgery on pretrained", "in", 75.1, "Surgery: on Task Arithmetic above on the pretrained"),
        ("prob_surgery on pretrained", "in", 80.1, "ProbSurgery: on Task Arithmetic above on the pretrained"),
        ("experts", "in", 92.9, "experts on average"),
        ("pretrained", "in", 34.9, "pretrained"),
        ("weight_average", "in", 56.9, "Weight Averaging above pretrained"),
        ("task_arithmetic", "in", 56.9, "Task Arithmetic above pretrained"),
        ("tsv_m", "in", 64.9, "TSV-M above Weight Averaging and Task Arithmetic"),
        ("task_arithmetic", "out", 67.1, "out of domain, Task Arithmetic below pretrained"),
    ],
)
def test_each_target_is_missed_where_its_number_is(state, group, value, words):
    worse = {**AVERAGE, state: {**AVERAGE[state], group: value}}
    assert words in missed(zoo(worse))


def test_outliers_may_be_neither_easy_nor_hopeless():
    assert missed(zoo(near=96.0)) == missed(zoo(near=79.0)) == ["AUROC of near outliers, Task Arithmetic"]
    assert missed(zoo(pooled=97.0)) == ["AUROC of all outliers, Task Arithmetic"]


def test_targets_take_the_mean_over_sets_of_experts():
    assert missed(zoo(lowest=70.0), zoo(lowest=91.0)) == []
    assert missed(zoo(lowest=70.0), zoo(lowest=89.0)) == ["the lowest expert"]
