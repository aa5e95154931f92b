"""Alignment keeps functions, finds what was planted, and refuses what cannot be matched."""

from itertools import pairwise, permutations

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from engine.alignment.activations import PairedMoments, activation_matching
from engine.alignment.assignment import assign, assign_heads, score_of
from engine.alignment.methods import check_same_function, reordered
from engine.alignment.observing import perceptron_units, transformer_units
from engine.alignment.perceptron import Perceptron, perceptron_symmetry
from engine.alignment.repair import goals, repair, unit_statistics
from engine.alignment.sinkhorn import sinkhorn, sinkhorn_matching
from engine.alignment.symmetry import Symmetry, identity, permuted, random_permutations
from engine.alignment.transformer import RESIDUAL, folded, transformer_symmetry, unfolded
from engine.alignment.weight_matching import objective, weight_matching
from engine.analysis.interpolation import barrier
from engine.errors import AlignmentError
from engine.selfcheck.premerging.small import own_names, small_encoder
from engine.zoo.encoders.backbone import build_encoder
from tests.reference.premerging.support import REFERENCE

CONFIG = REFERENCE.config
IMAGES = REFERENCE.inputs("toyvit_data")["images0"].double()
DEEP = perceptron_symmetry(4)


def transformer(name="expert0"):
    return own_names(REFERENCE.weights(f"toyvit_{name}", "float64"))


def features(tensors):
    return functional_call(small_encoder(REFERENCE, "base", "float64"), dict(tensors), (IMAGES,))


def test_every_permutation_of_the_symmetry_keeps_a_transformers_function():
    own = transformer()
    symmetry, wanted = transformer_symmetry(CONFIG), features(own)
    orders = random_permutations(symmetry, unfolded(own), seed=1)
    for chosen in ({group: order} for group, order in orders.items() if group.split("_")[0] in ("units", RESIDUAL)):
        moved = folded(permuted(unfolded(own), symmetry, chosen), own)
        assert any(not torch.equal(moved[name], own[name]) for name in own), chosen
        torch.testing.assert_close(features(moved), wanted, rtol=1e-10, atol=1e-10)
    moved = folded(permuted(unfolded(own), symmetry, orders), own)
    torch.testing.assert_close(features(moved), wanted, rtol=1e-10, atol=1e-10)
    assert list(moved) == list(own)


def test_keys_and_values_may_be_ordered_apart_inside_heads_but_not_queries_and_keys():
    own, symmetry = transformer(), transformer_symmetry(CONFIG)
    turned = torch.cat([torch.arange(8).flip(0), torch.arange(8, 16)])
    for group in ("keys_0", "values_0"):
        moved = folded(permuted(unfolded(own), symmetry, {group: turned}), own)
        torch.testing.assert_close(features(moved), features(own), rtol=1e-10, atol=1e-10)
    queries_only = Symmetry({"broken": (("transformer.resblocks.0.attn.q.weight", 0),)})
    broken = folded(permuted(unfolded(own), queries_only, {"broken": turned}), own)
    assert (features(broken) - features(own)).abs().max() > 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_order_of_a_transformer_is_found_by_weights_and_by_activations(seed):
    own, symmetry = transformer(), transformer_symmetry(CONFIG)
    planted = random_permutations(symmetry, unfolded(own), seed)
    hidden = permuted(unfolded(own), symmetry, planted)
    wanted = {group: torch.argsort(order) for group, order in planted.items()}
    generator = torch.Generator().manual_seed(seed)
    noisy = {
        name: t + 1e-3 * t.std(unbiased=False) * torch.randn(t.shape, generator=generator) for name, t in hidden.items()
    }
    found = weight_matching(unfolded(own), noisy, symmetry)
    assert all(torch.equal(found[group], order) for group, order in wanted.items())
    networks = []
    for tensors in (own, folded(hidden, own)):
        networks.append(small_encoder(REFERENCE, "base", "float64"))
        networks[-1].load_state_dict(tensors)
    seen = [(transformer_units(networks[0], part), transformer_units(networks[1], part)) for part in IMAGES.split(16)]
    matched = activation_matching(seen, symmetry, "correlation")
    assert set(matched.permutations) == set(symmetry.groups)
    moved = permuted(hidden, symmetry, matched.permutations)
    assert all(torch.equal(moved[name], tensor) for name, tensor in unfolded(own).items())


