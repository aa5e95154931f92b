"""The training loop against one written out, and augmentations that keep what they promise."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from engine.errors import CheckpointError
from engine.zoo.encoders.training import Schedule, Trainer, scheduled
from engine.zoo.images.augment import AUGMENTATIONS, augment


def small():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))


def batches(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        images = torch.randn(6, 3, 2, 2, generator=generator)
        yield images, [torch.randint(0, 3, (3,), generator=generator) for _ in range(2)]


HEADS = [functional.normalize(torch.randn(3, 4, generator=torch.Generator().manual_seed(n)), dim=1) for n in (5, 6)]


def test_two_heads_train_as_written_out():
    schedule = Schedule(steps=5, learning_rate=0.01, warmup=2, weight_decay=0.1, label_smoothing=0.2)
    trainer = Trainer(small(), HEADS, 10.0, schedule)
    model = small()
    adam = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.1)
    for step, (images, labels) in enumerate(batches(5)):
        got = trainer.advance(images, labels)
        cosines = [functional.normalize(model(images[3 * n : 3 * n + 3]), dim=1) @ HEADS[n].T for n in (0, 1)]
        smooth = [0.8 * functional.one_hot(own, 3) + 0.2 / 3 for own in labels]
        losses = [-(t * torch.log_softmax(10 * c, dim=1)).sum(1).mean() for t, c in zip(smooth, cosines, strict=True)]
        loss = sum(losses) / 2
        adam.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
        for parameter in model.parameters():
            parameter.grad.mul_(min(1.0, 1.0 / norm))
        adam.param_groups[0]["lr"] = 0.01 * min(1, (step + 1) / 2) * (1 + math.cos(math.pi * step / 5)) / 2
        adam.step()
        assert float(got) == pytest.approx(loss.item(), rel=1e-5)
    for ours, theirs in zip(trainer.encoder.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_restored_training_goes_on_bit_by_bit():
    schedule = Schedule(steps=8, learning_rate=0.01, warmup=1, weight_decay=0.1)
    whole, first = (Trainer(small(), HEADS, 10.0, schedule) for _ in range(2))
    for number, batch in enumerate(batches(8)):
        whole.advance(*batch)
        if number < 3:
            first.advance(*batch)
    state = {name: tensor.clone() for name, tensor in first.state().items()}
    second = Trainer(torch.nn.Sequential(*small()), HEADS, 10.0, schedule)
    second.restore(state, 3)
    for batch in list(batches(8))[3:]:
        second.advance(*batch)
    pairs = zip(whole.encoder.parameters(), second.encoder.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_state_of_another_encoder_is_refused():
    trainer = Trainer(small(), HEADS, 10.0, Schedule(2, 0.01, 1))
    trainer.advance(*next(batches(1)))
    other = Trainer(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4)), HEADS, 1.0, Schedule(2, 0.01, 1))
    with pytest.raises(CheckpointError, match="does not belong"):
        other.restore(trainer.state(), 1)


class Idle(torch.nn.Module):
    """A model with a parameter that no loss reaches."""

    def __init__(self):
        super().__init__()
        self.inner, self.idle = small(), torch.nn.Parameter(torch.ones(2))

    def forward(self, samples):
        return self.inner(samples)


def test_parameters_that_never_moved_are_restored_so():
    first, second = (Trainer(Idle(), HEADS, 10.0, Schedule(3, 0.01, 1)) for _ in range(2))
    one, two = list(batches(2))
    first.advance(*one)
    second.restore({name: tensor.clone() for name, tensor in first.state().items()}, 1)
    first.advance(*two)
    second.advance(*two)
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("name", ["exp_avg.0", "step.1", "model.1.weight"])
def test_a_damaged_state_leaves_everything_as_it_was(name):
    first, second = (Trainer(small(), HEADS, 10.0, Schedule(2, 0.01, 1)) for _ in range(2))
    first.advance(*next(batches(1)))
    state, before = first.state(), {name: tensor.clone() for name, tensor in second.state().items()}
    with pytest.raises(CheckpointError):
        second.restore({known: tensor for known, tensor in state.items() if known != name}, 1)
    assert second.step == 0
    assert second.state().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in second.state().items())


def test_the_rate_rises_then_falls_to_nothing():
    rates = [scheduled(1.0, step, 100, 10) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9]
    assert rates[-1] < 0.001


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_augmentations_repeat_and_stay_in_range(kind):
    images = torch.rand(16, 3, 32, 32)
    one, again, other = (augment(images, kind, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert one.shape == images.shape
    assert one.min() >= images.min() - 1e-6
    assert one.max() <= images.max() + 1e-6
    assert torch.equal(one, images) == (kind == "none") == torch.equal(one, other)


def test_a_shift_moves_whole_pixels_by_at_most_a_sixteenth():
    images = torch.rand(64, 3, 32, 32)
    moved = augment(images, "shift", np.random.default_rng(0))
    padded = functional.pad(images, (2,) * 4, mode="replicate")
    places = set()
    for image, before in zip(moved, padded, strict=True):
        found = [
            (y, x)
            for y in range(5)
            for x in range(5)
            if torch.allclose(image, before[:, y : y + 32, x : x + 32], atol=1e-4)
        ]
        assert len(found) == 1
        places.update(found)
    assert len(places) > 15


def test_flips_mirror_about_half_of_the_images():
    images = torch.zeros(200, 3, 32, 32)
    images[..., :8] = 1
    flipped = augment(images, "shift_flip", np.random.default_rng(0))
    share = (flipped[..., 20:].sum((1, 2, 3)) > flipped[..., :12].sum((1, 2, 3))).float().mean()
    assert 0.35 < share < 0.65
