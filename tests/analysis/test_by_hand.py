"""Linearity, outliers and repaired statistics on numbers that are small enough to work out by hand."""

import math

import numpy as np
import pytest
import torch

from engine.alignment.repair import Statistics, average, corrected, goals, how_far, repaired_layer, statistics_of
from engine.analysis.linear_path import along, departure, without_each
from engine.analysis.linearity import combined, likeness
from engine.analysis.outliers import auroc, placements, plane_of, prototype_distance, prototypes
from engine.errors import DataError
from engine.zoo.encoders.heads import ZeroShotHead

HEAD = ZeroShotHead(torch.eye(2), math.log(3))  # of a feature along an axis this class has a probability of 3/4


def test_activations_are_combined_with_what_the_coefficients_leave_of_the_base():
    base, experts = np.array([[[1.0, 0]]], np.float32), {"a": np.array([[[0.0, 2]]]), "b": np.array([[[4.0, 4]]])}
    assert combined(base, experts, {"a": 0.5, "b": 0.25}).tolist() == [[[0.25 + 1, 1 + 1]]]
    assert combined(base, experts, {"a": 1.0, "b": 1.0}).tolist() == [[[-1 + 4, 2 + 4]]]
    assert combined(base, experts, {"b": 1.0}).tolist() == experts["b"].tolist()
    assert base.tolist() == [[[1, 0]]], "left as it was"
    with pytest.raises(DataError, match="of c are missing"):
        combined(base, experts, {"a": 0.5, "c": 0.5})
    with pytest.raises(DataError, match="every expert"):
        combined(base, experts, {})


def test_likeness_is_a_cosine_after_every_block_of_activations_or_of_their_changes():
    state = np.array([[[3.0, 4], [1, 0]], [[1, 1], [1, 1]], [[np.inf, 0], [1, 1]], [[0, 0], [0, 0]]])
    target = np.array([[[1.0, 0], [-1, 0]], [[1, 1], [1, 1]], [[1, 0], [1, 1]], [[1, 0], [1, 1]]])
    assert likeness(state, target) == [pytest.approx((0.6 - 1) / 2), pytest.approx(1), None, None]
    origin = np.ones_like(state)
    # Changes of the first block are (2, 3), (0, −1) and (0, −1), (−2, −1); in the second nothing changes.
    wanted = (-3 / 13**0.5 + 1 / 5**0.5) / 2
    assert likeness(state, target, origin)[:3] == [pytest.approx(wanted), None, None]


