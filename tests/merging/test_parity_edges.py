"""Merging where the reference numbers leave it open: frozen tensors, derived parameters, a known fault."""

import numpy as np
import pytest
import torch

from engine.masks import lwptv_masks
from engine.merging.apply import merge
from engine.merging.lwptv import salience
from engine.recipe import MethodCall
from engine.selfcheck.context import Offline, tensors_of
from engine.selfcheck.measure import Tolerance, measure
from engine.selfcheck.merging.recipe import Recipe
from engine.selfcheck.reference import PRECISIONS
from tests.reference.merging.support import REFERENCE, toy, toy_vectors

CLOSE = Tolerance(1e-9, 1e-11)


def test_counting_frozen_layers_equals_having_them():
    frozen = salience(toy_vectors("toyfull")[1])[1]
    visual = salience(toy_vectors()[1])[1]
    assert frozen.shape[1] == visual.shape[1] + 6
    for eta in (0.0, 0.1, 0.3, 0.7, 1.0):
        np.testing.assert_array_equal(lwptv_masks(frozen, eta)[0][:, 6:], lwptv_masks(visual, eta, 6)[0])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_counting_frozen_parameters_equals_having_them(precision):
    name = "toyfull_ties_k20_sum_l0.3"
    want = REFERENCE.output(name)
    count = sum(want[layer].numel() for layer in want if not layer.startswith("visual."))
    got = Recipe("ties", {"frozen_parameters": count}).merged(REFERENCE, precision)
    found = measure(got, {layer: want[layer] for layer in got}, REFERENCE.tolerance(name, precision))
    assert found.within, found


def test_nothing_is_pruned_at_a_ratio_of_zero():
    scores = np.array([[1.0, 2.0, 3.0]])
    assert lwptv_masks(scores, 0.0)[1].all(), "the engine's reading"
    assert lwptv_masks(scores, 1e-6)[1].tolist() == [False, True, True], "the printed algorithm's"


def test_lines_takes_alpha_from_the_norms():
    plain = {"alpha_from_norms": False, "alpha": 0.25, "beta": 0.7}
    given = Recipe("task_arithmetic", {"scaling": 1.0}, {"lines": plain}).merged(REFERENCE, "float64")
    found = Recipe("task_arithmetic", {"scaling": 1.0}, {"lines": {"beta": 0.7}}).merged(REFERENCE, "float64")
    assert measure(found, given, CLOSE).within, "1/K for a sum of four"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_breadcrumbs_by_tensor_does_not_zero_small_tensors(precision):
    """The published program zeroes a tensor by mistake where int(γ n) is 0."""
    want = REFERENCE.output("breadcrumbs_mergekit_d0.3_g0.05_l0.3")
    params = {"beta": 0.3, "gamma": 0.05, "scaling": 0.3, "scope": "tensor"}
    got, base = Recipe("breadcrumbs", params).merged(REFERENCE, precision), toy("pretrained")
    small = [layer for layer in want if not int(0.05 * want[layer].numel())]
    assert 0 < len(small) < len(want)
    for layer in small:
        assert torch.equal(want[layer], base.tensor(layer).double())
        assert not torch.equal(got[layer].double(), want[layer])


def sizes(vectors):
    return np.array([[float(tau.abs().mean()) for tau in vectors.stack(name)] for name in vectors.names]).T


@pytest.mark.parametrize(
    ("method", "score"), [("lwptv", lambda vectors: salience(vectors)[1]), ("absolute_value", sizes)]
)
def test_each_expert_may_prune_its_own_layers(method, score):
    base, vectors = toy_vectors()
    masks, shared = lwptv_masks(score(vectors), 0.7)
    call, pruning = MethodCall(method="task_arithmetic"), MethodCall(method=method, params={"shared": False})
    merged = tensors_of(merge(base, vectors, [pruning], call, Offline(vectors.experts)).weights)
    kept_by_some = 0
    for column, name in enumerate(vectors.names):
        own = torch.tensor(masks[:, column], dtype=torch.float64)
        wanted = base.tensor(name).double() + 0.3 * torch.einsum("k,k...->...", own, vectors.stack(name))
        torch.testing.assert_close(merged[name], wanted)
        kept_by_some += 0 < masks[:, column].sum() < len(vectors.experts)
    assert kept_by_some, "a layer that only some experts keep"
    assert shared.sum() > masks.sum(axis=1).max()


@pytest.mark.parametrize("tasks", ["aabb", "abca", "abcd"])
def test_model_stock_within_tasks_adds_what_it_makes_of_each(tasks):
    base, vectors = toy_vectors()
    call = MethodCall(method="model_stock", params={"by_task": True, "scaling": 0.4, "clamp": False})
    found = tensors_of(merge(base, vectors, [], call, Offline(tuple(tasks))).weights)
    for name in vectors.names:
        stack, total = vectors.stack(name), 0
        for task in dict.fromkeys(tasks):
            own = [stack[place] for place, other in enumerate(tasks) if other == task]
            cosine = 1.0
            if len(own) == 2:
                cosine = torch.nn.functional.cosine_similarity(own[0].flatten(), own[1].flatten(), dim=0)
            total = total + 2 * cosine / (1 + cosine) * sum(own) / len(own)
        torch.testing.assert_close(found[name], base.tensor(name).double() + 0.4 * total, rtol=1e-9, atol=1e-11)
