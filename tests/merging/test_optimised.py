"""Properties of merge methods that solve or learn: DOP, AWD, Model Tailor, DOGE, Localize-and-Stitch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.catalog.optimisation import AwdParams, DopParams
from engine.catalog.sparse import ModelTailorParams
from engine.errors import Cancelled, MergeError
from engine.merging.apply import merge
from engine.merging.awd import redundancy
from engine.merging.dop import least_norm_share, merge_pair
from engine.merging.localize import largest_entries, stitched
from engine.merging.model_tailor import standardised, tailor
from engine.recipe import MethodCall
from tests.reference.merging.support import EXPERTS, TinyContext, tensors_of, toy_vectors

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31)


def matrices(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def disturbance(merged: Tensor, own: Tensor) -> float:
    """Return DOP's loss for one model. An energy of 1 leaves the least direction out, as in the published code."""
    left, values, right = torch.linalg.svd(own, full_matrices=False)
    kept = int((values.cumsum(0) / values.sum() < 1 - 1e-12).sum())
    gap = merged - own
    outer, inner = left[:, :kept] * values[:kept], right[:kept] * values[:kept, None]
    return ((outer.T @ gap) ** 2).sum().item() + ((gap @ inner.T) ** 2).sum().item()


@quick
@given(seed=seeds, rows=st.integers(2, 6), columns=st.integers(2, 6), stability=st.sampled_from([0.1, 0.5, 0.9]))
def test_dop_lowers_its_loss_below_the_mean(seed, rows, columns, stability):
    first, second = matrices(seed, 2, rows, columns)
    params = DopParams(balance="fixed", stability=stability, learning_rate=1e-3, steps=100, energy=1 - 1e-12)

    def loss(merged: Tensor) -> float:
        return stability * disturbance(merged, first) + (1 - stability) * disturbance(merged, second)

    assert loss(merge_pair(first, second, params)) <= loss((first + second) / 2) + 1e-9


def test_dop_without_steps_is_the_mean_and_equal_models_stay():
    first, second = matrices(0, 2, 5, 4)
    torch.testing.assert_close(merge_pair(first, second, DopParams(steps=0)), (first + second) / 2)
    torch.testing.assert_close(merge_pair(first, first.clone(), DopParams(steps=20)), first)
    assert not merge_pair(torch.zeros(3, 4), torch.zeros(3, 4), DopParams(steps=3)).any()


def test_dop_lets_earlier_experts_fade_outside_matrices():
    base, vectors = toy_vectors()
    merged = merge(base, vectors, [], MethodCall(method="dop", params={"steps": 0}), TinyContext())
    stack = vectors.stack("visual.ln_pre.bias")
    expected = torch.einsum("k,kn->n", torch.tensor([1 / 8, 1 / 8, 1 / 4, 1 / 2], dtype=torch.float64), stack)
    found = merged.weights.tensor("visual.ln_pre.bias") - base.tensor("visual.ln_pre.bias").double()
    torch.testing.assert_close(found, expected)


@quick
@given(seed=seeds)
def test_the_least_norm_share_makes_the_shortest_sum(seed):
    first, second = matrices(seed, 2, 3, 3)
    share = least_norm_share(first, second)
    lengths = {s: (s * first + (1 - s) * second).norm().item() for s in torch.linspace(0.001, 0.999, 200).tolist()}
    assert (share * first + (1 - share) * second).norm().item() <= min(lengths.values()) + 1e-6


def mean_cosine(rows: Tensor) -> float:
    units = torch.nn.functional.normalize(rows, dim=1)
    cosines = (units @ units.T).abs().fill_diagonal_(0)
    return cosines.sum().item() / (len(rows) * (len(rows) - 1))


@pytest.mark.parametrize("experts", [2, 4, 8])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_awd_finds_what_vectors_share(experts, scale):
    """Task vectors μ + orthonormal parts: what is taken out points along μ, whatever the scale."""
    basis = torch.linalg.qr(matrices(1, experts + 1, experts + 1))[0]
    shared, parts = 0.8 * basis[0], basis[1:]
    rows = scale * (shared + parts)
    found = redundancy(rows @ rows.T, AwdParams(penalty=1e-4)) @ rows
    assert mean_cosine(rows - found) < 0.02 < 0.3 < mean_cosine(rows)
    along = (found @ shared / found.norm() / shared.norm()).item()
    assert along == pytest.approx(0.8 / (0.64 + 1 / experts) ** 0.5, abs=0.01), "the mean of the vectors"


