"""Calibrators inside encoders of texts: the tower is the encoder, changes are those of hooks, padding does nothing."""

import pytest
import torch
from torch.nn import functional

from engine.calibration import IntervMerge, SurgeryV2
from engine.calibration.deep import plain_features
from engine.calibration.stations import block_outputs
from engine.calibration.text_tower import TextTower, tower_of
from engine.calibration.tower import frozen
from engine.catalog.deep_calibrators import IntervMergeParams, SurgeryV2Params
from tests.features.test_blocks import PAD, made


@pytest.fixture(params=PAD)
def encoder(request):
    """A small encoder of each family, and texts of which some are padded."""
    network = made(request.param)[0].double()
    ids = torch.randint(1, 12, (10, 8), generator=torch.Generator().manual_seed(1))
    ids[::3, 5:] = PAD[request.param]
    return network, torch.stack([ids, torch.zeros_like(ids)], dim=1)


def padded(samples):
    """The same texts with three more places that pad."""
    return functional.pad(samples, (0, 3))


def drawn(calibrator, tower, config):
    """A calibrator of two tasks whose modules all do something."""
    calibrator.reset(("A", "B"), tower.sizes(), config, 0, torch.float64)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return calibrator


@torch.no_grad()
def test_the_tower_computes_what_the_encoder_computes(encoder):
    network, samples = encoder
    tower = tower_of(network)
    assert isinstance(tower, TextTower)
    torch.testing.assert_close(plain_features(tower, samples), network(samples))
    assert tower.sizes() == {"dim": 16, "width": 16, "blocks": 2, "tokens": 1}
    alone = tower.finish(1, (x := tower.run(tower.embed(samples), 0, 1))[:, :1], tower.attend(1, x, class_only=True))
    torch.testing.assert_close(tower.read_out(alone), network(samples))


@pytest.mark.parametrize("blocks", ["all", (1,)])
@torch.no_grad()
def test_interventions_equal_hooks_on_the_encoder(encoder, blocks):
    network, samples = encoder
    tower = tower_of(network)
    calibrator = drawn(IntervMerge(), tower, IntervMergeParams(rank=2, blocks=blocks))
    mine = calibrator.correct_features(network, samples, "B")
    handles = []
    for place, number in enumerate(calibrator._blocks()):

        def change(module, inputs, output, place=place):
            moved = calibrator.change(output[:, :1], place, slice(1, 2))
            return torch.cat([moved, output[:, 1:]], 1)

        name = network.layout.matrix("out").name.removesuffix(".weight")
        handles.append(network.stations[number].get_submodule(name).register_forward_hook(change))
    wanted = network(samples)
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(mine, wanted)
    assert not torch.allclose(mine, network(samples), atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (IntervMerge, IntervMergeParams(rank=2)),
        (SurgeryV2, SurgeryV2Params(rank=3)),
        (SurgeryV2, SurgeryV2Params(rank=3, statistic="class")),
    ],
)
@torch.no_grad()
def test_what_pads_changes_nothing(encoder, kind, config):
    network, samples = encoder
    if network.there(padded(samples))[:, -1].any():
        pytest.fail("zeros do not pad these texts")
    calibrator = drawn(kind(), tower_of(network), config)
    for make in (
        lambda given: calibrator.teach(network, given, config),
        lambda given: calibrator.correct_features(network, given, "A"),
        lambda given: block_outputs(network, [given], calibrator, "B")["features"],
    ):
        torch.testing.assert_close(make(padded(samples)), make(samples))
    with frozen(network):
        tower = tower_of(network)
        whole = calibrator.student(tower, calibrator.prefix(tower, torch.cat([samples, samples])), slice(0, 2))
        for row in (0, 1):  # batches of several tasks carry their own padding
            alone = calibrator.student(tower, calibrator.prefix(tower, samples), slice(row, row + 1))
            torch.testing.assert_close(whole[row], alone[0])


@torch.no_grad()
def test_blocks_with_a_calibrator_inside_are_noted_over_the_tokens_that_are_there(encoder):
    network, samples = encoder
    calibrator = IntervMerge()
    calibrator.reset(("A",), tower_of(network).sizes(), IntervMergeParams(rank=1), 0, torch.float64)
    for parameter in calibrator.parameters():
        parameter.zero_()
    plain, inside = block_outputs(network, [samples]), block_outputs(network, [samples], calibrator, "A")
    torch.testing.assert_close(inside["class"], plain["class"])
    torch.testing.assert_close(inside["mean"][0], plain["mean"][0])
    assert inside["mean"][1].isnan().all(), "only the class token leaves the last block"
    torch.testing.assert_close(inside["features"], plain["features"])
