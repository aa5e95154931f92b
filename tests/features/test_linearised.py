"""Linearised encoders: the identity that makes merges free, both modes of attention, gradients through them."""

import pytest
import torch
from torch.func import functional_call, jvp

from engine.features.linearised import Linearised, tangent
from engine.selfcheck.premerging.small import own_names, small_encoder
from engine.zoo.encoders.attention import plain_attention
from tests.reference.premerging.support import REFERENCE

IMAGES = REFERENCE.inputs("toyvit_data")["images0"].double()[:6]


def vectors():
    base = dict(small_encoder(REFERENCE, "base", "float64").named_parameters())
    models = [own_names(REFERENCE.weights(f"toyvit_expert{number}", "float64")) for number in range(3)]
    return base, [{name: model[name] - base[name] for name in base} for model in models]


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_attention_without_forward_derivative_is_guarded(mode):
    """Fused kernels have none: without the guard torch refuses, with it the derivative is the difference quotient."""
    encoder = small_encoder(REFERENCE, "base", "float64").train(mode)
    base, (vector, *_) = vectors()
    with pytest.raises(RuntimeError, match="forward AD"), torch.no_grad():
        jvp(lambda weights: functional_call(encoder, weights, (IMAGES,)), (base,), (vector,))
    features, change = tangent(encoder, base, vector, IMAGES)
    small = 1e-5

    def at(factor):
        return functional_call(encoder, {name: base[name] + factor * vector[name] for name in base}, (IMAGES,))

    torch.testing.assert_close(features, at(0.0))
    torch.testing.assert_close(change, (at(small) - at(-small)) / (2 * small), rtol=1e-6, atol=1e-8)


def test_the_guard_leaves_torch_as_it_was():
    for fast in (True, False):
        torch.backends.mha.set_fastpath_enabled(fast)
        with pytest.raises(KeyError), plain_attention():
            raise KeyError
        assert torch.backends.mha.get_fastpath_enabled() == fast
    torch.backends.mha.set_fastpath_enabled(True)


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def test_words_of_torch_about_its_own_parts_are_not_passed_on(recwarn):
    """Its forward derivatives are compiled by what it tells others not to use."""
    with plain_attention():
        torch.jit.script(_same)
    assert not recwarn.list
    with pytest.warns(FutureWarning, match="torch.jit.script"):
        torch.jit.script(_same)


def test_one_derivative_for_each_expert_gives_every_combination():
    base, taus = vectors()
    encoder = small_encoder(REFERENCE, "base", "float64")
    changes = [tangent(encoder, base, tau, IMAGES)[1] for tau in taus]
    for coefficients in ([0.3, 0.3, 0.3], [1.0, -0.5, 2.0]):
        merged = small_encoder(REFERENCE, "base", "float64")
        with torch.no_grad():
            for name, parameter in merged.named_parameters():
                for coefficient, tau in zip(coefficients, taus, strict=True):
                    parameter.add_(coefficient * tau[name])
        sums = sum(coefficient * change for coefficient, change in zip(coefficients, changes, strict=True))
        torch.testing.assert_close(Linearised(merged, base)(IMAGES), encoder(IMAGES) + sums)


def test_layers_without_a_vector_do_not_move():
    base, (tau, *_) = vectors()
    encoder = small_encoder(REFERENCE, "base", "float64")
    some = {name: vector for name, vector in tau.items() if "resblocks.0" in name}
    padded = {name: vector if name in some else torch.zeros_like(vector) for name, vector in tau.items()}
    torch.testing.assert_close(
        tangent(encoder, base, some, IMAGES)[1], tangent(encoder, base, padded, IMAGES)[1], rtol=1e-10, atol=1e-12
    )


def test_gradients_flow_and_the_structure_keeps_evaluating():
    base, _ = vectors()
    model = Linearised(small_encoder(REFERENCE, "expert1", "float64").requires_grad_(True), base).train()
    assert model.training
    assert not model.encoder.training
    model(IMAGES).square().sum().backward()
    with torch.no_grad():
        residual = 2 * model(IMAGES)
    name, parameter = "proj", model.encoder.proj
    probe = torch.zeros_like(parameter)
    probe[2, 3] = 1.0
    expected = (residual * tangent(model.encoder, base, {name: probe}, IMAGES)[1]).sum()
    torch.testing.assert_close(parameter.grad[2, 3], expected.detach())
