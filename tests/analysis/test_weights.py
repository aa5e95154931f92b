"""Measures of weights against numbers computed by hand."""

import math

import numpy as np
import pytest
import torch

from engine.analysis.interpolation import Between, accuracy_and_loss, barrier
from engine.analysis.weights import Geometry, geometry, kept, singular_values
from engine.errors import CheckpointError
from engine.weights import LazyTaskVectors, Memory
from engine.zoo.encoders.heads import ZeroShotHead

BASE = {"a": torch.tensor([3.0, 0.0, 4.0, 0.0]), "b": torch.tensor(2.0)}
MOVES = {"first": ([1.0, -2.0, 0.0, 2.0], 0.5), "second": ([1.0, 1.0, 0.0, -2.0], -0.5)}


@pytest.fixture
def vectors():
    experts = {
        name: Memory({"a": BASE["a"] + torch.tensor(move), "b": BASE["b"] + scalar})
        for name, (move, scalar) in MOVES.items()
    }
    return LazyTaskVectors(Memory(BASE), experts)


def test_geometry_by_hand(vectors):
    found = geometry(Memory(BASE), vectors)
    np.testing.assert_allclose(found.inner[0], [[9, 1 - 2 - 4], [-5, 6]])
    np.testing.assert_allclose(found.signed[0], [[3, 1 - 1 - 1], [-1, 3]])
    np.testing.assert_allclose(found.both[0], [[3, 3], [3, 3]])
    # the sum is (2, −1, 0, 0): the first two entries of the first expert agree, the first of the second
    np.testing.assert_allclose(found.elected, [[2, 1], [0, 0]])
    np.testing.assert_allclose(found.absolute, [[5, 4], [0.5, 0.5]])
    np.testing.assert_allclose(found.absolute_sum, [3, 0])
    np.testing.assert_allclose(found.base, [25, 4])
    np.testing.assert_allclose(found.size, [4, 1])


def test_what_is_kept_by_hand(vectors):
    merged = {"a": torch.tensor([0.5, -1.0, 0.0, 0.0]), "b": torch.tensor(-1.0)}
    found = kept(vectors, lambda name, expert: merged[name])
    np.testing.assert_allclose(found.moved, [[3, 3], [1, 1]])
    np.testing.assert_allclose(found.zeroed, [[1, 1], [0, 0]])
    np.testing.assert_allclose(found.same, [[2, 1], [0, 1]])
    np.testing.assert_allclose(found.flipped, [[0, 1], [1, 0]])
    np.testing.assert_allclose(found.kept_square, [[5, 1], [0, 0.25]])
    np.testing.assert_allclose(found.square, [[9, 6], [0.25, 0.25]])
    np.testing.assert_allclose(found.inner, [[2.5, -0.5], [-0.5, 0.5]])
    np.testing.assert_allclose(found.merged_square, [[1.25, 1.25], [1, 1]])


def test_layers_wider_than_a_piece_are_summed_up():
    size = 2**16 + 3
    base = Memory({"w": torch.zeros(size)})
    vectors = LazyTaskVectors(base, {"x": Memory({"w": torch.ones(size)}), "y": Memory({"w": -torch.ones(size)})})
    found = geometry(base, vectors)
    np.testing.assert_array_equal(found.inner[0], [[size, -size], [-size, size]])
    np.testing.assert_array_equal(found.signed[0], [[size, -size], [-size, size]])
    assert kept(vectors, lambda name, expert: torch.ones(size)).flipped.tolist() == [[0, size]]


@pytest.mark.parametrize("shape", [(3, 2), (2, 3)])
def test_singular_values_of_a_scaled_identity(shape):
    matrix = torch.zeros(shape)
    matrix[0, 1], matrix[1, 0] = -5.0, 2.0
    np.testing.assert_allclose(singular_values(matrix), [5, 2], atol=1e-12)


def test_stored_sums_come_back_and_a_missing_one_is_named(vectors):
    arrays = geometry(Memory(BASE), vectors).arrays()
    np.testing.assert_array_equal(Geometry.of(arrays).inner, arrays["inner"])
    with pytest.raises(CheckpointError, match="'signed'"):
        Geometry.of({name: value for name, value in arrays.items() if name != "signed"})


def test_between_two_models():
    start = Memory({"w": torch.tensor([0.0, 1.0]), "count": torch.tensor([7])})
    end = Memory({"w": torch.tensor([4.0, 3.0]), "count": torch.tensor([9])})
    assert Between(start, end, 0.25).tensor("w").tolist() == [1.0, 1.5]
    assert Between(start, end, 1).tensor("w").tolist() == [4.0, 3.0]
    assert Between(start, end, 1).tensor("count").tolist() == [7]
    bare = Between(Memory({"w": torch.ones(1, dtype=torch.float16)}), Memory({"w": torch.zeros(1)}), 0)
    assert bare.tensor("w").dtype == bare.dtype("w") == torch.float32
    half = Between(Memory({"w": torch.ones(1, dtype=torch.float16)}), Memory({"w": torch.zeros(1)}), 0.5)
    assert (half.dtype("w"), half.tensor("w").dtype, half.tensor("w").item()) == (torch.float32, torch.float32, 0.5)


def test_a_barrier_is_measured_from_the_line_between_the_ends():
    assert barrier([0, 0.5, 1], [1.0, 3.0, 2.0]) == pytest.approx(1.5)
    assert barrier([0, 0.25, 1], [4.0, 3.5, 0.0]) == pytest.approx(0.5)
    assert barrier([0, 0.5, 1], [2.0, 0.5, 2.0]) == 0.0
    assert barrier([0, 0.25, 1], [4.0, 3.5, 0.0], "mean") == pytest.approx(2.0)


def test_accuracy_and_loss_by_hand():
    head = ZeroShotHead(torch.eye(2), math.log(3))  # type: ignore[arg-type]
    accuracy, loss = accuracy_and_loss(torch.tensor([[2.0, 0.0], [0.0, 5.0]]), head, torch.tensor([0, 0]))
    assert accuracy == 50
    # logits (log 3, 0) and (0, log 3): probabilities of class 0 are 3/4 and 1/4
    assert loss == pytest.approx((math.log(4 / 3) + math.log(4)) / 2, rel=1e-6)
