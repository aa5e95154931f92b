"""Weight disentanglement by hand, and what it must be where nothing interferes."""

from types import SimpleNamespace

import pytest
import torch

from engine.analysis.disentanglement import disagreement, disentanglement_error, feature_distance, linear_features
from engine.analysis.linear_path import departure, without_each

ALPHAS = [-1.0, 0.0, 0.5, 1.0]
GENERATOR = torch.Generator().manual_seed(0)


def random(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


BASE = [random(30, 5), random(20, 5)]
CHANGES = [[random(30, 5), random(30, 5)], [random(20, 5), random(20, 5)]]
HEADS = [random(4, 5), random(3, 5)]


def test_both_summands_are_what_the_equation_says():
    found = disentanglement_error(ALPHAS, linear_features(BASE, CHANGES), disagreement(HEADS))
    for row, first in enumerate(ALPHAS):
        for column, second in enumerate(ALPHAS):
            for task, own in ((0, first), (1, second)):
                alone = BASE[task] + own * CHANGES[task][task]
                both = BASE[task] + first * CHANGES[task][0] + second * CHANGES[task][1]
                wrong = [
                    (a @ HEADS[task].T).argmax() != (b @ HEADS[task].T).argmax()
                    for a, b in zip(alone, both, strict=True)
                ]
                assert found[row, column, task] == sum(map(float, wrong)) / len(wrong)
    assert 0 < found.sum(dim=2).max() <= 2


def test_vectors_that_leave_the_other_task_alone_are_disentangled():
    changes = [[CHANGES[0][0], torch.zeros(30, 5)], [torch.zeros(20, 5), CHANGES[1][1]]]
    for distance in (disagreement(HEADS), feature_distance):
        assert disentanglement_error(ALPHAS, linear_features(BASE, changes), distance).abs().max() == 0
    assert disentanglement_error(ALPHAS, linear_features(BASE, CHANGES), feature_distance)[0, 2].sum() > 0.1


def test_features_are_asked_for_no_more_than_needed():
    asked, shares = [], []
    plain = linear_features(BASE, CHANGES)

    def counted(task, first, second):
        asked.append((task, first, second))
        return plain(task, first, second)

    disentanglement_error(ALPHAS, counted, feature_distance, shares.append)
    assert len(asked) == len(set(asked)) == 2 * len(ALPHAS) ** 2, "where the other task's share is 0, once"
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_without_an_expert_the_others_are_added_and_a_departure_is_a_share_of_the_move():
    base, changes = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 2.0]], [[2.0, 0.0]]])
    head = SimpleNamespace(weight=torch.eye(2), scale=1.0)
    assert without_each(base, changes, head, torch.tensor([1]), 1.0) == [0.0, 100.0]
    moved = torch.tensor([[4.0, 4.0]])
    assert departure(base, torch.tensor([[3.0, 0.0]]), moved) == pytest.approx(4 / 5)
