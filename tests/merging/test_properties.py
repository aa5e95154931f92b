"""Properties of merging that hold for any weights."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.errors import Cancelled, MergeError
from engine.masks import lwptv_masks
from engine.merging.adamerging import coefficient_gradient, entropy, predict
from engine.merging.apply import merge, transformed
from engine.merging.masked import pack, unpack
from engine.merging.regmean import LayerInputs
from engine.merging.selection import order_statistics
from engine.recipe import MethodCall
from engine.weights import LazyTaskVectors, Memory
from tests.reference.merging.support import EXPERTS, TinyContext, models, toy_vectors

quick = settings(max_examples=25, deadline=None)
# Few distinct values, so that magnitudes tie and sums cancel.
coarse = st.integers(-3, 3).map(lambda value: value / 2)


@st.composite
def task_vectors(draw: st.DrawFn) -> dict[str, Tensor]:
    """Stacks (K, *shape) of one to four experts and one to three tiny layers."""
    experts = draw(st.integers(1, 4))
    shapes = draw(st.lists(st.lists(st.integers(1, 3), max_size=3).map(tuple), min_size=1, max_size=3))
    stacks = {}
    for index, shape in enumerate(shapes):
        count = experts * int(np.prod(shape, dtype=int))
        values = draw(st.lists(coarse, min_size=count, max_size=count))
        stacks[f"visual.resblocks.{index}.w"] = torch.tensor(values, dtype=torch.float64).view(experts, *shape)
    return stacks


def opened(stacks: dict[str, Tensor]) -> tuple[Memory, LazyTaskVectors, TinyContext]:
    """A base of zeros, the task vectors, and a context for them."""
    experts = len(next(iter(stacks.values())))
    base = Memory({name: torch.zeros_like(stack[0]) for name, stack in stacks.items()})
    files = {f"e{k}": Memory({name: stack[k] for name, stack in stacks.items()}) for k in range(experts)}
    return base, LazyTaskVectors(base, files, dtype=torch.float64), TinyContext(tuple(files))


def merged(stacks: dict[str, Tensor], method: str, params: dict, transforms: tuple = ()) -> dict[str, dict]:
    """The merged vectors (the base is zero), by task."""
    base, vectors, context = opened(stacks)
    calls = [MethodCall(method=name, params=values) for name, values in transforms]
    result = merge(base, vectors, calls, MethodCall(method=method, params=params), context)
    return {task: {name: item.tensor(name) for name in base.names} for task, item in models(base, result).items()}


@quick
@given(stacks=task_vectors())
@pytest.mark.parametrize("method", ["task_arithmetic", "ties", "tsv_m"])
def test_scaling_zero_gives_the_base(stacks, method):
    found = merged(stacks, method, {"scaling": 0.0})["all"]
    assert all(not tensor.any() for tensor in found.values())


@quick
@given(
    stacks=task_vectors(),
    density=st.sampled_from([0.01, 0.2, 0.5, 0.9, 1.0]),
    how=st.sampled_from(["sum", "mean", "max"]),
)
def test_ties_is_trim_elect_merge_written_out(stacks, density, how):
    rows = torch.cat([stack.flatten(1) if stack.dim() > 1 else stack[:, None] for stack in stacks.values()], dim=1)
    size = rows.shape[1]
    rank = size - int(size * density)
    if rank:
        rows = torch.where(rows.abs() >= rows.abs().sort(dim=1).values[:, rank - 1 : rank], rows, 0.0)
    sign = rows.sum(dim=0).sign()
    sign[sign == 0] = sign.sum().sign()
    expected = []
    for column, direction in zip(rows.T.tolist(), sign.tolist(), strict=True):
        kept = [value for value in column if (value > 0 if direction > 0 else value < 0)]
        total = sum(kept) / (max(len(kept), 1) if how == "mean" else 1)
        expected.append(max(map(abs, kept), default=0.0) * direction if how == "max" else total)
    found = merged(stacks, "ties", {"density": density, "merge": how, "scaling": 1.0})["all"]
    got = torch.cat([tensor.reshape(-1) for tensor in found.values()])
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


@quick
@given(stacks=task_vectors())
def test_one_expert_is_its_own_tsv_and_emr_model(stacks):
    alone = {name: stack[:1] for name, stack in stacks.items()}
    for found in (merged(alone, "tsv_m", {})["all"], merged(alone, "emr", {})["e0"]):
        for name, stack in alone.items():
            torch.testing.assert_close(found[name], stack[0])


@quick
@given(stacks=task_vectors())
def test_emr_entries_have_the_sign_of_their_expert(stacks):
    found = merged(stacks, "emr", {})
    for k, vectors in enumerate(found.values()):
        for name, vector in vectors.items():
            assert ((vector == 0) | (vector.sign() == stacks[name][k].sign())).all()


@quick
@given(stacks=task_vectors(), eta=st.floats(0, 1))
def test_lwptv_takes_whole_layers_from_task_arithmetic(stacks, eta):
    if len(next(iter(stacks.values()))) < 2:
        return
    plain = merged(stacks, "task_arithmetic", {"scaling": 0.3})["all"]
    pruned = merged(stacks, "task_arithmetic", {"scaling": 0.3}, (("lwptv", {"eta": eta}),))["all"]
    for name, tensor in pruned.items():
        assert torch.equal(tensor, plain[name]) or not tensor.any()
    if eta == 0:
        assert all(torch.equal(tensor, plain[name]) for name, tensor in pruned.items())


@quick
@given(stacks=task_vectors().filter(lambda stacks: len(next(iter(stacks.values()))) > 1), eta=st.floats(0, 1))
@pytest.mark.parametrize("control", ["equal_norm", "random_layers"])
def test_controls_have_the_norm_of_lwptv(stacks, eta, control):
    def vector(*transforms):
        return merged(stacks, "task_arithmetic", {"scaling": 1.0}, transforms)["all"]

    def norm(tensors):
        return float(sum(tensor.square().sum() for tensor in tensors.values())) ** 0.5

    whole, found = vector(), vector((control, {"eta": eta}))
    assert norm(found) == pytest.approx(norm(vector(("lwptv", {"eta": eta}))), abs=1e-7)
    ratios = []
    for name, tensor in found.items():
        length = whole[name].square().sum()
        ratios.append(float((tensor * whole[name]).sum() / length) if length else 0.0)
        torch.testing.assert_close(tensor, ratios[-1] * whole[name])
    shared = [ratio for name, ratio in zip(found, ratios, strict=True) if whole[name].any()]
    if control == "equal_norm":
        assert shared == pytest.approx([shared[0]] * len(shared) if shared else [])
    else:
        assert sum(1e-6 < ratio < 1 - 1e-6 for ratio in shared) <= 1


@quick
@given(stacks=task_vectors().filter(lambda stacks: len(next(iter(stacks.values()))) > 1), eta=st.floats(0, 1))
def test_as_many_random_layers_stay_whole_as_lwptv_keeps(stacks, eta):
    base, vectors, context = opened(stacks)

    def changed(name, **params):
        call = MethodCall(method=name, params={"eta": eta, **params})
        found, _, details = transformed(base, vectors, [call], context)
        return found, details[name]

    found, details = changed("random_layers", as_many=True)
    assert details == changed("lwptv")[1]
    assert details["kept_layers"] == len(stacks) - len(found.pruned)
    for name, stack in stacks.items():
        torch.testing.assert_close(found.stack(name), torch.zeros_like(stack) if name in found.pruned else stack)


@quick
@given(
    scores=st.lists(st.lists(coarse.map(abs), min_size=7, max_size=7), min_size=1, max_size=4),
    eta=st.floats(0, 1),
    frozen=st.integers(0, 3),
)
def test_lwptv_masks_prune_at_least_their_share_and_shrink_with_eta(scores, eta, frozen):
    scores = np.array(scores)
    masks, shared = lwptv_masks(scores, eta, frozen)
    assert (shared == masks.any(axis=0)).all()
    assert (masks.sum(axis=1) <= np.ceil((7 + frozen) * (1 - eta) + 1e-9)).all()
    assert not (lwptv_masks(scores, min(1.0, eta + 0.2), frozen)[0] & ~masks).any()
    assert not lwptv_masks(scores, 1.0, frozen)[1].any()


@quick
@given(values=st.lists(st.lists(coarse, max_size=40), min_size=1, max_size=6), data=st.data())
def test_order_statistics_are_exact_however_small_the_sample(values, data):
    everything = sorted(value for piece in values for value in piece)
    if not everything:
        return
    rank = data.draw(st.integers(1, len(everything)))
    sample = data.draw(st.integers(1, 50))
    pieces = [torch.tensor([piece, piece[::-1]], dtype=torch.float64) for piece in values]
    found = order_statistics(lambda step: iter(pieces[::step]), len(everything), [rank, 1], sample)
    assert found.tolist() == [[everything[rank - 1]] * 2, [everything[0]] * 2]


def test_order_statistics_of_many_numbers_are_exact_when_the_sample_misleads():
    steep = torch.exp(20 * torch.linspace(0, 1, 40_000)) * torch.arange(40_000).remainder(7).add(1)
    rows = torch.stack([torch.cat([steep, torch.zeros(5_000)]), torch.cat([torch.zeros(5_000), steep.flip(0)])])
    pieces, ordered = rows.split(777, dim=1), rows[0].sort().values
    ranks = (1, 2, 4_999, 5_001, 12_345, 36_000, 44_999, 45_000)
    for sample in (64, 4_000):
        found = order_statistics(lambda step: pieces[::step], 45_000, ranks, sample)
        assert torch.equal(found, torch.stack([ordered[[rank - 1] * 2] for rank in ranks]))


@quick
@given(bits=st.lists(st.booleans(), max_size=30))
def test_packed_masks_come_back(bits):
    mask = torch.tensor(bits, dtype=torch.bool)
    assert torch.equal(unpack(pack(mask), mask.shape), mask)


def test_adamerging_follows_the_gradient_through_the_merge():
    """The coefficients after one step of gradient descent equal those of autograd through the whole merge."""

    base, vectors = toy_vectors()
    context = TinyContext()
    batches = {task: next(context.batches(task, "adapt", 6))[0].double() for task in EXPERTS}
    start = torch.rand(len(vectors.names), 4, dtype=torch.float64)
    _, found = coefficient_gradient(base, vectors, start, batches, context)
    free = start.clone().requires_grad_()
    weights = {
        name: base.tensor(name).double() + torch.einsum("k,k...->...", row, vectors.stack(name))
        for row, name in zip(free, vectors.names, strict=True)
    }
    total = sum(entropy(predict(context.forward(weights, batches[task]), context.head(task))) for task in EXPERTS)
    total.backward()
    assert found.abs().max() > 0
    torch.testing.assert_close(found, free.grad)


@pytest.mark.parametrize("granularity", ["task", "layer"])
def test_adamerging_lowers_the_entropy_and_reports_its_coefficients(granularity):

    base, vectors = toy_vectors()
    params = {"granularity": granularity, "steps": 60, "learning_rate": 0.03, "batch_size": 128}
    result = merge(base, vectors, [], MethodCall(method="adamerging", params=params), TinyContext())
    details = result.info.details
    losses = details["loss"]
    assert sum(losses[-5:]) < sum(losses[:5])
    assert set(details["coefficients"]) == set(EXPERTS)
    values = torch.tensor(list(details["coefficients"].values()))
    assert values.shape == ((4, len(vectors.names)) if granularity == "layer" else (4,))
    assert values.min() >= 0
    assert values.max() <= 1
    assert (values - 0.3).abs().max() > 0.01


def test_cancelling_stops_adamerging_between_steps():

    class Stopped(TinyContext):
        def progress(self, fraction: float, message: str = "") -> None:
            super().progress(fraction, message)
            if len(self.fractions) == 3:
                raise Cancelled("stopped")

    context = Stopped()
    base, vectors = toy_vectors()
    with pytest.raises(Cancelled):
        merge(base, vectors, [], MethodCall(method="adamerging"), context)
    assert len(context.fractions) == 3


def test_thresholds_are_kept_by_expert_but_not_after_a_transform():

    base, vectors = toy_vectors()
    context = TinyContext()
    ties = MethodCall(method="ties")
    merge(base, vectors, [], ties, context)
    assert len(context.kept) == 4
    merge(base, vectors, [], ties, context)
    assert len(context.kept) == 4
    asked = len(context.asked)
    merge(base, vectors, [MethodCall(method="lwptv")], ties, context)
    assert len(context.asked) == asked


def test_inputs_of_linear_layers_are_seen_inside_attention():
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    weights = {name: tensor.detach().clone().requires_grad_() for name, tensor in attention.named_parameters()}
    tokens = torch.randn(3, 5, 8)
    watched = LayerInputs({name: tensor for name, tensor in weights.items() if tensor.dim() == 2})
    with watched:
        found = torch.func.functional_call(attention, weights, (tokens, tokens, tokens), {"need_weights": False})[0]
    flat_tokens = tokens.reshape(-1, 8)
    assert watched.tokens == {"in_proj_weight": 15, "out_proj.weight": 15}
    torch.testing.assert_close(watched.products["in_proj_weight"], flat_tokens.T @ flat_tokens)
    # The output projection is square here, so its inputs follow from the outputs.
    inputs = torch.linalg.solve(weights["out_proj.weight"], (found - weights["out_proj.bias"]).reshape(-1, 8).T).T
    torch.testing.assert_close(watched.products["out_proj.weight"], inputs.T @ inputs, rtol=1e-3, atol=1e-4)


def test_regmean_reproduces_experts_on_their_own_inputs_better_than_averaging():
    base, vectors = toy_vectors()
    context = TinyContext()
    merged_ = merge(base, vectors, [], MethodCall(method="regmean", params={"examples": 64}), context)
    name = "visual.transformer.resblocks.0.mlp.c_fc.weight"
    stack, found = vectors.stack(name), merged_.weights.tensor(name) - base.tensor(name).double()
    grams = [json.loads(key) for key in context.kept]
    assert [key[0] for key in grams] == list(EXPERTS)
    kept = [tensors[name].double() for tensors in context.kept.values()]

    def error(vector: Tensor) -> float:
        return sum(
            ((vector - own) @ gram @ (vector - own).T).trace().item() for own, gram in zip(stack, kept, strict=True)
        )

    assert error(found) < error(stack.mean(dim=0))


def test_regmean_refuses_too_few_images():
    base, vectors = toy_vectors()
    params = {"examples": 1, "off_diagonal": 1.0}
    result = merge(base, vectors, [], MethodCall(method="regmean", params=params), TinyContext())
    with pytest.raises(MergeError, match="Use more images"):
        result.weights.tensor("visual.transformer.resblocks.0.mlp.c_proj.weight")


def test_fisher_information_is_the_mean_squared_gradient():
    """With one class that is certain the gradient vanishes; with a real choice it does not."""
    base, vectors = toy_vectors()
    context = TinyContext()
    merge(base, vectors, [], MethodCall(method="fisher", params={"examples": 5}), context)
    first = next(iter(context.kept.values()))
    assert set(first) == set(vectors.names)
    assert all((tensor >= 0).all() for tensor in first.values())
    assert first["visual.proj"].max() > 0
    assert not first["visual.prompt_tokens"].any(), "the encoder does not use them"


@pytest.mark.parametrize(("granularity", "rescale"), [("layer", True), ("layer", False), ("task", True)])
def test_lwptv_scales_what_was_learned_by_layer_only(granularity, rescale):
    base, vectors = toy_vectors()
    scale = 0.6 if granularity == "layer" and rescale else 1.0
    call = MethodCall(method="adamerging", params={"granularity": granularity, "steps": 2})
    pruning = MethodCall(method="lwptv", params={"eta": 0.6, "rescale": rescale})
    result = merge(base, vectors, [pruning], call, TinyContext())
    kept = result.info.details["transforms"]["lwptv"]
    assert 0 < kept["kept_layers"] < kept["layers"] == len(vectors.names)
    coefficients = torch.tensor(list(result.info.details["coefficients"].values()), dtype=torch.float64)
    moved = 0
    for index, name in enumerate(vectors.names):
        column = coefficients[:, index] if granularity == "layer" else coefficients
        found = result.weights.tensor(name) - base.tensor(name).double()
        wanted = torch.einsum("k,k...->...", column, vectors.stack(name)) * scale
        if found.any():
            moved += 1
            torch.testing.assert_close(found, wanted)
    assert moved == kept["kept_layers"]


def test_scaling_a_merge_by_task_is_refused():
    base, vectors = toy_vectors()
    with pytest.raises(MergeError, match="one for each task"):
        merge(base, vectors, [MethodCall(method="lines")], MethodCall(method="emr"), TinyContext())


@quick
@given(stacks=task_vectors(), share=st.sampled_from([0.2, 0.5, 0.8, 1.0]))
def test_subspace_boosting_raises_small_singular_values_only(stacks, share):
    boosted = merged(stacks, "subspace_boosting", {"scaling": 1.0, "share": share})["all"]
    for name, stack in stacks.items():
        total = stack.sum(dim=0)
        if total.dim() != 2:
            torch.testing.assert_close(boosted[name], total)
            continue
        before, after = torch.linalg.svdvals(total), torch.linalg.svdvals(boosted[name])
        rank = int((before > 1e-9).sum())
        assert (after[:rank] >= before[:rank] - 1e-9).all()
        torch.testing.assert_close(after[:1], before[:1])
        assert (after[rank:] < 1e-9).all()
        if share == 1.0:
            torch.testing.assert_close(boosted[name], total)


@quick
@given(stacks=task_vectors())
def test_aligned_sums_are_sums(stacks):
    """KnOTS with a plain sum is task arithmetic on the matrices."""
    plain = merged(stacks, "task_arithmetic", {"scaling": 0.3})["all"]
    aligned = merged(stacks, "knots", {"merge": "sum", "scaling": 0.3})["all"]
    for name, tensor in aligned.items():
        torch.testing.assert_close(tensor, plain[name] if tensor.dim() == 2 else torch.zeros_like(tensor))
