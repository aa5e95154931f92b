"""The shares of experts in merges: equal to what a hand computation gives, and they sum to one."""

import numpy as np
import pytest
import torch

from engine.analysis.shares import FATES, shares
from engine.catalog import MERGE_METHODS, params_of
from engine.merging.apply import merge, transformed
from engine.merging.assemble import merged_vector
from engine.recipe import MethodCall
from engine.types import Static
from engine.weights import LazyTaskVectors, Memory
from tests.merging.test_contract import experts_for, full, settings_of
from tests.reference.merging.support import TinyContext

NAME = "visual.row"
BASE = torch.tensor([1.0, 1.0, 1.0, 1.0])
EXPERTS = {"one": torch.tensor([0.4, -0.3, 0.0, 0.2]), "two": torch.tensor([0.2, 0.5, 0.1, 0.0])}


def found(method, transforms=(), weights=(1.0, 1.0), **params):
    """Shares of a merge of two experts with one layer of four entries."""
    base = Memory({NAME: BASE})
    experts = {name: Memory({NAME: BASE + vector}) for name, vector in EXPERTS.items()}
    call = MethodCall(method=method, params=params)
    return of(base, experts, transforms, call, weights)


def of(base, experts, transforms, call, weights=None):
    context = TinyContext(tuple(experts))
    own = LazyTaskVectors(base, experts, dtype=torch.float64)
    used = LazyTaskVectors(base, experts, weights, dtype=torch.float64)
    merged = merge(base, used, transforms, call, context)
    assert isinstance(merged, Static)
    changed, context, _ = transformed(base, used, transforms, context)
    row = MERGE_METHODS[call.method]
    layer = row.load_attribution()
    layer = layer and layer(changed, params_of(row, call.params), context)
    return shares(own, changed, merged_vector(base, own, merged), layer, bool(transforms))


def test_task_arithmetic_by_hand():
    """Δ = 0.5 τ₁ + τ₂ = (0.4, 0.35, 0.1, 0.1): ⟨Δ, Δ⟩ = 0.3025, ⟨0.5 τ₁, Δ⟩ = 0.0375, ⟨τ₂, Δ⟩ = 0.265."""
    result = found("task_arithmetic", weights=(0.5, 1.0), scaling=1.0)
    assert result.attribution == "entries"
    np.testing.assert_allclose(result.share(), [0.0375 / 0.3025, 0.265 / 0.3025], rtol=1e-6)
    np.testing.assert_allclose(result.cosine()[1], 0.265 / np.sqrt(0.3025 * 0.30), rtol=1e-6)
    fates = {name: dict(zip(FATES, row, strict=True)) for name, row in zip(EXPERTS, result.fate(), strict=True)}
    assert fates["one"] == {"kept": 0.75, "trimmed": 0, "outvoted": 0, "dropped": 0, "unmoved": 0.25}
    assert fates["two"] == {"kept": 0.75, "trimmed": 0, "outvoted": 0, "dropped": 0, "unmoved": 0.25}


def test_ties_by_hand():
    """Two of four entries survive: τ̂₁ = (0.4, −0.3, 0, 0), τ̂₂ = (0.2, 0.5, 0, 0); the signs elected are +, +.

    So Δ = (0.6, 0.5, 0, 0), of which the first gave (0.4, 0, 0, 0): ⟨c₁, Δ⟩ = 0.24, ⟨c₂, Δ⟩ = 0.37, ⟨Δ, Δ⟩ = 0.61.
    """
    result = found("ties", density=0.5, merge="sum", scaling=1.0, scope="tensor")
    np.testing.assert_allclose(result.share(), [0.24 / 0.61, 0.37 / 0.61], rtol=1e-6)
    assert result.fates[0].tolist() == [[1, 1, 1, 0, 1], [2, 1, 0, 0, 1]]


def test_the_mean_of_ties_divides_by_those_who_agree():
    """Δ = (0.3, 0.5, 0, 0) with c₁ = (0.2, 0, 0, 0) and c₂ = (0.1, 0.5, 0, 0)."""
    result = found("ties", density=0.5, merge="mean", scaling=2.0, scope="tensor")
    np.testing.assert_allclose(result.share(), [0.06 / 0.34, 0.28 / 0.34], rtol=1e-6)