def test_linear_paths_are_scored_at_every_coefficient():
    base, labels = torch.tensor([[2.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 0])
    changes = torch.tensor([[[-1.0, 0.5], [0.0, 0.0]], [[0.0, 0.5], [0.0, 0.0]]])
    # At 2 the first image's features are (0, 2); at 0 they are (2, 0).
    found = along(base, changes, HEAD, labels, [0.0, 2.0])
    right, wrong = math.log(4 / 3), math.log(4)
    assert found == [(50, pytest.approx((right + wrong) / 2)), (0, pytest.approx(wrong))]
    # Left out in turn at 2: (2, 1) and (0, 1).
    assert without_each(base, changes, HEAD, labels, 2.0) == [50, 0]
    assert departure(base, changes[0], base) == 0, "an expert that is the base"


def test_placements_are_shares_of_the_other_side_and_average_to_the_auroc():
    inside, outside = np.array([1.0, 2, 2, 5]), np.array([2.0, 3, 0])
    of_inside, of_outside = placements(inside, outside)
    assert of_inside == pytest.approx([2 / 3, 1.5 / 3, 1.5 / 3, 0])
    assert of_outside == pytest.approx([2 / 4, 3 / 4, 0])
    assert of_inside.mean() == pytest.approx(of_outside.mean()) == pytest.approx(auroc(inside, outside))
    for empty in ((inside, outside[:0]), (inside[:0], outside)):
        with pytest.raises(DataError, match="compares two sets"):
            placements(*empty)


def test_the_plane_of_a_task_lies_around_its_prototypes_along_the_widest_directions():
    centres = np.array([[1.0, 2, 3, 4], [3, 2, 1, 0]])
    spread = np.eye(4)[[0, 0, 2, 2, 3, 3]] * np.array([[3.0], [-3], [1], [-1], [2], [-2]])
    origin, plane, share = plane_of(spread + 2, centres)
    assert origin.tolist() == [2, 2, 2, 2]
    np.testing.assert_allclose(np.abs(plane), np.eye(4)[[0, 3]], atol=1e-12)
    assert share == pytest.approx((18 + 8) / (18 + 8 + 2))
    _, line, whole = plane_of(np.array([[1.0], [3.0]]), np.array([[2.0]]))
    assert (np.abs(line).tolist(), whole) == ([[1], [0]], 1)
    assert plane_of(np.full((2, 3), 5.0), np.full((1, 3), 5.0))[2] == 1, "nothing spreads"


def test_an_image_is_as_far_as_its_nearest_prototype():
    features = np.array([[1.0, 2], [3, 4], [7, -1], [4, 6]])
    centres = prototypes(features[:3], np.array([9, 9, 2]))
    assert centres.tolist() == [[7, -1], [2, 3]]
    assert prototype_distance(features, centres) == pytest.approx([2**0.5, 2**0.5, 0, 13**0.5])
    far = np.array([[1e8, 1.0], [1e8, 1.0]])
    assert prototype_distance(far, far[:1]) == pytest.approx([0, 0])
    for given, classes in ((features, [1, 2]), (features[:0], [])):
        with pytest.raises(DataError, match="one class a feature"):
            prototypes(given, np.array(classes))


def test_statistics_between_networks_are_those_of_means_and_deviations_unit_by_unit():
    one, two, three = (
        {"w": Statistics(torch.tensor(means), torch.tensor(deviations).square())}
        for means, deviations in (([0.0, 2], [2.0, 4]), ([4.0, 6], [3.0, 8]), ([8.0, 1], [7.0, 3]))
    )
    between = goals(one, two, 0.25)["w"]
    assert between.mean.tolist() == [1, 3]
    assert between.variance.sqrt().tolist() == pytest.approx([2.25, 5])
    middle = average([one, two, three])["w"]
    assert middle.mean.tolist() == [4, 3]
    assert middle.variance.sqrt().tolist() == pytest.approx([4, 5])
    assert how_far(one, two)["w"].tolist() == pytest.approx([2 / 3, 1 / 2], rel=1e-4)


def test_corrected_outputs_and_folded_layers_have_the_wanted_statistics():
    """Outputs are normalised by the variance over n rows, layers by that over n − 1."""
    output = torch.tensor([[0.0, 1.0], [2.0, 5.0], [4.0, 3.0]], dtype=torch.float64)
    found = statistics_of(output[None])
    assert (found.mean.tolist(), found.variance.tolist()) == ([2, 3], [4, 4])
    goal = Statistics(torch.tensor([10.0, -1.0]), torch.tensor([9.0, 1.0]))
    after = corrected(output, found, goal, 3)
    torch.testing.assert_close(after.mean(dim=0), goal.mean.double())
    torch.testing.assert_close(after.var(dim=0, unbiased=False), goal.variance.double(), rtol=1e-4, atol=0)
    weight, bias = repaired_layer(torch.eye(2), torch.tensor([1.0, 7.0]), found, goal)
    torch.testing.assert_close(weight, torch.diag(torch.tensor([1.5, 0.5])).double(), rtol=1e-4, atol=0)
    torch.testing.assert_close(bias, torch.tensor([(1 - 2) * 1.5 + 10, (7 - 3) * 0.5 - 1]).double(), rtol=1e-4, atol=0)
