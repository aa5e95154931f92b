"""Paired differences: their intervals hold what they promise, on made data whose truth is known."""

import numpy as np
import pytest
from scipy.special import ndtri, stdtrit

from engine.analysis.paired import Difference, interval_of, paired_difference
from engine.errors import DataError

TASKS, IMAGES, SEEDS = 4, 1000, 5
REPETITIONS = 300


def simulated(generator, gain, seeds=SEEDS, spread=0.5):
    """Both sides of a comparison whose true difference is ``gain`` points, with a training seed's own share."""
    left, right = {}, {}
    shared = gain + spread * generator.standard_normal(seeds)
    for task in range(TASKS):
        hard = generator.beta(4, 1, IMAGES)  # how likely an image is to be right
        draws = generator.random((seeds, IMAGES))
        again = np.where(generator.random((seeds, IMAGES)) < 0.8, draws, generator.random((seeds, IMAGES)))
        right[f"t{task}"] = draws < hard
        left[f"t{task}"] = again < np.clip(hard + shared[:, None] / 100, 0, 1)
    return left, right


def outcomes(gain, repetitions=REPETITIONS, **how):
    generator = np.random.default_rng(7)
    return [paired_difference(*simulated(generator, gain, **how), resamples=400).outcome() for _ in range(repetitions)]


@pytest.mark.slow
def test_without_a_difference_one_is_hardly_ever_seen():
    found = outcomes(0.0)
    assert found.count("seen") <= 0.03 * REPETITIONS
    assert found.count("opposite seen") <= 0.03 * REPETITIONS


@pytest.mark.slow
def test_a_difference_of_two_points_is_nearly_always_seen():
    found = outcomes(2.0)
    assert found.count("seen") >= 0.95 * REPETITIONS
    assert found.count("opposite seen") == 0


def test_the_same_answers_are_no_difference_and_few_images_decide_nothing():
    right = {"a": np.ones((1, 300), bool), "b": np.zeros((1, 300), bool)}
    same = paired_difference(right, right)
    assert (same.mean, same.images, same.seeds) == (0, 600, 1)
    assert (same.low, same.high) == pytest.approx((-0.5, 0.5))
    assert same.outcome() == "no difference"
    right = {"a": np.ones((1, 50), bool), "b": np.zeros((1, 50), bool)}
    assert paired_difference(right, right).outcome() == "undecided"
    flipped = {"a": right["a"].copy(), "b": right["b"].copy()}
    flipped["a"][0, :2] = False
    flipped["b"][0, :3] = True
    assert paired_difference(flipped, right).outcome() == "undecided"


def test_answers_that_all_change_alike_are_no_certainty():
    for images, outcome in ((1, "undecided"), (6, "undecided"), (7, "seen")):
        wrong, right = ({"a": np.full((1, images), value)} for value in (False, True))
        assert paired_difference(right, wrong).outcome() == outcome
        assert paired_difference(wrong, right).outcome() == {"seen": "opposite seen"}.get(outcome, outcome)
    wrong, right = ({"a": np.full((1, 3), value), "b": np.ones((1, 3), bool)} for value in (False, True))
    assert paired_difference(right, wrong).outcome() == "undecided", "three of six"
    generator, said = np.random.default_rng(0), 0
    for _ in range(100):
        before = {task: generator.random((1, 32)) < 0.8 for task in "abcd"}
        after = {task: known | (generator.random(known.shape) < 0.05) for task, known in before.items()}
        said += paired_difference(after, before, resamples=500).outcome() == "no difference"
    assert said == 0, "one point better in truth"


def test_values_that_are_no_right_answers_may_have_no_spread():
    same = interval_of({"layers": np.zeros((1, 4))})
    assert (same.low, same.high, same.outcome()) == (0, 0, "no difference")


def test_the_interval_is_that_of_a_paired_difference_of_proportions():
    generator = np.random.default_rng(0)
    right = {"a": generator.random((1, 4000)) < 0.8}
    left = {"a": right["a"] ^ (generator.random((1, 4000)) < 0.05)}
    found = paired_difference(left, right)
    values = 100.0 * (left["a"][0].astype(float) - right["a"][0])
    half = 1.96 * values.std(ddof=1) / np.sqrt(4000)
    assert found.mean == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05)


