"""Accuracies, biases, sample tables, salience and neighbours on cases worked out by hand."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from engine.analysis import accuracy, bias, neighbours, outliers, salience, samples, worklists
from engine.analysis.clusters import neighbours_of_own_class, silhouette
from engine.analysis.spread import LEVELS, spread_of
from engine.errors import DataError, MergeError, UnpairedFeatures

HEAD = SimpleNamespace(weight=np.eye(3), scale=100.0)


def test_the_head_normalises_features_and_scales():
    scores = accuracy.logits(np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]]), np.eye(3), 100.0)
    np.testing.assert_allclose(scores, [[60.0, 80.0, 0.0], [0.0, 0.0, 0.0]])
    assert accuracy.predictions(scores).tolist() == [1, 0]


def test_probabilities_and_entropy():
    scores = np.array([[0.0, 0.0], [1000.0, 0.0]])
    np.testing.assert_allclose(accuracy.probabilities(scores), [[0.5, 0.5], [1.0, 0.0]])
    np.testing.assert_allclose(accuracy.entropy(scores), [np.log(2), 0.0])
    uneven = np.array([[np.log(3), 0.0], [5.0, 5.0 + np.log(3)]])  # 3/4 and 1/4, wherever they lie
    np.testing.assert_allclose(accuracy.entropy(uneven), 2 * [2 * np.log(2) - 0.75 * np.log(3)])


def test_top1_and_confusion():
    predicted, labels = np.array([0, 1, 2, 1]), np.array([0, 1, 1, 1])
    assert accuracy.top1(predicted, labels) == 75.0
    assert accuracy.confusion(predicted, labels, 3).tolist() == [[1, 0, 0], [0, 2, 1], [0, 0, 0]]
    with pytest.raises(DataError, match="3 classes"):
        accuracy.confusion(predicted, labels + 2, 3)
    with pytest.raises(DataError, match="4 predictions and 3 labels"):
        accuracy.top1(predicted, labels[:3])
    with pytest.raises(DataError, match="0 predictions"):
        accuracy.top1(predicted[:0], labels[:0])


def test_wilson_interval():
    low, high = accuracy.wilson_interval(80.0, 100)  # published example values
    assert (low, high) == (pytest.approx(71.11, abs=0.01), pytest.approx(86.66, abs=0.01))
    assert accuracy.wilson_interval(0.0, 10) == (pytest.approx(0.0, abs=1e-9), pytest.approx(27.75, abs=0.01))
    assert accuracy.wilson_interval(100.0, 10)[1] == pytest.approx(100.0)
    assert accuracy.wilson_interval(100.0, 1) == (pytest.approx(20.65, abs=0.01), pytest.approx(100.0))
    with pytest.raises(DataError):
        accuracy.wilson_interval(50.0, 0)


def test_the_interval_of_a_mean_over_tasks_is_wilsons_of_one_and_covers_of_several():
    for right, n in ((16, 16), (19, 20), (0, 30), (200, 300)):
        assert accuracy.mean_interval([(100 * right / n, n)]) == pytest.approx(
            accuracy.wilson_interval(100 * right / n, n)
        )
    low, high = accuracy.mean_interval([(100.0, 16), (95.0, 20)])
    assert (low, high) == pytest.approx((97.5 - np.hypot(100 - 80.639, 95 - 76.387) / 2, 97.5 + 4.1118 / 2), abs=1e-2)
    random, truth, sizes = np.random.default_rng(0), np.array([0.97, 0.9, 0.6]), np.array([20, 40, 16])
    drawn = [100 * random.binomial(sizes, truth) / sizes for _ in range(500)]
    found = [accuracy.mean_interval(zip(percents, sizes, strict=True)) for percents in drawn]
    assert 0.92 < np.mean([low <= 100 * truth.mean() <= high for low, high in found]) < 0.99
    with pytest.raises(DataError, match="no tasks"):
        accuracy.mean_interval([])


def test_deltas_and_recovered_share():
    assert accuracy.deltas({"a": 60.0, "b": None, "c": 1.0}, {"a": 55.0, "b": 3.0}) == {"a": 5.0, "b": None, "c": None}
    assert accuracy.recovered_share(50.0, 80.0, 90.0) == 75.0
    assert accuracy.recovered_share(50.0, 40.0, 90.0) == -25.0
    assert accuracy.recovered_share(90.0, 95.0, 90.0) is None
    assert accuracy.recovered_share(89.5, 89.75, 90.0) == 50.0


def test_averages():
    domains = {"a": "in", "b": "in", "c": "out"}
    found = accuracy.averages({"a": 60.0, "b": 40.0, "c": 75.0}, domains)
    assert found == {"in": 50.0, "out": 75.0, "h_score": 60.0}
    apart = accuracy.averages({"a": 60.0, "b": 40.0, "c": 75.0, "d": 0.0}, {**domains, "d": "apart"})
    assert apart == found, "no average takes a task that stands apart"
    assert accuracy.averages({"a": 60.0, "b": None}, domains) == {"in": 60.0, "out": None, "h_score": None}
    assert accuracy.h_score(0.0, 0.0) == 0.0


STATE = np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]])
EXPERT = np.array([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]])


def test_biases_by_hand():
    assert bias.l1(STATE, EXPERT) == pytest.approx(14 / 6)
    assert bias.l2(STATE, EXPERT) == pytest.approx(10 / 3)
    assert bias.cosine(STATE, EXPERT) == pytest.approx(2 / 3)
    np.testing.assert_allclose(bias.sample_shift(STATE, EXPERT), [0, 5, 5])
    zeros = np.zeros((2, 2))
    assert bias.cosine(zeros, zeros) == 0.0
    assert bias.cosine(-EXPERT[:1], EXPERT[:1]) == pytest.approx(2.0)


def test_biases_of_every_image_by_hand():
    state, expert = np.array([[3.0, 4.0], [2.0, 0.0], [0.0, 0.5]]), np.array([[7.0, 0.0], [0.0, 0.0], [0.0, 3.0]])
    assert bias.sample_l1(state, expert).tolist() == [4, 1, 1.25]
    assert bias.sample_cosine(state, expert) == pytest.approx([1 - 0.6, 1, 0])
    assert bias.sample_shift(state, expert) == pytest.approx([32**0.5, 2, 2.5])
    nearly = np.full((1, 3), 0.1)
    assert 0 <= bias.sample_cosine(nearly, 3 * nearly)[0] < 1e-12, "never below 0"


def test_cka_of_features_that_do_not_vary_is_undefined_and_of_turned_ones_1():
    spread = np.random.default_rng(0).normal(size=(7, 3))
    turned = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    assert bias.cka(spread, 5 * spread @ turned + 2) == pytest.approx(1, abs=1e-12)
    assert bias.cka(spread, spread) <= 1
    assert np.isnan(bias.cka(spread, np.ones((7, 3))))


@pytest.mark.parametrize("shape", [(5, 9), (9, 5)])
def test_cka_equals_its_definition_with_centring_matrices(shape):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(2, *shape))
    n = len(x)
    centring = np.eye(n) - 1 / n
    k, m = x @ x.T, y @ y.T

    def hsic(a, b):
        return np.trace(a @ centring @ b @ centring) / (n - 1) ** 2

    want = hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))
    assert bias.cka(x, y) == pytest.approx(want, rel=1e-12)


def test_biases_refuse_what_is_not_paired():
    for measure in (*bias.MEASURES.values(), bias.sample_shift):
        with pytest.raises(UnpairedFeatures, match=r"\(3, 2\) cannot be compared .* \(2, 2\)"):
            measure(STATE, EXPERT[:2])
        with pytest.raises(UnpairedFeatures, match="0 rows"):
            measure(STATE[:0], EXPERT[:0])
    with pytest.raises(UnpairedFeatures, match="2 labels were given for 3"):
        bias.by_class(bias.l1, STATE, EXPERT, np.array([0, 1]), 2)


def test_bias_by_class_and_part_of_a_report():
    labels = np.array([0, 2, 2])
    assert bias.by_class(bias.l1, STATE, EXPERT, labels, 4) == (0.0, None, 3.5, None)
    assert bias.by_class(bias.cka, STATE, EXPERT, labels, 1) == (None,)
    part = bias.bias_of({"a": STATE, "b": STATE}, {"a": EXPERT}, {"a": labels}, {"a": 3})
    assert set(part) == {"l1", "l2", "cosine", "cka", "l1_by_class"}
    assert part["l2"] == {"a": pytest.approx(10 / 3)}
    assert part["l1_by_class"] == {"a": (0.0, None, 3.5)}
    assert bias.bias_of({"a": STATE[:1]}, {"a": EXPERT[:1]})["cka"] == {"a": None}


@pytest.fixture
def table():
    """Three images: labels 0, 1, 2; the expert is right everywhere."""
    states = {
        "expert": np.eye(3),
        "merged": np.array([[1.0, 0, 0], [3.0, 4.0, 0.0], [1.0, 0, 0]]),
        "surgery": np.array([[0.0, 1, 0], [0.0, 1, 0], [0.0, 0, 1]]),
    }
    sigma = {"surgery": np.array([0.1, 0.2, 0.3])}
    rows = np.array([7, 8, 9])
    return samples.sample_table("a", states, HEAD, np.arange(3), rows, "evaluate", states["expert"], sigma)


def test_sample_table(table):
    assert tuple(table.columns) == samples.COLUMNS
    assert len(table) == 9
    merged = table[table["state"] == "merged"].set_index("index")
    assert merged["prediction"].tolist() == [0, 1, 0]
    np.testing.assert_allclose(merged["margin"], [1.0, 0.2, -1.0], atol=1e-12)
    np.testing.assert_allclose(merged["shift"], [0, np.sqrt(18), np.sqrt(2)])
    np.testing.assert_allclose(merged.loc[8, "probability"], 1 / (1 + np.exp(-20) + np.exp(-80)), rtol=1e-12)
    assert merged["sigma"].isna().all()
    assert table[table["state"] == "surgery"]["sigma"].tolist() == [0.1, 0.2, 0.3]
    assert set(table["split"]) == {"evaluate"}


def test_correctness_is_by_image_and_seed_whatever_the_order_of_rows(table):
    """Merged is right on images 7 and 8 of 7, 8 and 9; with the second seed on image 9 alone."""
    second = table.copy()
    merged = second["state"] == "merged"
    second.loc[merged, "prediction"] = [1, 0, 2]
    second = second.iloc[::-1]
    other = table.assign(task="only here")
    adapted = table.assign(split="adapt", prediction=5, index=table["index"] + 10)
    found = samples.correctness([pd.concat([adapted, table, other]), second], "merged")
    assert list(found) == ["a"]
    assert found["a"].index.tolist() == [7, 8, 9]
    assert found["a"].to_numpy().tolist() == [[True, False], [True, False], [False, True]]
    assert samples.correctness([table], "nobody") == {}


def test_margin_is_positive_exactly_where_the_label_wins():
    scores = np.array([[1.0, 2.0, 0.0], [5.0, 2.0, 5.0]])
    np.testing.assert_allclose(samples.margin(scores, np.array([1, 0])), [1.0, 0.0])
    np.testing.assert_allclose(samples.margin(scores, np.array([2, 1])), [-2.0, -3.0])
    assert np.isnan(samples.margin(scores[:, :1], np.array([0, 0]))).all()


def test_images_that_two_models_judge_differently(table):
    right = {
        state: (rows["prediction"] == rows["label"]).to_numpy() for state, rows in table.groupby("state", sort=False)
    }
    every, first = np.ones(3, bool), np.array([True, False, False])
    assert worklists.lost(right["expert"], right["merged"], every).tolist() == [2]
    assert worklists.gained(right["merged"], right["surgery"], every).tolist() == [2]
    assert worklists.lost(right["merged"], right["surgery"], every).tolist() == [0]
    assert worklists.lost(right["expert"], right["merged"], first).tolist() == []


def test_the_highest_known_values_in_the_order_of_their_rows():
    values = np.array([1.0, np.nan, 3.0, 2.0, 3.0, 9.0])
    shown = np.array([True] * 5 + [False])
    assert worklists.highest(values, shown, 2).tolist() == [2, 4]
    assert worklists.highest(values, shown, 1).tolist() == [2]
    assert worklists.highest(values, shown, 9).tolist() == [0, 2, 3, 4]


def test_sample_table_without_an_expert_and_with_wrong_counts():
    alone = samples.sample_table("a", {"merged": np.eye(3)}, HEAD, np.arange(3), np.arange(3), ["adapt"] * 3)
    assert alone["shift"].isna().all()
    assert alone["split"].tolist() == ["adapt"] * 3
    with pytest.raises(DataError, match="3 features of 'merged', 2 labels and 3 indices"):
        samples.sample_table("a", {"merged": np.eye(3)}, HEAD, np.arange(2), np.arange(3), "adapt")


def test_salience_part():
    part = salience.salience_part(
        ["conv", "attn", "mlp"],
        [2**18, 2**19, 2**18],
        {"x": [0.1, 0.3, 0.2]},
        {"x": [False, True, False]},
        [False, True, True],
        eta=0.7,
        applied=True,
    )
    assert part["kept_layers"] == 2
    assert part["kept_parameters_percent"] == 75.0
    assert part["kept_megabytes"] == 3.0
    with pytest.raises(MergeError, match="mask of 'x' has 1 entries for 3 layers"):
        salience.salience_part(["a", "b", "c"], [1, 1, 1], {}, {"x": [True]}, [True] * 3, 0.5, False)


def test_salience_part_fits_the_report():
    from engine.report import SaliencePart

    part = salience.salience_part(["a"], [4], {"x": [np.float32(1)]}, {"x": [np.True_]}, [np.True_], 0.5, False)
    assert SaliencePart.model_validate(part).kept_layers == 1


def test_neighbours():
    features = np.array([[1.0, 0.0], [10.0, 0.1], [0.0, 1.0], [1.1, 0.0], [0.0, 0.0]])
    rows, away = neighbours.nearest_neighbours(features, 0, 2, "cosine")
    assert rows.tolist() == [3, 1]
    assert away[0] == pytest.approx(0.0)
    rows, away = neighbours.nearest_neighbours(features, 0, 9, "euclidean")
    assert rows.tolist() == [3, 4, 2, 1]
    np.testing.assert_allclose(away, [0.1, 1.0, np.sqrt(2), np.hypot(9, 0.1)])
    assert neighbours.distances(features[4:], features[:1])[0, 0] == 1.0
    with pytest.raises(DataError, match="no image 5"):
        neighbours.nearest_neighbours(features, 5, 1)


def test_neighbours_of_any_image_are_by_direction_however_short_its_feature():
    features = np.array([[0.3, 0.4], [0.0, 0.2], [0.6, 0.8], [9.0, 0.0]])
    np.testing.assert_allclose(neighbours.distances(features[:1], features), [[0.0, 0.2, 0.0, 0.4]], atol=1e-12)
    rows, away = neighbours.nearest_neighbours(features, 2, 3)
    assert rows.tolist() == [0, 1, 3]
    np.testing.assert_allclose(away, [0.0, 0.2, 0.4], atol=1e-12)
    close = np.array([[1e4, 0.0], [1e4, 1e-7]])
    assert np.isfinite(neighbours.distances(close, close, "euclidean")).all()


def test_silhouette_and_neighbours_of_separated_and_of_mixed_classes():
    rng = np.random.default_rng(0)
    directions = np.repeat(np.eye(3), 20, axis=0)
    labels = np.repeat(np.arange(3), 20)
    apart = directions * rng.uniform(1, 9, (60, 1)) + 0.01 * rng.normal(size=(60, 3))
    assert silhouette(apart, labels).mean() > 0.95  # lengths do not count
    assert neighbours_of_own_class(apart, labels).mean() == 100
    mixed = rng.normal(size=(60, 3))
    assert abs(silhouette(mixed, labels).mean()) < 0.1
    assert 15 < neighbours_of_own_class(mixed, labels).mean() < 50
    pair = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [1.0, 0.05]])
    assert neighbours_of_own_class(pair, np.array([0, 0, 1, 1]), 1).mean() == 0
    assert neighbours_of_own_class(pair, np.array([0, 0, 1, 0]), 9).mean() == pytest.approx(100 * 6 / 12)
    with pytest.raises(DataError, match="60 labels of 1 classes"):
        silhouette(mixed, labels * 0)


def test_a_right_spread_covers_what_it_promises_and_half_of_it_does_not():
    rng = np.random.default_rng(0)
    sigma = rng.uniform(0.5, 2, (400, 8)) * np.linspace(1, 3, 8)
    residual = sigma * rng.normal(size=sigma.shape)
    right, narrow = spread_of(sigma, residual), spread_of(sigma / 2, residual)
    for level in LEVELS:
        assert right["coverage"][str(level)] == pytest.approx(level, abs=3)
    assert narrow["coverage"]["95"] == pytest.approx(67, abs=3)  # a standard deviation in place of two
    assert right["groups"]["sigma"] == sorted(right["groups"]["sigma"])
    np.testing.assert_allclose(right["groups"]["residual"], right["groups"]["sigma"], rtol=0.2)
    np.testing.assert_allclose(right["dimensions"]["residual"], right["dimensions"]["sigma"], rtol=0.2)
    assert len(right["dimensions"]["sigma"]) == 8
    with pytest.raises(UnpairedFeatures):
        spread_of(sigma, residual[1:])


def test_coverage_and_groups_of_few_numbers_are_counted():
    """A normal variable lies within 0.674, 1.282, 1.645, 1.960 and 2.576 deviations in 50, 80, 90, 95 and 99 %."""
    bounds, sigma = np.array([0.674490, 1.281552, 1.644854, 1.959964, 2.575829]), np.full((10, 1), 3.0)
    edges = np.concatenate([bounds - 1e-4, bounds + 1e-4])[:, None]
    covered = {"50": 10.0, "80": 30.0, "90": 50.0, "95": 70.0, "99": 90.0}
    assert spread_of(sigma, 3 * edges)["coverage"] == covered
    assert set(spread_of(0 * sigma, 0 * sigma)["coverage"].values()) == {100.0}
    rising = np.arange(1.0, 21).reshape(2, 10)[:, ::-1]
    groups = spread_of(rising, -2 * rising)["groups"]
    pairs = [((low**2 + (low + 1) ** 2) / 2) ** 0.5 for low in range(1, 20, 2)]
    assert groups["sigma"] == pytest.approx(pairs)
    assert groups["residual"] == pytest.approx(2 * np.array(pairs))
    assert len(spread_of(rising[:, :2], rising[:, :2])["groups"]["sigma"]) == 4, "as many as there are numbers"


def test_auroc_is_the_chance_that_an_outside_score_is_higher():
    generator = np.random.default_rng(4)
    inside, outside = generator.integers(0, 6, 40).astype(float), generator.integers(2, 9, 30).astype(float)
    above = (outside[:, None] > inside) + 0.5 * (outside[:, None] == inside)
    assert outliers.auroc(inside, outside) == pytest.approx(above.mean(), abs=1e-12)
    assert outliers.auroc(np.ones(3), np.ones(4)) == 0.5
    with pytest.raises(DataError, match="found 3 and 0"):
        outliers.auroc(np.ones(3), np.ones(0))
