"""Statistics of tokens are the same however texts are padded and batched."""

from dataclasses import dataclass, field
from functools import cache

import pytest
import torch

from engine.alignment.repaired_merge import repair_merge
from engine.catalog.transforms import RepairParams
from engine.features.blocks import present
from engine.merging.apply import merge
from engine.merging.regmean import input_products
from engine.recipe import MethodCall
from engine.types import Static
from engine.weights import LazyTaskVectors, Memory
from engine.zoo.encoders.backbone import architecture, build_encoder, forward_with, outline
from engine.zoo.folder import Zoo
from engine.zoo.texts.config import checked
from tests.features.test_blocks import PAD, made
from tests.made_text_models import T5_SIZES
from tests.reference.merging.support import TinyContext

TEXTS = 24
FAMILIES = ("mini_text", "roberta", "distilbert", "t5")
MARK = 2  # ends each answer of a T5


@dataclass
class Texts(TinyContext):
    """A context whose batches are given: texts of two tasks, by the task's name."""

    encoder: torch.nn.Module = None
    given: dict = field(default_factory=dict)
    padded: bool = True

    def batches(self, task, split, size):
        while True:
            yield from ((batch, None) for batch in self.given[task])

    def forward(self, weights, images):
        return forward_with(self.encoder, weights, images)

    def present(self, samples):
        return present(self.encoder, samples)


@cache
def world(family):
    """An encoder with a base and two experts, and texts of each expert's task."""
    if family == "mini_text":
        zoo = Zoo.open("mini_text")
        encoder = build_encoder(architecture(zoo.folder, zoo.manifest)).double()
        names = list(zoo.manifest.expert_table)[:2]
        base, experts = zoo.weights("base"), {name: zoo.weights(name) for name in names}
        tasks = [zoo.manifest.expert_table[name].task for name in names]
        texts = {task: torch.as_tensor(zoo.data[task].samples("adapt", range(TEXTS))) for task in tasks}
        return encoder, base, experts, texts
    generator = torch.Generator().manual_seed(2)
    if family == "t5":
        config = checked({"model_type": "t5", **T5_SIZES}, "of the test")
        encoder = outline(config).to_empty(device="cpu")  # which computes in float32
        for tensor in encoder.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) / 4)
        prefix = "t5."
    else:
        encoder = made(family)[0].double()
        prefix = f"{family}."
    own = {prefix + name: tensor.clone() for name, tensor in encoder.state_dict().items()}

    def moved():
        return Memory(
            {
                name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                if tensor.is_floating_point()
                else tensor
                for name, tensor in own.items()
            }
        )

    texts = {}
    for task in ("one", "two"):
        ids = torch.randint(5, 12, (TEXTS, 12), generator=generator)
        for row, length in enumerate(torch.randint(3, 11, (TEXTS,), generator=generator).tolist()):
            ids[row, length:] = PAD.get(family, 0)
        second = torch.zeros_like(ids)
        if family == "t5":
            second[:, :4] = torch.tensor([5, MARK, 6, MARK])
        texts[task] = torch.stack([ids, second], dim=1)
    return encoder, Memory(own), {"one": moved(), "two": moved()}, texts


def lengths(encoder, samples):
    return encoder.there(samples).sum(dim=1)


def trimmed(encoder, samples):
    """The same texts, padded to the longest of them."""
    return samples[..., : max(4, int(lengths(encoder, samples).max()))]  # the answers of T5 take four


def as_they_are(encoder, samples):
    return [samples]


def nothing_pads(encoder, samples):
    return None


def sorted_by_length(encoder, samples):
    return [trimmed(encoder, part) for part in samples[lengths(encoder, samples).argsort()].split(8)]


def shuffled(encoder, samples):
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(5))
    return [trimmed(encoder, part) for part in samples[order].split(10)]


def one_by_one(encoder, samples):
    return [trimmed(encoder, part) for part in samples.split(1)]


def tensors(merged: Static):
    return {name: merged.weights.tensor(name) for name in merged.weights.names}


def close(found, wanted):
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: name + text)


def context_of(encoder, texts, batched, counted=present):
    context = Texts(tasks=tuple(texts), encoder=encoder)
    context.given = {task: batched(encoder, samples) for task, samples in texts.items()}
    context.present = lambda samples: counted(encoder, samples)
    return context


@pytest.mark.parametrize("family", FAMILIES)
def test_inner_products_are_those_of_the_words_however_they_are_batched(family):
    encoder, base, experts, texts = world(family)
    vectors = LazyTaskVectors(base, experts, dtype=torch.float32 if family == "t5" else torch.float64)
    name, task = next(iter(experts)), next(iter(texts))

    def found(batched, counted=present):
        context = context_of(encoder, texts, batched, counted)
        products = input_products(base, vectors, name, task, TEXTS, context)
        assert all('"counted": "present"' in key for key in context.kept)
        return products

    wanted = found(as_they_are)
    for batched in (sorted_by_length, shuffled, one_by_one):
        close(found(batched), wanted)
    with pytest.raises(AssertionError):
        close(found(one_by_one, nothing_pads), found(as_they_are, nothing_pads))


def test_regmean_is_the_same_however_texts_are_batched():
    encoder, base, experts, texts = world("mini_text")
    vectors = LazyTaskVectors(base, experts, dtype=torch.float64)
    call = MethodCall(method="regmean", params={"examples": TEXTS})
    wanted, again = (
        tensors(merge(base, vectors, [], call, context_of(encoder, texts, batched)))
        for batched in (as_they_are, one_by_one)
    )
    close(again, wanted)


@pytest.mark.parametrize("family", FAMILIES[:-1])
def test_repair_counts_words_only_however_they_are_padded(family):
    encoder, base, experts, texts = world(family)
    vectors = LazyTaskVectors(base, experts, dtype=torch.float64)
    plain = merge(base, vectors, [], MethodCall(method="weight_average"), TinyContext())
    longest = max(int(lengths(encoder, samples).max()) for samples in texts.values())

    def found(change):
        context = Texts(tasks=tuple(texts), encoder=encoder)
        context.given = {task: [change(samples)] for task, samples in texts.items()}
        return repair_merge(base, vectors, plain, RepairParams(images=TEXTS, layers="both"), context)

    wanted = found(lambda samples: samples)
    assert wanted.info.details["repair"]["images"] == 2 * TEXTS
    for change in (
        lambda samples: samples[..., :longest],
        lambda samples: samples[lengths(encoder, samples).argsort()],
        lambda samples: samples.flip(0)[..., :longest],
    ):
        again = found(change)
        close(tensors(again), tensors(wanted))
        deviation = again.info.details["repair"]["deviation"]
        assert deviation == pytest.approx(wanted.info.details["repair"]["deviation"], rel=1e-6)
