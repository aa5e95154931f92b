"""Sums over images and tokens that methods take before they merge, against the same by hand."""

from dataclasses import dataclass, field
from itertools import cycle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from engine.merging.apply import merge
from engine.merging.regmean import input_products
from engine.recipe import MethodCall
from engine.weights import LazyTaskVectors, Memory
from tests.reference.merging.support import TinyContext

SCALE = 3.0
EXAMPLES = 40  # in batches of 32, so that of the second one a quarter counts


def test_experts_are_averaged_by_their_information_of_norm_1():
    """Information of 3 and 4 has the norm 5, so that it counts as 0.6 and 0.8."""
    information = {"e0": (3.0, 4.0), "e1": (0.0, 10.0)}
    context = TinyContext(tasks=("a", "b"))
    context.cached = lambda expert, *_: dict(zip("vw", torch.tensor(information[expert]), strict=True))
    experts = {"e0": scalars(v=1.0, w=1.0), "e1": scalars(v=2.0, w=2.0)}
    base = scalars(v=-1.0, w=-1.0)
    vectors = LazyTaskVectors(base, experts, dtype=torch.float64)
    call = MethodCall(method="fisher", params={"smallest": 0.1})
    found = merge(base, vectors, [], call, context).weights
    one, two = 1 / 5.1, 1 / 10.1
    for name, (first, second) in {"v": (3.1 * one, 0.1 * two), "w": (4.1 * one, 10.1 * two)}.items():
        assert float(found.tensor(name)) == pytest.approx((first + 2 * second) / (first + second))


@dataclass
class OneNumber(TinyContext):
    """Features (number · w, 1) of images of one number, so that at w = 0 their slope in w is the number."""

    tasks: tuple[str, ...] = ("a", "b")
    numbers: dict = field(default_factory=dict)
    lean: float = 0.0  # how much more likely the first class is at w = 0

    def batches(self, task, split, size):
        images = cycle(self.numbers[task].tolist())
        while True:
            yield torch.tensor([next(images) for _ in range(size)], dtype=torch.float64)[:, None], None

    def forward(self, weights, images):
        wide = torch.stack([images[:, 0] * weights["w"], torch.ones_like(images[:, 0])], dim=1)
        return wide + 0 * weights["still"]

    def head(self, task):
        return SimpleNamespace(weight=torch.tensor([[1.0, self.lean], [-1.0, -self.lean]]), scale=SCALE)


def scalars(**values):
    return Memory({name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()})


def fisher(context, examples, **experts):
    """Return the merged w, and each expert's information of w."""
    base = scalars(w=1.0, still=0.0)
    vectors = LazyTaskVectors(base, experts, dtype=torch.float64)
    params = {"examples": examples, "normalise": False, "smallest": 1e-12}
    found = merge(base, vectors, [], MethodCall(method="fisher", params=params), context).weights.tensor("w")
    return float(found), [float(kept["w"]) for kept in context.kept.values()]


def test_every_image_counts_alike_in_the_information_of_an_expert_also_in_a_smaller_last_batch():
    """Both classes are as likely, so that the squared slope is (scale · number)², whichever label is drawn."""
    numbers = {task: 0.5 + np.random.default_rng(place).random(70) for place, task in enumerate("ab")}
    numbers["a"][32:] *= 4
    context = OneNumber(numbers=numbers)
    found, (one, two) = fisher(context, EXAMPLES, e0=scalars(w=0.0, still=1.0), e1=scalars(w=0.0, still=1.0))
    assert one == pytest.approx(SCALE**2 * np.square(numbers["a"][:EXAMPLES]).mean(), rel=1e-6)
    assert two == pytest.approx(SCALE**2 * np.square(numbers["b"][:EXAMPLES]).mean(), rel=1e-6)
    assert found == pytest.approx(0)


def test_labels_of_the_information_are_drawn_as_often_as_the_expert_predicts_them():
    """The information tells how often the second class was drawn: a whole number of times, near its probability."""
    count, probability = 60, 0.25
    context = OneNumber(tasks=("a",), numbers={"a": np.ones(1)}, lean=float(np.log(3)) / (2 * SCALE))
    _, (found,) = fisher(context, count, e0=scalars(w=0.0, still=1.0))
    mean = found / (2 * SCALE) ** 2
    drawn = count * (mean - probability**2) / ((1 - probability) ** 2 - probability**2)
    assert drawn == pytest.approx(round(drawn), abs=1e-3)
    assert abs(drawn - count * probability) < 3 * (count * probability * (1 - probability)) ** 0.5


class Tokens(TinyContext):
    """Texts of 1 to 6 words of three numbers: one layer reads all words, another each text's first."""

    given: dict
    padded = True

    def batches(self, task, split, size):
        yield from ((torch.as_tensor(part), None) for part in np.split(self.given[task], [32]))

    def present(self, samples):
        return samples.abs().sum(dim=-1).flatten() > 0

    def forward(self, weights, images):
        words = functional.linear(images + 7.0 * (images == 0), weights["words"])  # what pads is not 0 inside
        return functional.linear(words[:, 0], weights["first"])


def texts(generator, longest):
    drawn = 0.1 + generator.random((64, 6, 3))
    for row, length in enumerate(generator.integers(1, longest + 1, len(drawn))):
        drawn[row, length:] = 0
    return drawn


def products(inputs):
    return inputs.T @ inputs / len(inputs)


def test_products_of_inputs_are_means_over_the_words_that_are_there():
    """Tasks weigh the same though texts of one are longer; of a layer that reads one word a text, texts are counted."""
    generator = np.random.default_rng(0)
    context = Tokens(tasks=("a", "b"))
    context.given = {"a": texts(generator, 2), "b": texts(generator, 6)}
    drawn = {name: generator.normal(size=(3, 2, 3) if name == "words" else (3, 2, 2)) for name in ("words", "first")}
    base, *experts = (Memory({name: torch.tensor(each[k]) for name, each in drawn.items()}) for k in range(3))
    vectors = LazyTaskVectors(base, dict(zip(("e0", "e1"), experts, strict=True)), dtype=torch.float64)
    pulls, sums = 0, 0
    for expert, task in (("e0", "a"), ("e1", "b")):
        found = input_products(base, vectors, expert, task, EXAMPLES, context)
        given = context.given[task][:EXAMPLES]
        there = given[given.any(axis=-1)]
        own = vectors.experts.index(expert) + 1
        first = given[:, 0] @ drawn["words"][own].T
        np.testing.assert_allclose(found["words"], products(there))
        np.testing.assert_allclose(found["first"], products(first))
        shrunk = products(there) * np.where(np.eye(3), 1, 0.9)
        pulls, sums = pulls + drawn["words"][own] @ shrunk, sums + shrunk
    params = {"examples": EXAMPLES, "off_diagonal": 0.9}
    merged = merge(base, vectors, [], MethodCall(method="regmean", params=params), context)
    np.testing.assert_allclose(merged.weights.tensor("words"), pulls @ np.linalg.inv(sums), rtol=1e-6)
