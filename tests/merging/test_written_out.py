"""Methods that are computed in pieces, by brackets or by Gram matrices, against their definitions written out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.errors import MergeError
from engine.merging import spectra
from engine.merging.apply import merge
from engine.merging.regmean import LayerInputs
from engine.merging.spectra import leading_triples, polar, svd
from engine.recipe import MethodCall
from engine.weights import LazyTaskVectors, Memory
from tests.merging.test_properties import merged, task_vectors
from tests.reference.merging.support import TinyContext

quick = settings(max_examples=25, deadline=None)


def rows_of(stacks: dict[str, Tensor]) -> np.ndarray:
    """All layers of every expert in one row."""
    return torch.cat([stack.reshape(len(stack), -1) for stack in stacks.values()], dim=1).numpy()


def found_by(stacks: dict[str, Tensor], method: str, params: dict, transforms: tuple = ()) -> np.ndarray:
    found = merged(stacks, method, params, transforms)["all"]
    return torch.cat([tensor.reshape(-1) for tensor in found.values()]).numpy()


@quick
@given(
    stacks=task_vectors().filter(lambda stacks: len(next(iter(stacks.values()))) > 1),
    eta=st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]),
    shared=st.booleans(),
)
@pytest.mark.parametrize("name", ["pwptv", "magnitude"])
def test_pruned_entries_are_those_at_or_below_the_threshold(stacks, eta, shared, name):
    rows = rows_of(stacks)
    scores = np.abs(rows - rows.sum(axis=0) / len(rows)) if name == "pwptv" else np.abs(rows)
    limits = np.sort(scores, axis=1)[:, int(np.floor(rows.shape[1] * eta + 1e-9))]
    kept = scores > limits[:, None]
    kept = kept.any(axis=0) if shared else kept
    got = found_by(stacks, "task_arithmetic", {"scaling": 0.5}, ((name, {"eta": eta, "shared": shared}),))
    np.testing.assert_allclose(got, 0.5 * (rows * kept).sum(axis=0), atol=1e-12)


@quick
@given(
    stacks=task_vectors(),
    density=st.sampled_from([0.05, 0.3, 1.0]),
    clip=st.sampled_from([0.0, 0.05, 0.1]),
    balance=st.sampled_from(["task_vectors", "normalised"]),
)
def test_pcb_is_competition_written_out(stacks, density, clip, balance):
    rows = rows_of(stacks)
    count = rows.shape[1]
    sizes = np.sort(np.abs(rows), axis=1)
    low, high = sizes[:, [int(count * clip)]], sizes[:, [int(count * (1 - clip) - 1)]]
    clipped = np.clip(np.abs(rows), low, np.maximum(low, high))
    clipped = np.minimum(clipped, high)
    relative = (clipped - low) / np.where(high > low, high - low, 1)
    others = relative * np.sign(rows) if balance == "normalised" else rows
    scores = np.exp(len(rows) * relative**2) * np.tanh(rows * others.sum(axis=0))
    floor = np.sort(scores, axis=1)[:, [min(int(count * (1 - density)), count - 1)]]
    span = scores.max(axis=1, keepdims=True) - floor
    scores = np.clip(scores - floor, 0, None) / np.where(span > 0, span, 1)
    assume(not ((scores > 0) & (scores < 1e-9)).any())  # rounding, which the division below makes large
    expected = (scores * clipped * np.sign(rows)).sum(axis=0) / np.maximum(scores.sum(axis=0), 1e-12)
    params = {"density": density, "clip": clip, "balance": balance, "scaling": 1.0}
    np.testing.assert_allclose(found_by(stacks, "pcb", params), expected, atol=1e-9)


def decaying(rows: int, columns: int, dtype: torch.dtype, seed: int, steepness: float = 3.0) -> Tensor:
    """A matrix whose singular values fall by e^steepness."""
    generator = torch.Generator().manual_seed(seed)
    left, _, right = svd(torch.randn(rows, columns, generator=generator, dtype=torch.float64))
    return (left * torch.linspace(0, -steepness, len(right), dtype=torch.float64).exp() @ right).to(dtype)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("shape", [(40, 40), (90, 30), (30, 90)])
def test_leading_triples_are_those_of_the_whole_decomposition(shape, dtype, limit, monkeypatch):
    matrix, rank = decaying(*shape, dtype, 0), 7
    left, values, right = svd(matrix.double())
    monkeypatch.setattr(spectra, "svd", None)  # not asked for
    found = leading_triples(matrix, rank)
    assert torch.allclose(found[1].double(), values[:rank], atol=limit)
    product = found[0] * found[1] @ found[2]
    assert torch.allclose(product.double(), left[:, :rank] * values[:rank] @ right[:rank], atol=limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matrices_that_are_hard_for_a_gram_matrix_have_their_leading_triples(dtype):
    steep = decaying(60, 40, dtype, 1, steepness=60.0)
    tiny, huge = (decaying(60, 40, dtype, 1) * getattr(torch.finfo(dtype), end) ** 0.75 for end in ("tiny", "max"))
    for matrix in (steep, tiny, huge, torch.zeros(60, 40, dtype=dtype)):
        found, expected = leading_triples(matrix, 15), svd(matrix)
        scale = expected[1][0].item() or 1.0
        assert torch.allclose(found[1] / scale, expected[1][:15] / scale, atol=1e-4)
        gram = found[0].T @ found[0]
        assert torch.allclose(gram, torch.eye(15, dtype=dtype), atol=1e-4)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_matrix_with_a_number_that_is_none_has_no_triples(number):
    matrix = torch.ones(60, 40)
    matrix[3, 4] = number
    with pytest.raises(MergeError, match="does not converge"):
        leading_triples(matrix, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(40, 40), (90, 30), (30, 90), (5, 0)])
def test_polar_factors_are_those_of_a_decomposition(shape, dtype):
    generator = torch.Generator().manual_seed(2)
    matrix = torch.randn(shape, generator=generator, dtype=dtype)
    left, _, right = svd(matrix.double())
    assert torch.allclose(polar(matrix).double(), left @ right, atol=100 * torch.finfo(dtype).eps * 40)


def test_polar_factors_of_dependent_columns_share_their_direction():
    matrix = torch.randn(50, 10, generator=torch.Generator().manual_seed(3))
    matrix[:, 9] = matrix[:, 0]
    factor = polar(matrix)
    projection = factor.T @ factor
    assert torch.allclose(projection @ projection, projection, atol=1e-4)
    assert projection.trace().item() == pytest.approx(9, abs=1e-3)
    assert torch.allclose(factor[:, 9], factor[:, 0], atol=1e-4)
    assert torch.allclose(factor[:, 1:9].T @ factor[:, 1:9], torch.eye(8), atol=1e-1), "the others hardly move"


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_tsv_m_is_algorithm_1_written_out(dtype, limit):
    matrices = torch.stack([decaying(48, 24, torch.float64, seed) for seed in range(3)])
    stacks = {"visual.w": matrices, "visual.b": matrices[:, 0]}
    triples = [svd(matrix) for matrix in matrices]
    left = torch.cat([left[:, :8] for left, _, _ in triples], dim=1)
    values = torch.cat([values[:8] for _, values, _ in triples])
    right = torch.cat([right[:8] for _, _, right in triples])
    one, _, two = svd(left)
    three, _, four = svd(right)
    base = Memory({name: torch.zeros_like(stack[0]) for name, stack in stacks.items()})
    experts = {f"e{k}": Memory({name: stack[k] for name, stack in stacks.items()}) for k in range(3)}
    vectors = LazyTaskVectors(base, experts, dtype=dtype)
    call = MethodCall(method="tsv_m", params={"scaling": 1.0})
    found = merge(base, vectors, [], call, TinyContext(tuple(experts))).weights
    assert found.tensor("visual.w").dtype == dtype
    assert torch.allclose(found.tensor("visual.w").double(), (one @ two) * values @ (three @ four), atol=limit)
    assert torch.allclose(found.tensor("visual.b").double(), matrices[:, 0].mean(dim=0), atol=limit)


@pytest.mark.parametrize("method", ["tsv_m", "iso_c", "iso_cts", "doge"])
def test_directions_of_rounding_are_no_part_of_a_merge(method):
    """Noise of the size of rounding on low-rank and on equal experts changes the result as little."""
    generator, name = torch.Generator().manual_seed(0), "visual.transformer.resblocks.0.mlp.c_fc.weight"
    drawn = [torch.randn(2, *shape, generator=generator, dtype=torch.float64) for shape in ((32, 2), (2, 32), (32, 32))]
    low, same = drawn[0] @ drawn[1], drawn[2][:1].expand(2, -1, -1)
    for matrices in (low, same) if method != "doge" else (low,):
        noisy = matrices + 1e-15 * torch.randn(matrices.shape, generator=generator, dtype=torch.float64)
        plain, other = (found_by({name: stack}, method, {}) for stack in (matrices, noisy))
        assert np.linalg.norm(other - plain) <= 1e-2 * np.linalg.norm(plain)


def test_a_square_factor_that_is_multiplied_as_it_is_is_no_linear_layer():
    generator = torch.Generator().manual_seed(5)
    images, linear, projection = torch.randn(3, 6, 6, generator=generator)
    watched = LayerInputs({"linear": linear, "projection": projection})
    with watched:
        torch.nn.functional.linear(images, linear) @ projection
    assert list(watched.products) == ["linear"]
    torch.testing.assert_close(watched.products["linear"], images.T @ images)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_opcm_protects_as_much_as_it_is_told(alpha):
    stack = torch.randn(2, 12, 12, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    name = "visual.transformer.resblocks.0.mlp.c_fc.weight"
    found = torch.tensor(found_by({name: stack}, "opcm", {"alpha": alpha})).view(12, 12)
    left, values, right = torch.linalg.svd(stack[0])
    core = left.T @ found @ right.T
    core = core / core.diagonal().norm() * values.norm()
    leading = {0.0: 0, 0.5: int((values.cumsum(0) / values.sum() > 0.5).int().argmax()), 1.0: 12}[alpha]
    block = core[:leading, :leading] - torch.diag(core.diagonal()[:leading])
    assert block.abs().max() < 1e-9 if leading else True
    outside = core.clone()
    outside[:leading, :leading] = 0
    outside.fill_diagonal_(0)
    assert (outside.abs().max() > 1e-3) == (leading < 12)
