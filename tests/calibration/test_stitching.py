"""Stitched networks, cross-task linearity and drawn shifts, against plain computations."""

import numpy as np
import pytest
import torch
from open_clip.model import CLIP

from engine.analysis.linearity import combined, likeness
from engine.calibration import IntervMerge, SurgeryV2
from engine.calibration.stitching import Network, stitched_features
from engine.catalog import CALIBRATORS, params_of
from engine.errors import DataError
from engine.zoo.images.corruptions import CORRUPTIONS, IMPULSES, MUD_COLOUR
from engine.zoo.images.shifts import SHIFTS, shift
from tests.tiny_zoo import CONFIG

BLOCKS = 3
SIZES = {"dim": 16, "width": 32, "blocks": BLOCKS, "tokens": 5}
CUTS = range(BLOCKS + 3)


def encoder(seed):
    torch.manual_seed(seed)
    vision = {**CONFIG["vision_cfg"], "layers": BLOCKS}
    tower = CLIP(**{**CONFIG, "vision_cfg": vision}).visual.eval()
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return tower


def images(count=5):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def plain(first, second, cut, x):
    """The same by hand: embedding, blocks and read-out of one encoder or the other."""
    owner = [first if part < cut else second for part in range(BLOCKS + 2)]
    x = owner[0]._embeds(x)
    for number in range(BLOCKS):
        x = owner[number + 1].transformer.resblocks[number](x)
    return owner[-1].ln_post(x[:, 0]) @ owner[-1].proj


@pytest.mark.parametrize("cut", CUTS)
def test_a_stitched_network_is_the_parts_of_both_one_after_the_other(cut):
    first, second = encoder(1), encoder(2)
    with torch.no_grad():
        expected = plain(first, second, cut, images())
        if cut in (0, BLOCKS + 2):
            torch.testing.assert_close(expected, (first if cut else second)(images()))
    found = stitched_features(Network(first), Network(second), cut, images().split(2))
    torch.testing.assert_close(found, expected)
    assert all(parameter.requires_grad for parameter in (*first.parameters(), *second.parameters()))


def calibrator(kind, **params):
    made = kind()
    config = params_of(CALIBRATORS[kind.method], params)
    made.reset(("alpha", "beta"), SIZES, config, seed=3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
    return made


def corrected_by_hand(module, kind, first, second, cut, own, x):
    """A pass through both encoders with the changes written out, in the parts that are the calibrator's own."""
    owner = [first if part < cut else second for part in range(BLOCKS + 2)]
    x = owner[0]._embeds(x)
    for number in range(BLOCKS):
        block, acts = owner[number + 1].transformer.resblocks[number], number + 1 in own
        normed = block.ln_1(x)
        v = block.attn(normed, normed, normed, need_weights=False)[0]
        if kind is IntervMerge and acts:
            w1, b1, w2, b2 = (
                getattr(module, name)[1, number, 0, 0] for name in ("source", "bias", "target", "target_bias")
            )
            h = v[:, 0]
            v = torch.cat([(h + (h @ w1.T + b1 - h @ w2.T - b2) @ w2)[:, None], v[:, 1:]], 1)
        x = x + v
        x = x + block.mlp(block.ln_2(x))
        if kind is SurgeryV2 and acts:
            x = x - (x @ module.down[1, number].T).relu() @ module.up[1, number].T
    f = owner[-1].ln_post(x[:, 0]) @ owner[-1].proj
    if kind is SurgeryV2 and BLOCKS + 1 in own:
        f = f - (f @ module.down_output[1].T).relu() @ module.up_output[1].T
    return f


@pytest.mark.parametrize("kind", [IntervMerge, SurgeryV2])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("begins", [True, False])
def test_a_calibrator_acts_in_its_own_networks_parts_only(kind, cut, begins):
    first, second, module = encoder(1), encoder(2), calibrator(kind)
    repaired, other = Network(first if begins else second, module, "beta"), Network(second if begins else first)
    own = range(cut) if begins else range(cut, BLOCKS + 2)
    before = {name: value.clone() for name, value in module.named_parameters()}
    with torch.no_grad():
        expected = corrected_by_hand(module, kind, first, second, cut, own, images())
    found = stitched_features(*((repaired, other) if begins else (other, repaired)), cut, [images()])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in module.named_parameters())


@pytest.mark.parametrize("function", ["lobireft", "consreft", "direft", "loreft", "nodireft"])
def test_silent_interventions_change_nothing_whatever_their_function(function):
    model, module = encoder(1), calibrator(IntervMerge, function=function)
    silent = module.acting_in([])
    with torch.no_grad():
        torch.testing.assert_close(silent.correct_features(model, images(), "alpha"), model(images()))
        assert not torch.allclose(module.correct_features(model, images(), "alpha"), model(images()))