@quick
@given(seed=seeds, experts=st.integers(2, 6))
def test_awd_makes_vectors_more_orthogonal_and_its_slope_is_the_gradient(seed, experts):
    rows = matrices(seed, experts, 12) + 0.5 * matrices(seed + 1, 12)
    found = redundancy(rows @ rows.T, AwdParams(penalty=0.0))
    # Steps of a set length pass the least value by this much where vectors are nearly orthogonal from the start.
    assert mean_cosine(rows - found @ rows) <= max(mean_cosine(rows), 1e-3)
    one = AwdParams(penalty=0.0, steps=1, learning_rate=1.0)
    delta = torch.zeros(12, dtype=torch.float64, requires_grad=True)
    units = torch.nn.functional.normalize(rows - delta, dim=1)
    cosines = (units @ units.T).abs()
    loss = (cosines.sum() - cosines.diagonal().sum()) / (experts * (experts - 1))
    (gradient,) = torch.autograd.grad(loss, delta)
    length = rows.norm(dim=1).mean()
    torch.testing.assert_close(redundancy(rows @ rows.T, one) @ rows, -gradient * length**2)


def test_awd_with_one_expert_or_a_heavy_penalty_is_task_arithmetic():
    base, vectors = toy_vectors()
    plain = tensors_of(merge(base, vectors, [], MethodCall(method="task_arithmetic"), TinyContext()).weights)
    heavy = MethodCall(method="awd", params={"penalty": 100.0, "learning_rate": 1e-6})
    for name, tensor in tensors_of(merge(base, vectors, [], heavy, TinyContext()).weights).items():
        torch.testing.assert_close(tensor, plain[name], atol=1e-4, rtol=0)
    assert not redundancy(torch.ones(1, 1, dtype=torch.float64), AwdParams()).any()
    assert not redundancy(torch.zeros(3, 3, dtype=torch.float64), AwdParams()).any()


@quick
@given(seed=seeds, rows=st.integers(1, 6), columns=st.integers(1, 9), sparsity=st.floats(0, 0.95))
def test_a_tailored_layer_has_at_most_its_share_of_free_entries(seed, rows, columns, sparsity):
    before, vector = matrices(seed, 2, rows, columns)
    inputs = matrices(seed + 1, 20, columns)
    params = ModelTailorParams(sparsity=sparsity, block=4)
    found = tailor(before + vector, before, inputs.T @ inputs, params)
    assert found.isfinite().all()
    blocks = [min(4, columns - start) * rows for start in range(0, columns, 4)]
    free = sum(size - int(size * sparsity) for size in blocks)
    assert (found != before).sum() <= free
    scaled = tailor(before + vector, before, 4.0 * (inputs.T @ inputs), params)
    torch.testing.assert_close(scaled, found)


def test_a_layer_that_did_not_move_is_not_tailored():
    before, gram = matrices(0, 4, 6), torch.eye(6, dtype=torch.float64)
    assert torch.equal(tailor(before.clone(), before, gram, ModelTailorParams()), before)
    dead = torch.zeros(6, 6, dtype=torch.float64)
    assert tailor(before + 1, before, dead, ModelTailorParams()).isfinite().all()


def test_standardising_constant_rows_and_single_columns_gives_zero():
    assert not standardised(torch.ones(3, 5)).any()
    assert not standardised(torch.randn(3, 1)).any()
    rows = standardised(matrices(3, 2, 50))
    torch.testing.assert_close(rows.std(dim=1), torch.ones(2, dtype=torch.float64))


