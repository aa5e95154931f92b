"""Every merge method and transform on weights that are special: ties, low rank, moved scalars, identical experts."""

from functools import cache

import pytest
import torch
from torch import Tensor

from engine.catalog import MERGE_METHODS
from engine.weights import Memory
from tests.merging.test_contract import assert_close, every, experts_for, read, run, tensors_of, variants
from tests.reference.merging.support import EXPERTS, toy

Model = dict[str, Tensor]


def drawn(name: str, shape: tuple[int, ...], expert: int) -> Tensor:
    seed = 7919 * expert + sum(map(ord, name))
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ties(name: str, vector: Tensor, expert: int) -> Tensor:
    """All entries of one size, so that every magnitude ties and many sums cancel exactly."""
    return 0.0078125 * drawn(name, tuple(vector.shape), expert).sign()


def low_rank(name: str, vector: Tensor, expert: int) -> Tensor:
    """Rank 1, as of an adapter; tensors that are not matrices did not move."""
    if vector.dim() != 2:
        return torch.zeros_like(vector)
    left, right = drawn(name, (vector.shape[0],), expert), drawn(name + "/right", (vector.shape[1],), expert)
    return 0.01 * left[:, None] * right


def scalars(name: str, vector: Tensor, expert: int) -> Tensor:
    """As they are, and the scalar has moved as well."""
    return vector if vector.dim() else torch.tensor(0.125 * (expert + 1))


def identical(name: str, vector: Tensor, expert: int) -> Tensor:
    """The same for all experts."""
    return 0.02 * drawn(name, tuple(vector.shape), 0)


WORLDS = (ties, low_rank, scalars, identical)


@cache
def world(change, count: int) -> tuple[Memory, dict[str, Memory]]:
    base = tensors_of(toy("pretrained", "toyfull"))
    experts = {}
    for number, expert in enumerate(EXPERTS[:count]):
        moved: Model = {}
        for name, tensor in tensors_of(toy(expert, "toyfull")).items():
            known = base[name]
            moved[name] = known + change(name, tensor - known, number) if known.is_floating_point() else known
        experts[expert] = Memory(moved)
    return Memory(base), experts


@every
@pytest.mark.parametrize("change", WORLDS, ids=lambda change: change.__name__)
def test_special_weights(row, transforms, call, change):
    """Finite, of the base's shapes; where magnitudes tie or ranks are low, the same in any order of experts."""
    base, experts = world(change, len(experts_for(row)))
    first = read(base, run(base, experts, transforms, call, dtype=torch.float64))
    for tensors in first.values():
        for name, tensor in tensors.items():
            assert tuple(tensor.shape) == base.shape(name)
            assert tensor.isfinite().all(), name
    if change in (ties, low_rank) and not getattr(row, "order_matters", False):
        turned = dict(reversed(experts.items()))
        assert_close(read(base, run(base, turned, transforms, call, dtype=torch.float64)), first, atol=1e-6)


@pytest.mark.parametrize("name", ["task_arithmetic", "ties", "emr", "weight_average", "regmean", "fisher", "karcher"])
def test_a_moved_scalar_is_merged(name):
    base, experts = world(scalars, 4)
    call = next(item.values[2] for item in variants() if item.id == f"{name}-defaults")
    (tensors, *_) = read(base, run(base, experts, (), call)).values()
    assert tensors["logit_scale"] > base.tensor("logit_scale")


# What identical experts give: the expert itself, or a known multiple of its task vector.
FACTORS = {
    "weight_average": 1.0,
    "fisher": 1.0,
    "metagpt": 1.0,
    "slerp": 1.0,
    "multislerp": 1.0,
    "karcher": 1.0,
    "model_stock": 1.0,
    "task_arithmetic": 1.2,
    "regmean": 1.0,
    "closed_form": 1.0,
    "dop": 1.0,
}


@pytest.mark.parametrize("name", FACTORS)
def test_identical_experts_give_a_multiple_of_one(name):
    row = MERGE_METHODS[name]
    base, experts = world(identical, len(experts_for(row)))
    call = next(item.values[2] for item in variants() if item.id == f"{name}-defaults")
    (found,) = read(base, run(base, experts, (), call, dtype=torch.float64)).values()
    for layer in base.names:
        if base.dtype(layer).is_floating_point:
            vector = experts["expert0"].tensor(layer).double() - base.tensor(layer).double()
            torch.testing.assert_close(
                found[layer], base.tensor(layer).double() + FACTORS[name] * vector, atol=2e-5, rtol=1e-4, msg=layer
            )