def test_a_linear_model_is_as_near_as_can_be_and_others_are_not():
    rng = np.random.default_rng(0)
    x, base = rng.normal(size=(7, 5)), rng.normal(size=(2, 5, 4))
    vectors = {"a": rng.normal(size=(2, 5, 4)), "b": rng.normal(size=(2, 5, 4))}

    def activations(weights):
        return np.stack([x @ block for block in weights])

    weights = {"a": 0.3, "b": 0.5}
    experts = {name: activations(base + vector) for name, vector in vectors.items()}
    target = combined(activations(base), experts, weights)
    merged = activations(base + 0.3 * vectors["a"] + 0.5 * vectors["b"])
    np.testing.assert_allclose(target, merged)
    assert likeness(merged, target, activations(base)) == pytest.approx([1, 1])
    by_hand = [
        np.mean([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(*pair, strict=True)])
        for pair in zip(experts["a"], target, strict=True)
    ]
    assert likeness(experts["a"], target) == pytest.approx(by_hand)
    mean = combined(activations(base), experts, dict.fromkeys(experts, 0.5))
    np.testing.assert_allclose(mean, (experts["a"] + experts["b"]) / 2)


def test_what_did_not_move_has_no_change():
    base = np.ones((2, 3, 4))
    assert likeness(base, base + 1, base) == [None, None]
    gone = np.full((2, 3, 4), np.nan)
    assert likeness(gone, base) == [None, None]
    with pytest.raises(DataError, match="of b are missing"):
        combined(base, {"a": base}, {"a": 0.5, "b": 0.5})


@pytest.mark.parametrize("kind", SHIFTS)
def test_shifts_change_images_the_same_way_every_time(kind):
    pixels = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = shift(pixels, kind, "digits", 0)
    assert found.dtype == torch.uint8
    assert found.shape == pixels.shape
    assert (found.int() - pixels.int()).abs().float().mean() > 5
    assert torch.equal(found, shift(pixels, kind, "digits", 0))
    assert (kind == "noise") != torch.equal(found, shift(pixels, kind, "digits", 1))


CHANCE = {"impulse_noise", "gaussian_noise", "motion_blur", "spatter"}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corruptions_change_images_the_same_way_every_time(kind):
    pixels = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = shift(pixels, kind, "digits", 0)
    assert (found.dtype, found.shape) == (torch.uint8, pixels.shape)
    assert (found.int() - pixels.int()).abs().float().mean() > 2
    assert torch.equal(found, shift(pixels, kind, "digits", 0))
    assert (kind in CHANCE) != torch.equal(found, shift(pixels, kind, "digits", 1))
    assert shift(pixels[:, :, :20, :28], kind, "digits", 0).shape == (4, 3, 20, 28)


def test_corruptions_are_what_they_say():
    grey = torch.full((8, 3, 32, 32), 120, dtype=torch.uint8)
    for kind in ("motion_blur", "pixelate", "low_contrast"):
        assert torch.equal(shift(grey, kind, "a", 0), grey), kind  # nothing in them can move
    impulses = shift(grey, "impulse_noise", "a", 0)
    assert (impulses != 120).float().mean() == pytest.approx(IMPULSES, rel=0.1)
    assert set(impulses.unique().tolist()) == {0, 120, 255}
    assert shift(grey, "gaussian_noise", "a", 0).float().std() == pytest.approx(25.5, rel=0.05)
    edge = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    edge[..., 16:] = 255
    smeared = shift(edge, "motion_blur", "a", 0).float().mean((0, 1, 2))
    assert (smeared.diff() >= 0).all()
    assert 0 < smeared[12] < 255 == smeared[-1]
    muddy = shift(torch.full((16, 3, 32, 32), 255, dtype=torch.uint8), "spatter", "a", 0)
    darkest = muddy.permute(0, 2, 3, 1).reshape(-1, 3).float().min(dim=0).values / 255
    np.testing.assert_allclose(darkest, MUD_COLOUR, atol=0.2)
    assert 0.01 < (muddy < 255).float().mean() < 0.7


def test_negatives_and_contrast_are_what_they_say():
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(shift(pixels, "negative", "a", 0), 255 - pixels)
    found = shift(pixels, "contrast", "a", 0).float()
    assert found.std() == pytest.approx(0.35 * pixels.float().std().item(), rel=0.05)