@pytest.mark.parametrize("units", [2, 3, 8])
def test_the_interval_of_a_few_units_is_students(units):
    generator = np.random.default_rng(0)
    values = generator.normal(size=(600, 1, units))
    found = [interval_of({"groups": each}) for each in values]
    half = stdtrit(units - 1, 0.975) * values[0].std(ddof=1) / np.sqrt(units)
    assert found[0].high - found[0].mean == pytest.approx(half)
    assert 0.03 < np.mean([each.low > 0 or each.high < 0 for each in found]) < 0.07


def test_the_interval_of_few_units_of_two_groups_is_welchs():
    values = np.array([[1.0, 4.0, 2.0, 6.0]])
    found = interval_of({"one": values, "two": values - 9})
    assert found.mean == pytest.approx(values.mean() - 4.5)
    assert found.high - found.mean == pytest.approx(stdtrit(6, 0.975) * values.std(ddof=1) / np.sqrt(8))


def test_the_interval_of_few_units_and_seeds_adds_both_spreads_with_satterthwaites_degrees():
    one = np.array([[0.0, 0, 0], [0, 2, 7], [0, 4, 14]])  # seeds average 0, 3, 6; units 0, 2, 7
    two = np.array([[-1.0, 7], [3, 3], [1, 5]])  # seeds average 3, 3, 3; units 1, 5
    found = interval_of({"one": one, "two": two})
    assert (found.mean, found.images, found.seeds) == (3, 5, 3)
    # Variances of means of 3 and 2 units, with half the weight each, and of 3 seeds, which average 1.5, 3, 4.5.
    of_one, of_two, of_seeds = 13 / 3 / 4, 8 / 2 / 4, 2.25 / 3
    whole = of_one + of_two + of_seeds
    free = whole**2 / (of_one**2 / 2 + of_two**2 / 1 + of_seeds**2 / 2)
    assert found.high - 3 == pytest.approx(stdtrit(free, 0.975) * whole**0.5)
    assert 3 - found.low == pytest.approx(found.high - 3)


def test_three_seeds_have_the_width_that_so_few_need():
    found = interval_of({"a": np.repeat([[-1.0], [0.0], [1.0]], 40, axis=1)})
    assert found.high == pytest.approx(1.5**0.5 * stdtrit(2, 0.975) / ndtri(0.975)), "all draws of the highest seed"


def test_tasks_of_as_many_images_are_drawn_each_by_itself():
    values = np.random.default_rng(0).normal(size=(1, 500))
    one, two = interval_of({"a": values}), interval_of({"a": values, "b": values})
    assert two.high - two.low == pytest.approx((one.high - one.low) / 2**0.5, rel=0.05)
    assert interval_of({"a": values}, seed=1) != one, "drawn by the seed"


def test_one_row_stands_for_every_seed_where_nothing_was_trained():
    left = {"a": np.random.default_rng(0).random((3, 60)) < 0.7}
    once, thrice = {"a": np.ones((1, 60), bool)}, {"a": np.ones((3, 60), bool)}
    assert paired_difference(left, once) == paired_difference(left, thrice)


def test_outcomes_follow_the_interval():
    assert Difference(1, 0.2, 2, 10, 1).outcome() == "seen"
    assert Difference(-1, -2, -0.2, 10, 1).outcome() == "opposite seen"
    assert Difference(0.1, -0.3, 0.4, 10, 1).outcome() == "no difference"
    assert Difference(0.1, -0.3, 0.6, 10, 1).outcome() == "undecided"
    assert Difference(0.1, -0.3, 0.6, 10, 1).outcome(margin=1) == "no difference"


def test_what_cannot_be_paired_is_refused():
    some = {"a": np.ones((1, 5), bool)}
    with pytest.raises(DataError, match="no task with images in common"):
        paired_difference(some, {"b": some["a"]})
    with pytest.raises(DataError, match="5 images on one side and 4"):
        paired_difference(some, {"a": np.ones((1, 4), bool)})
    with pytest.raises(DataError, match="3 seeds on one side and 2"):
        paired_difference({"a": np.ones((3, 5), bool)}, {"a": np.ones((2, 5), bool)})