def test_experts_of_one_base_match_themselves():
    one, two = (unfolded(transformer(f"expert{number}")) for number in (0, 1))
    symmetry = transformer_symmetry(CONFIG)
    found = weight_matching(one, two, symmetry)
    assert all(torch.equal(order, torch.arange(len(order))) for order in found.values())


def test_seen_units_are_those_of_the_network():
    network = Perceptron.of(REFERENCE.weights("mlp_a", "float64"))
    inputs = REFERENCE.weights("mlp_data", "float64")["test_x"][:20]
    units = perceptron_units(network, inputs)
    torch.testing.assert_close(network.layer3(units["P_2"]), network(inputs))
    encoder = small_encoder(REFERENCE, "expert0", "float64")
    seen = transformer_units(encoder, IMAGES[:3])
    block = encoder.transformer.resblocks[1]
    inner = []
    hook = block.mlp.c_proj.register_forward_pre_hook(lambda _, given: inner.append(given[0]))
    encoder(IMAGES[:3])
    hook.remove()
    torch.testing.assert_close(seen["units_1"].sort(dim=0).values, inner[0].reshape(-1, 32).sort(dim=0).values)
    assert seen["keys_1"].shape == (2 * 15, 16)
    assert seen["values_0"].shape == seen[RESIDUAL].shape == (15, 16)


def test_the_inner_product_never_falls_whatever_the_order_of_visits():
    one, two = REFERENCE.weights("mlp_a", "float64"), REFERENCE.weights("mlp_b", "float64")
    before = objective(one, two)
    reached = set()
    for order in (DEEP.units(), DEEP.units()[::-1]):
        sums = [
            objective(one, permuted(two, DEEP, weight_matching(one, two, DEEP, sweeps, order))) for sweeps in range(5)
        ]
        assert sums[0] == pytest.approx(before)
        assert all(later >= sooner - 1e-9 for sooner, later in pairwise(sums))
        assert sums[-1] > 5 * before
        reached.add(round(sums[-1], 6))
    assert len(reached) == 2, "local optima depend on the order"


