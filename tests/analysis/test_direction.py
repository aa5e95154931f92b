"""Shifts as a head sees them, and arrays written as text."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from engine.analysis.direction import directions
from engine.analysis.written import read_array, write_array
from engine.errors import StoreError, UnpairedFeatures


def made(count=40, dim=12, classes=5, seed=0):
    random = np.random.default_rng(seed)
    weight = random.normal(size=(classes, dim))
    weight /= np.linalg.norm(weight, axis=1, keepdims=True)
    labels = random.integers(0, classes, count)
    expert = 3 * weight[labels] + 0.3 * random.normal(size=(count, dim))
    return expert + random.normal(size=(count, dim)), expert, labels, weight


def test_a_push_is_what_the_margin_lost():
    state, expert, labels, weight = made()
    found = directions(state, expert, labels, weight, 10.0)
    np.testing.assert_allclose(found.expert_margin - found.margin, found.push, atol=1e-9)
    scores = 10 * state / np.linalg.norm(state, axis=1, keepdims=True) @ weight.T
    rows = np.arange(len(labels))
    np.testing.assert_allclose(found.margin, scores[rows, labels] - scores[rows, found.rival])
    assert (found.rival != labels).all()
    assert ((found.margin < 0) == (scores.argmax(1) != labels)).all()


def test_a_shift_outside_of_the_heads_span_changes_no_verdict():
    state, expert, labels, weight = made()
    found = directions(state, expert, labels, weight, 10.0)
    assert found.rank == 4
    assert ((found.along <= found.inside + 1e-12) & (found.inside <= 1 + 1e-12)).all()
    basis = np.linalg.qr((weight[1:] - weight[0]).T)[0]
    unit, start = (values / np.linalg.norm(values, axis=1, keepdims=True) for values in (state, expert))
    inside = (((unit - start) @ basis) ** 2).sum(1) / ((unit - start) ** 2).sum(1)
    np.testing.assert_allclose(found.inside, inside, atol=1e-9)
    random = np.random.default_rng(1).normal(size=(4000, 12))
    flat = (((random @ basis) ** 2).sum(1) / (random**2).sum(1)).mean()
    assert flat == pytest.approx(found.rank / 12, abs=0.01)


def test_the_control_takes_another_images_shift():
    state, expert, labels, weight = made()
    moved = state.copy()
    moved[:] = expert
    moved[3] = state[3]  # one image moves
    found = directions(moved, expert, labels, weight, 10.0)
    assert found.push[3] != 0
    assert found.chance[3] == 0
    assert np.count_nonzero(found.chance) == 1
    assert not found.length[np.arange(40) != 3].any()


def test_one_image_alone_has_no_control():
    state, expert, labels, weight = made(count=1)
    assert np.isnan(directions(state, expert, labels, weight, 10.0).chance).all()
    assert not np.isnan(directions(*made(count=2)[:3], weight, 10.0).chance).any()


def test_every_number_of_an_image_by_hand():
    """Two classes on axes of their own, a third between them; no dimension but the first two is seen by the head."""
    weight = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.6, 0.8, 0.0]])
    expert = np.array([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    state = np.array([[-3.0, 0.0, -4.0], [0.0, -0.6, 0.8]])  # of unit length (−0.6, 0, −0.8) and (0, −0.6, 0.8)
    found = directions(state, expert, np.array([0, 2]), weight, 5.0)
    assert found.rank == 2
    assert found.rival.tolist() == [1, 0]  # scores 5 · (−0.6, 0, −0.36) and 5 · (0, −0.6, −0.48)
    np.testing.assert_allclose(found.length, [np.sqrt(1.6**2 + 0.8**2), 1.0])
    np.testing.assert_allclose(found.push, 5 * np.array([1.6, 0.48]))
    np.testing.assert_allclose(found.chance, 5 * np.array([-0.6, -0.64]))  # of the other's shift
    np.testing.assert_allclose(found.inside, [1.6**2 / 3.2, 0.36])
    np.testing.assert_allclose(found.along, [1.6**2 / 2 / 3.2, 0.48**2 / (0.4**2 + 0.8**2)])
    np.testing.assert_allclose(found.margin, [-3.0, -2.4])
    np.testing.assert_allclose(found.expert_margin, [5.0, 0.0])


def test_the_rival_is_a_wrong_class_even_where_every_logit_is_negative():
    weight = np.array([[0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
    found = directions(np.array([[-1.0, -1.0]]), np.array([[1.0, 1.0]]), np.array([2]), weight, 1.0)
    assert found.rival.tolist() == [0]
    assert found.margin[0] == pytest.approx(0.4 / np.sqrt(2))


def test_images_in_other_numbers_are_refused():
    state, expert, labels, weight = made()
    with pytest.raises(UnpairedFeatures):
        directions(state[1:], expert, labels, weight, 10.0)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    arrays(
        st.sampled_from([np.bool_, np.uint8, np.int16, np.int32, np.float32]),
        array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9),
    )
)
def test_arrays_come_back_as_they_were_written(values):
    found = read_array(write_array(values))
    assert found.dtype == values.dtype
    assert found.shape == values.shape
    assert found.tobytes() == values.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "O"},
        {"dtype": "nonsense"},
        {"shape": [10**9]},
        {"shape": [4]},
        {"shape": [-3]},
        {"data": "!!"},
        {"data": "AAAA"},
        {"data": None},
    ],
    ids=str,
)
def test_damaged_arrays_are_refused(change):
    document = {**write_array(np.arange(3, dtype=np.int32)), **change}
    with pytest.raises(StoreError, match="cannot be read"):
        read_array(document)
