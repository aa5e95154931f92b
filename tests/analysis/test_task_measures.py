"""Measures against values by hand, and what a mean of them is called."""

import math

import numpy as np
import pytest

from engine.analysis.measures import MEASURES, mean_in_words, measured
from engine.errors import DataError

LABELS = np.array([0, 0, 0, 1, 1, 1, 1, 1])
SAID = np.array([0, 0, 1, 1, 1, 1, 0, 0])  # 2 of 3 and 3 of 5 right


def test_two_classes_by_hand():
    assert measured("accuracy", LABELS, SAID) == pytest.approx(62.5)
    assert measured("f1", LABELS, SAID) == pytest.approx(100 * 2 * 3 / (2 * 3 + 1 + 2))
    assert measured("matthews", LABELS, SAID) == pytest.approx(100 * (3 * 2 - 1 * 2) / math.sqrt(4 * 5 * 3 * 4))
    assert measured("pearson", LABELS, SAID) == pytest.approx(measured("matthews", LABELS, SAID))


def test_grades_in_another_scale_keep_their_ranks():
    labels, said = np.array([0, 1, 2, 3]), np.array([0, 1, 2, 9])
    assert measured("spearman", labels, said) == pytest.approx(100)
    assert measured("pearson", labels, said) < 95


def test_answers_that_never_vary_tell_nothing():
    for name in ("matthews", "pearson", "spearman"):
        assert measured(name, LABELS, np.ones_like(LABELS)) == 0


def test_of_several_classes_f1_is_the_mean_over_them():
    assert measured("f1", np.array([0, 1, 2]), np.array([0, 1, 1])) == pytest.approx(100 * (1 + 2 / 3 + 0) / 3)


def test_f1_is_of_one_class_where_the_task_has_two_and_of_those_that_occur_where_it_has_more():
    two, three = (measured("f1", LABELS, SAID, classes) for classes in (2, 3))
    assert two == measured("f1", LABELS, SAID) == pytest.approx(100 * 6 / 9)
    assert three == pytest.approx((two + 100 * 2 * 2 / (2 * 2 + 2 + 1)) / 2)
    assert measured("f1", np.array([0, 1, 3]), np.array([0, 1, 3]), 4) == pytest.approx(100), "class 2 is nowhere"


@pytest.mark.parametrize("name", MEASURES)
def test_perfect_answers_have_100_and_none_are_refused(name):
    assert measured(name, LABELS, LABELS) == pytest.approx(100)
    with pytest.raises(DataError, match="at least one"):
        measured(name, LABELS[:0], SAID[:0])


def test_a_mean_of_unlike_measures_says_so():
    assert mean_in_words(["accuracy", "accuracy"]) == "mean accuracy"
    assert mean_in_words(["matthews", "accuracy"]) == "mean of unlike measures (matthews, accuracy)"