def test_heads_are_paired_as_well_as_any_pairing():
    generator = torch.Generator().manual_seed(3)
    scores = [torch.randn(6, 6, generator=generator, dtype=torch.float64) for _ in range(2)]
    orders, heads = assign_heads(scores, width=2)
    found = sum(score_of(part, order) for part, order in zip(scores, orders, strict=True))
    best = max(
        sum(
            max(
                sum(float(part[2 * here + row, 2 * there + inner[row]]) for row in (0, 1))
                for inner in permutations((0, 1))
            )
            for part in scores
            for here, there in enumerate(order)
        )
        for order in permutations(range(3))
    )
    assert found == pytest.approx(best)
    assert all((order.view(3, 2) // 2 == heads[:, None]).all() for order in orders)


def test_networks_of_different_widths_or_with_nan_are_refused():
    one, two = Perceptron([4, 6, 3]).state_dict(), Perceptron([4, 5, 3]).state_dict()
    with pytest.raises(AlignmentError, match=r"layer0.weight has shape \(6, 4\) in one and shape \(5, 4\)"):
        weight_matching(one, two, perceptron_symmetry(2))
    with pytest.raises(AlignmentError, match="no such tensor"):
        weight_matching(one, {}, perceptron_symmetry(2))
    broken = {name: tensor * float("nan") for name, tensor in one.items()}
    with pytest.raises(AlignmentError, match="not finite"):
        weight_matching(one, broken, perceptron_symmetry(2))
    with pytest.raises(AlignmentError, match="plain vision transformers"):
        transformer_symmetry({"vision_cfg": {"layers": [1, 2], "width": 4}})
    with pytest.raises(AlignmentError, match="No perceptron"):
        Perceptron.of({"weight": torch.zeros(2, 2)})
    with pytest.raises(AlignmentError, match="at least one image"):
        activation_matching([], DEEP)


def test_units_that_never_change_are_dead_and_correlate_with_none():
    drawn = torch.Generator().manual_seed(0)
    for _ in range(50):
        seen, one, two = PairedMoments(), torch.rand(3, generator=drawn) * 3, torch.rand(3, generator=drawn) * 3
        moving = 1 + 1e-4 * torch.randn(8, 788, generator=drawn, dtype=torch.float64)
        for part in moving:
            first, second = one.double().repeat(len(part), 1), two.double().repeat(len(part), 1)
            first[:, 2], second[:, 2] = part, part
            seen.add(first, second)
        assert seen.dead == (2, 2)
        wanted = torch.zeros(3, 3, dtype=torch.float64)
        wanted[2, 2] = 1  # however little it moves
        torch.testing.assert_close(seen.correlation, wanted)


NAMED = {
    "scaled branches": {"ls_init_value": 0.1},
    "no first norm": {"no_ln_pre": True, "pos_embed_type": "sin_cos_2d", "pool_type": "avg"},
}


def vision(**changes):
    return {**CONFIG, "vision_cfg": {**CONFIG["vision_cfg"], **changes}}


@pytest.mark.parametrize("form", NAMED)
def test_forms_of_open_clips_transformers_keep_their_function(form):
    config, drawn = vision(**NAMED[form]), torch.Generator().manual_seed(0)
    encoder = build_encoder(config).double()
    own = {name: torch.randn(p.shape, generator=drawn, dtype=p.dtype) for name, p in encoder.named_parameters()}
    symmetry = transformer_symmetry(config)
    moved = reordered(own, symmetry, random_permutations(symmetry, unfolded(own), seed=1))
    assert not torch.equal(moved["ln_post.weight"], own["ln_post.weight"])
    assert check_same_function(encoder, own, moved, IMAGES[:2]) < 1e-12


def test_what_a_symmetry_would_not_reach_is_refused_at_once():
    pooled = vision(attentional_pool=True, attn_pooler_queries=4, attn_pooler_heads=2)
    with pytest.raises(AlignmentError, match=r"this one has attn_pool\.query besides"):
        transformer_symmetry(pooled)
    with pytest.raises(AlignmentError, match="besides, which no symmetry is known of"):
        transformer_symmetry(vision(qk_norm=True))


def trained(seed, inputs, labels):
    torch.manual_seed(seed)
    network = Perceptron([64, 24, 10])
    adam = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(60):
        adam.zero_grad()
        functional.cross_entropy(network(inputs), labels).backward()
        adam.step()
    return network.state_dict()


def test_learned_matching_lowers_the_barrier_and_repair_restores_statistics():
    data = REFERENCE.inputs("mlp_data")
    inputs, labels = data["train_x"], data["train_y"]
    one, two = (trained(seed, inputs, labels) for seed in (0, 1))
    network, shallow = Perceptron([64, 24, 10]), perceptron_symmetry(2)

    def loss(weights):
        return functional.cross_entropy(functional_call(network, dict(weights), (inputs,)), labels)

    def rise(end):
        places = torch.linspace(0, 1, 11).tolist()
        with torch.no_grad():
            return barrier(places, [float(loss({n: torch.lerp(t, end[n], p) for n, t in one.items()})) for p in places])

    shares = []
    found = sinkhorn_matching(one, two, shallow, loss, steps=150, progress=shares.append)
    moved = permuted(two, shallow, found)
    with torch.no_grad():
        assert float(loss(moved)) == pytest.approx(float(loss(two)), rel=1e-5), "the same function"
    assert rise(moved) < 0.6 * rise(two)
    assert shares[-1] == 1.0
    assert len(shares) == 150

    layers = ["layer0", "layer1"]
    statistics = [unit_statistics(Perceptron.of(end), layers, inputs) for end in (one, moved)]
    middle = Perceptron.of({name: torch.lerp(tensor, moved[name], 0.5) for name, tensor in one.items()})
    wanted = goals(*statistics)
    ratios = repair(middle, wanted, inputs)
    assert float(ratios["layer0"].mean()) < 0.95, "variance is lost between networks"
    after = unit_statistics(middle, layers, inputs)
    for name in layers:
        torch.testing.assert_close(after[name].mean, wanted[name].mean, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(after[name].variance, wanted[name].variance, rtol=1e-2, atol=1e-3)


def test_sinkhorn_is_doubly_stochastic_and_sharpens_to_the_assignment():
    scores = torch.randn(7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    soft = sinkhorn(scores, 200)
    torch.testing.assert_close(soft.sum(dim=0), torch.ones(7, dtype=torch.float64))
    torch.testing.assert_close(soft.sum(dim=1), torch.ones(7, dtype=torch.float64))
    assert torch.equal(sinkhorn(scores, 400, temperature=0.01).argmax(dim=1), assign(scores))


def test_identity_changes_nothing():
    own = REFERENCE.weights("mlp_a", "float64")
    moved = permuted(own, DEEP, identity(DEEP, own))
    assert all(torch.equal(moved[name], tensor) for name, tensor in own.items())