def test_inputs_that_are_no_inner_products_are_refused():
    before = matrices(0, 3, 3)
    broken = torch.tensor([[1.0, 5.0, 0.0], [5.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    with pytest.raises(MergeError, match=r"conv1.*Use more images, or more damping"):
        tailor(before + 1, before, broken, ModelTailorParams(), "conv1")


def test_learned_masks_start_as_the_largest_entries():
    base, vectors = toy_vectors()
    params = {"density": 0.3, "epochs": 0}
    call = MethodCall(method="localize_and_stitch_learned", params=params)
    learned = merge(base, vectors, [], call, TinyContext())
    plain = MethodCall(method="localize_and_stitch", params={"density": 0.3})
    for name, tensor in tensors_of(merge(base, vectors, [], plain, TinyContext()).weights).items():
        torch.testing.assert_close(learned.weights.tensor(name), tensor)


def masks_after(vectors, base, **params):
    call = MethodCall(method="localize_and_stitch_learned", params={"density": 0.3, "batch_size": 8, **params})
    return merge(base, vectors, [], call, TinyContext(vectors.experts))


def test_a_strong_penalty_empties_masks_and_the_signed_one_keeps_them():
    base, vectors = toy_vectors()
    common = {"learning_rate": 1e-9, "strength": 1e3, "epochs": 3, "examples": 8}
    empty = masks_after(vectors, base, **common, penalty="l1")
    assert set(empty.info.details["kept_percent"].values()) == {0.0}
    assert all(torch.equal(empty.weights.tensor(n), base.tensor(n).double()) for n in vectors.names)
    kept = masks_after(vectors, base, **common, penalty="signed")
    first = largest_entries(vectors, 0.3, TinyContext())
    for name in vectors.names:
        expected = stitched(vectors.stack(name), first(name)) + base.tensor(name).double()
        torch.testing.assert_close(kept.weights.tensor(name), expected)


def test_learning_masks_lowers_the_loss_on_its_images():
    base, vectors = toy_vectors(experts=EXPERTS[:1])
    context = TinyContext(EXPERTS[:1])

    def loss(weights) -> float:
        images, labels = next(context.batches("expert0", "validation", 64))
        tensors = {name: weights.tensor(name).double() for name in vectors.names}
        features = context.forward(tensors, images)
        logits = 20 * torch.nn.functional.normalize(features, dim=1) @ context.head("expert0").weight.double().T
        return torch.nn.functional.cross_entropy(logits, labels).item()

    params = {"examples": 64, "batch_size": 64, "strength": 0.0}
    before = masks_after(vectors, base, **params, epochs=0)
    after = masks_after(vectors, base, **params, epochs=20, learning_rate=1e5)
    assert loss(after.weights) < loss(before.weights)


def test_doge_with_adamerging_starts_at_equal_lengths_and_reports_its_coefficients():
    base, vectors = toy_vectors()
    call = MethodCall(method="doge_am", params={"correction_steps": 0, "steps": 0, "density": 1.0, "clamp": False})
    merged = merge(base, vectors, [], call, TinyContext())
    name = "visual.transformer.resblocks.0.mlp.c_fc.weight"
    stack = vectors.stack(name)
    expected = (0.07 * stack / stack.norm(dim=(1, 2), keepdim=True)).sum(dim=0) + base.tensor(name).double()
    torch.testing.assert_close(merged.weights.tensor(name), expected)
    details = merged.info.details
    assert set(details["coefficients"]) == set(EXPERTS)
    place = details["layers"].index(name)
    assert details["coefficients"]["expert1"][place] == pytest.approx(0.07 / stack[1].norm().item())
    assert all(".resblocks." in layer for layer in details["layers"])


class StopsAt(TinyContext):
    """Cancels at the n-th report."""

    left = 3

    def progress(self, fraction: float, message: str = "") -> None:
        super().progress(fraction, message)
        self.left -= 1
        if self.left < 0:
            raise Cancelled("stopped")


SLOW = {
    "dop": {"steps": 60},
    "awd": {},
    "doge_am": {"correction_steps": 60},
    "model_tailor": {"examples": 40},
    "localize_and_stitch_learned": {"epochs": 5, "examples": 8, "batch_size": 8},
}


@pytest.mark.parametrize("method", SLOW)
def test_cancelling_stops_half_way(method):
    base, vectors = toy_vectors()
    context = StopsAt()

    def run() -> None:
        merged = merge(base, vectors, [], MethodCall(method=method, params=SLOW[method]), context)
        tensors_of(merged.weights)

    with pytest.raises(Cancelled):
        run()
    assert len(context.fractions) == 4
