"""Properties that hold for every input of the analysis functions."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.analysis import accuracy, bias, neighbours, samples
from engine.analysis.projection import sample_rows
from engine.analysis.trust import trust

fast = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**32 - 1)
sizes = st.tuples(st.integers(2, 12), st.integers(1, 8))


def matrices(seed, shape, count=2):
    return np.random.default_rng(seed).normal(size=(count, *shape))


@fast
@given(seeds, sizes)
def test_equal_features_have_no_bias(seed, shape):
    (z,) = matrices(seed, shape, 1)
    assert bias.l1(z, z) == bias.l2(z, z) == 0
    assert abs(bias.cosine(z, z)) < 1e-12
    assert abs(bias.cka(z, z) - 1) < 1e-9


@fast
@given(seeds, sizes)
def test_biases_are_symmetric_and_bounded(seed, shape):
    z, other = matrices(seed, shape)
    for measure in bias.MEASURES.values():
        assert np.isclose(measure(z, other), measure(other, z), atol=1e-12)
    assert 0 < bias.l1(z, other) <= bias.l2(z, other) + 1e-12
    assert bias.l2(z, other) <= bias.l1(z, other) * shape[1] + 1e-9
    assert 0 <= bias.cosine(z, other) <= 2
    assert 0 <= bias.cka(z, other) <= 1


@fast
@given(seeds, sizes, st.floats(0.1, 10), st.floats(-5, 5))
def test_cka_ignores_scale_shift_and_rotation(seed, shape, scale, shift):
    z, other = matrices(seed, shape)
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(shape[1], shape[1])))
    assert np.isclose(bias.cka(scale * z @ rotation + shift, other), bias.cka(z, other), atol=1e-8)


@fast
@given(seeds, sizes, st.integers(1, 4))
def test_classes_add_up_to_the_whole(seed, shape, classes):
    z, other = matrices(seed, shape)
    labels = np.random.default_rng(seed).integers(0, classes, shape[0])
    parts = bias.by_class(bias.l1, z, other, labels, classes)
    counts = np.bincount(labels, minlength=classes)
    assert [part is None for part in parts] == [count == 0 for count in counts]
    total = sum(part * count for part, count in zip(parts, counts, strict=True) if part is not None)
    assert np.isclose(total / shape[0], bias.l1(z, other))


@fast
@given(seeds, sizes, st.integers(2, 5), st.floats(0.5, 100))
def test_predictions_do_not_depend_on_scales(seed, shape, classes, scale):
    (z,) = matrices(seed, shape, 1)
    weight = np.random.default_rng(seed).normal(size=(classes, shape[1]))
    scores = accuracy.logits(z, weight, scale)
    assert (accuracy.predictions(scores) == accuracy.predictions(accuracy.logits(z * 3.7, weight, 1.0))).all()
    np.testing.assert_allclose(accuracy.probabilities(scores).sum(1), 1)
    assert (accuracy.entropy(scores) >= -1e-9).all()
    assert (accuracy.entropy(scores) <= np.log(classes) + 1e-9).all()


@fast
@given(seeds, st.integers(1, 30), st.integers(1, 5))
def test_confusion_counts_every_image_once(seed, n, classes):
    generator = np.random.default_rng(seed)
    predicted, labels = generator.integers(0, classes, (2, n))
    matrix = accuracy.confusion(predicted, labels, classes)
    assert matrix.sum() == n
    assert np.isclose(100 * np.trace(matrix) / n, accuracy.top1(predicted, labels))


@fast
@given(st.floats(0, 100), st.integers(1, 10_000))
def test_intervals_hold_the_accuracy_and_narrow_with_n(percent, n):
    low, high = accuracy.wilson_interval(percent, n)
    assert 0 <= low <= percent + 1e-9
    assert percent - 1e-9 <= high <= 100
    wider = accuracy.wilson_interval(percent, n, 0.99)
    assert wider[0] <= low + 1e-9
    assert high <= wider[1] + 1e-9


@fast
@given(seeds, st.integers(2, 12), st.integers(2, 5))
def test_margins_are_positive_where_predictions_are_right(seed, n, classes):
    generator = np.random.default_rng(seed)
    scores, labels = generator.normal(size=(n, classes)), generator.integers(0, classes, n)
    right = accuracy.predictions(scores) == labels
    assert ((samples.margin(scores, labels) > 0) == right).all()


@fast
@given(seeds, sizes, st.sampled_from(["cosine", "euclidean"]))
def test_neighbours_are_the_others_in_order(seed, shape, metric):
    (z,) = matrices(seed, shape, 1)
    rows, away = neighbours.nearest_neighbours(z, 0, shape[0], metric)
    assert sorted(rows) == list(range(1, shape[0]))
    assert (np.diff(away) >= 0).all()


@fast
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(1, 40), min_size=1), st.integers(0, 9), seeds
)
def test_samples_use_as_many_images_as_there_are(sizes, more, seed):
    wanted = len(sizes) + 7 * more
    rows = sample_rows(sizes, wanted, seed)
    assert sum(map(len, rows.values())) == min(wanted, sum(sizes.values()))
    for task, found in rows.items():
        assert len(set(found)) == len(found) <= sizes[task]


@fast
@given(seeds, st.integers(4, 40))
def test_trust_is_a_share(seed, n):
    z, other = matrices(seed, (n, 3))
    found = trust(z, other[:, :2])
    assert 0 <= found["neighbour_overlap"] <= 1
    assert -1e-9 <= found["trustworthiness"] <= 1
