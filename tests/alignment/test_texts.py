"""Symmetries of text encoders: every order keeps the function in float64, and planted ones are found."""

import pytest
import torch
from torch.func import functional_call

from engine.alignment.activations import activation_matching
from engine.alignment.methods import check_same_function
from engine.alignment.observing import transformer_units
from engine.alignment.repair import unit_statistics
from engine.alignment.symmetry import permuted, random_permutations
from engine.alignment.transformer import RESIDUAL, matrix_names, transformer_symmetry
from engine.alignment.weight_matching import weight_matching
from engine.analysis.interpolation import Between, accuracy_and_loss, barrier
from engine.errors import AlignmentError
from engine.types import Affine
from engine.weights import Memory
from engine.zoo.encoders.heads import ZeroShotHead
from engine.zoo.texts.config import checked
from engine.zoo.texts.families import FAMILIES
from tests import tiny_text_zoo
from tests.features.test_blocks import PAD, made
from tests.made_text_models import CLASSIFIERS


@pytest.fixture(params=PAD)
def network(request):
    """A small encoder of each family in float64, its config, layout, texts that are padded, and tensors."""
    kind = request.param
    encoder = made(kind)[0].double()
    sizes = (
        tiny_text_zoo.CONFIG if kind == "bert" else {"model_type": kind, "type_vocab_size": 2, **CLASSIFIERS[kind][3]}
    )
    ids = torch.randint(1, 12, (24, 8), generator=torch.Generator().manual_seed(1))
    ids[::3, 5:] = PAD[kind]
    samples = torch.stack([ids, torch.zeros_like(ids)], dim=1)
    tensors = {name: tensor.detach().clone() for name, tensor in encoder.named_parameters()}
    return encoder, checked(sizes, "of the test"), FAMILIES[kind].layout, samples, tensors


def test_every_permutation_keeps_the_function(network):
    encoder, config, layout, samples, own = network
    symmetry = transformer_symmetry(config)
    assert RESIDUAL in symmetry.groups
    assert symmetry.features == (RESIDUAL if layout.streamed else "")
    orders = random_permutations(symmetry, own, seed=1)
    for chosen in (orders, *({group: order} for group, order in orders.items() if not group.startswith(("k", "v")))):
        moved = permuted(own, symmetry, chosen)
        assert any(not torch.equal(moved[name], own[name]) for name in own)
        order = symmetry.order_of_features(chosen)
        assert (order is not None) is (layout.streamed and RESIDUAL in chosen)
        assert check_same_function(encoder, own, moved, samples, order) < 1e-12
        if order is not None:
            with pytest.raises(AlignmentError, match="changed what the network computes"):
                check_same_function(encoder, own, moved, samples)
    within = random_permutations(symmetry.within, own, seed=1)
    assert (RESIDUAL in within) is not layout.streamed
    check_same_function(encoder, own, permuted(own, symmetry, within), samples)


def test_a_planted_order_is_found_by_weights_and_by_activations(network):
    encoder, config, layout, samples, own = network
    symmetry = transformer_symmetry(config)
    planted = random_permutations(symmetry, own, seed=2)
    hidden = permuted(own, symmetry, planted)
    found = weight_matching(own, hidden, symmetry)
    assert all(torch.equal(found[group], torch.argsort(order)) for group, order in planted.items())
    first = transformer_units(encoder, samples, layout)
    encoder.load_state_dict({**encoder.state_dict(), **hidden})
    matched = activation_matching([(first, transformer_units(encoder, samples, layout))], symmetry, "correlation")
    assert set(matched.permutations) == set(symmetry.groups)
    moved = permuted(hidden, symmetry, matched.permutations)
    assert all(torch.equal(moved[name], tensor) for name, tensor in own.items())


@pytest.mark.parametrize("affine", [False, True])
def test_no_barrier_is_left_between_a_network_and_a_permutation_of_itself(affine, network):
    """Heads are part of the network: one that reads moved features has moved with them."""
    encoder, config, _, samples, own = network
    symmetry = transformer_symmetry(config)
    hidden = permuted(own, symmetry, planted := random_permutations(symmetry, own, seed=4))
    generator = torch.Generator().manual_seed(6)
    weight, dense = (torch.randn(rows, 16, generator=generator, dtype=torch.float64) for rows in (3, 16))
    classifier = Affine(weight[:, 0], dense, dense[0], "tanh") if affine else None
    head = ZeroShotHead(weight, 1.0 if affine else 5.0, classifier)
    labels = head.classes(encoder(samples))
    found = weight_matching(own, hidden, symmetry)
    alphas, barriers = (0.0, 0.25, 0.5, 0.75, 1.0), {}
    moved = symmetry.order_of_features(planted)
    back = moved if moved is None else moved[found[RESIDUAL]]
    for name, end, order in (("plain", hidden, moved), ("aligned", permuted(hidden, symmetry, found), back)):
        losses = []
        for alpha in alphas:
            between = Between(Memory(own), Memory(end), alpha)
            features = functional_call(encoder, {n: between.tensor(n).double() for n in own}, (samples,))
            reading = head.read_by(torch.lerp(head.reader, head.reordered(order).reader, alpha))
            losses.append(accuracy_and_loss(features, reading, labels)[1])
        assert losses[-1] == pytest.approx(losses[0], rel=1e-5), "the ends compute the same"
        barriers[name] = barrier(alphas, losses)
    assert barriers["aligned"] == pytest.approx(0, abs=1e-5)
    assert barriers["plain"] > 0.05


def test_units_are_seen_where_there_are_tokens(network):
    encoder, _, layout, samples, _ = network
    given, tokens = [], int(encoder.there(samples).sum())
    assert tokens < samples[:, 0].numel()
    block = matrix_names(layout, "proj", 2)[1]
    hook = encoder.get_submodule(block).register_forward_pre_hook(lambda _, x: given.append(x[0]))
    with torch.no_grad():
        encoder(samples)
    hook.remove()
    seen = transformer_units(encoder, samples, layout)
    torch.testing.assert_close(seen["units_1"], given[0][encoder.there(samples)])
    assert len(seen["keys_0"]) == 2 * tokens
    assert len(seen["values_0"]) == len(seen[RESIDUAL]) == tokens
    (name,) = matrix_names(layout, "fc", 1)
    statistics = unit_statistics(encoder, [name], samples)[name]
    rows = []
    hook = encoder.get_submodule(name).register_forward_hook(lambda _, x, out: rows.append(out))
    with torch.no_grad():
        functional_call(encoder, {}, (samples,))
    hook.remove()
    torch.testing.assert_close(statistics.mean, rows[0][encoder.there(samples)].mean(0))


def test_models_that_write_answers_have_no_symmetry_that_is_known():
    config = {
        "model_type": "t5",
        "vocab_size": 24,
        "d_model": 16,
        "num_layers": 2,
        "num_heads": 2,
        "d_ff": 24,
        "d_kv": 8,
    }
    with pytest.raises(AlignmentError, match="none of them"):
        transformer_symmetry(checked(config, "of the test"))
