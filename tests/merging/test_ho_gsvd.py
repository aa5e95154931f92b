"""The basis that experts share, and a merge in it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.merging.ho_gsvd import NOTHING, SharedBasis
from tests.merging.test_properties import merged, quick, task_vectors


def shared_basis(shape, seed=0, experts=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    stack = torch.randn(experts, *shape, generator=generator, dtype=torch.float64).to(dtype)
    return stack, SharedBasis.of(stack, 0.1)


@pytest.mark.parametrize("rank", [6, 3])
def test_matrices_in_a_shared_basis_are_the_experts_again(rank):
    stack = shared_basis((9, 6))[0]
    stack = stack[..., :rank] @ stack[0, :rank, :6]  # of this rank, in the same rows
    basis = SharedBasis.of(stack, 0.1)
    assert basis.right.shape == (rank, 6)
    torch.testing.assert_close((basis.left * basis.values[:, None]) @ basis.right, stack)
    torch.testing.assert_close(basis.values.square().sum(dim=0), torch.ones(rank, dtype=torch.float64))
    torch.testing.assert_close(torch.linalg.vector_norm(basis.left, dim=1), torch.ones(4, rank, dtype=torch.float64))


def test_a_planted_shared_basis_is_found():
    """Experts with orthogonal U_k and one V: its columns, and how much each expert uses of them, up to their order."""
    generator = torch.Generator().manual_seed(1)
    values = torch.rand(3, 5, generator=generator, dtype=torch.float64) + 0.1
    right = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    left = torch.linalg.qr(torch.randn(3, 8, 5, generator=generator, dtype=torch.float64)).Q
    basis = SharedBasis.of((left * values[:, None]) @ right, 0.1)
    wanted = values / torch.linalg.vector_norm(values, dim=0)
    order = torch.cdist(basis.values.T, wanted.T).argmin(dim=0)
    assert sorted(order.tolist()) == list(range(5))
    torch.testing.assert_close(basis.values[:, order], wanted)
    lengths = torch.linalg.vector_norm(values, dim=0)
    torch.testing.assert_close(basis.right[order].abs(), (lengths[:, None] * right).abs())


def test_what_an_expert_has_to_itself_is_told_from_what_all_have():
    stack = torch.zeros(2, 4, 3, dtype=torch.float64)
    stack[:, 0, 0] = 2.0  # both
    stack[0, 1, 1] = 3.0  # the first alone
    stack[1, 2, 2] = 0.5  # the second alone
    basis = SharedBasis.of(stack, 0.1)
    half = 0.5**0.5
    found = torch.tensor(sorted(basis.values.T.round(decimals=6).tolist()), dtype=torch.float64)
    torch.testing.assert_close(found, torch.tensor([[0.0, 1.0], [half, half], [1.0, 0.0]]).double(), rtol=0, atol=1e-6)
    assert torch.equal(basis.raised(0.5) > 0, basis.values > NOTHING), "nothing is made of nothing"


@quick
@given(stacks=task_vectors(), share=st.sampled_from([0.5, 1.0]))
def test_a_shared_basis_with_nothing_raised_is_the_sum(stacks, share):
    found = merged(stacks, "ho_gsvd", {"scaling": 1.0, "share": share})["all"]
    for name, stack in stacks.items():
        total = stack.sum(dim=0)
        if total.dim() != 2 or share == 1.0 or len(stack) == 1:
            torch.testing.assert_close(found[name], total, rtol=1e-6, atol=1e-8)


def test_only_small_generalised_values_are_raised():
    _, basis = shared_basis((7, 5), seed=3)
    raised = basis.raised(0.6)
    assert (raised >= basis.values).all()
    for before, after in zip(basis.values, raised, strict=True):
        floor = after.min()
        assert torch.equal(after[before > floor], before[before > floor])
        assert float(before[before >= floor].sum()) >= 0.6 * float(before.sum())
        assert float(before[before > floor].sum()) < 0.6 * float(before.sum())