def test_slerp_is_found_in_the_result():
    result = found("slerp", t=0.25)
    assert result.attribution == "layers"
    assert result.share().sum() == pytest.approx(1, abs=1e-9)
    assert result.share()[0] > result.share()[1]


def test_layers_together_and_apart_written_out(monkeypatch):
    """Two layers, experts of other weights: cosines are with the experts' own vectors, whatever the weights."""
    monkeypatch.setattr("engine.analysis.shares.COLUMNS", 3)
    random = np.random.default_rng(0)
    sizes, scales = {NAME: 4, "visual.long": 8}, np.array([0.5, 2.0])
    vectors = {name: random.normal(size=(2, size)).astype(np.float32).astype(float) for name, size in sizes.items()}
    base = Memory({name: torch.zeros(size) for name, size in sizes.items()})
    experts = {
        expert: Memory({name: torch.tensor(rows[row], dtype=torch.float32) for name, rows in vectors.items()})
        for row, expert in enumerate(EXPERTS)
    }
    result = of(base, experts, (), MethodCall(method="task_arithmetic", params={"scaling": 1.0}), tuple(scales))
    stacks = [(slice(place, place + 1), rows) for place, rows in enumerate(vectors.values())]
    for layers, rows in [*stacks, (slice(None), np.hstack(list(vectors.values())))]:
        merged = scales @ rows
        np.testing.assert_allclose(result.share(layers), scales * (rows @ merged) / (merged @ merged), rtol=1e-5)
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(merged)
        np.testing.assert_allclose(result.cosine(layers), rows @ merged / lengths, rtol=1e-5)
    assert result.entries.tolist() == [4, 8]


def test_nearly_parallel_experts_are_told_apart_in_the_result():
    """Coefficients of least squares are those of the method, 0.75 and 0.25, however alike the experts are."""
    first, second = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([0.99, 0.1, 0.0, 0.0])
    base = Memory({NAME: torch.zeros(4)})
    experts = {"one": Memory({NAME: first}), "two": Memory({NAME: second})}
    result = of(base, experts, (), MethodCall(method="slerp", params={"t": 0.25}))
    angle = float(torch.acos(first @ second / second.norm()))
    factors = np.sin([0.75 * angle, 0.25 * angle]) / np.sin(angle)
    merged = factors[0] * first.numpy() + factors[1] * second.numpy()
    wanted = factors * np.array([first.numpy() @ merged, second.numpy() @ merged]) / (merged @ merged)
    np.testing.assert_allclose(result.share(), wanted, rtol=1e-5)


def test_layers_that_lwptv_gives_back_are_dropped():
    base, experts = full(experts_for(MERGE_METHODS["task_arithmetic"]))
    result = of(base, experts, [MethodCall(method="lwptv", params={"eta": 0.5})], MethodCall(method="task_arithmetic"))
    dropped = result.fates[..., FATES.index("dropped")]
    pruned = result.merged == 0
    assert pruned.any()
    assert (dropped[~pruned] == 0).all()
    assert result.share().sum() == pytest.approx(1, abs=1e-6)


STATED = [row for row in MERGE_METHODS.values() if row.attribution]


@pytest.mark.parametrize(
    ("row", "params"), [pytest.param(r, p, id=f"{r.name}-{n}") for r in STATED for n, p in settings_of(r)]
)
def test_contributions_sum_to_the_merged_vector(row, params):
    """For every method that states contributions, and for one of them with a transform after the merge."""
    base, experts = full(experts_for(row))
    call = MethodCall(method=row.name, params=params)
    for transforms in ((), (MethodCall(method="lines"),)):
        result = of(base, experts, transforms, call)
        assert result.share().sum() == pytest.approx(1, abs=1e-6)
        assert (result.fates.sum(axis=2) == result.entries[:, None]).all()


def test_what_belongs_to_nobody_is_not_shared_out():
    base, experts = full(experts_for(MERGE_METHODS["iso_c"]))
    result = of(base, experts, (), MethodCall(method="iso_c"))
    assert result.attribution == "none"
    assert not result.products.any()
    assert (abs(result.cosine()) <= 1).all()
