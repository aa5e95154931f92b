"""Every recipe of fine-tuning through the same checks, on a transformer with two blocks for each kind of data."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from engine.catalog import FINE_TUNING
from engine.features.linearised import Linearised
from engine.layouts import BERT, OPEN_CLIP, Layout, part_of
from engine.selfcheck.premerging.small import small_encoder
from engine.training import Setting, strategy_of
from engine.zoo.encoders.training import Schedule, Trainer
from tests.reference.premerging.support import REFERENCE
from tests.tiny_text_zoo import LENGTH, NOUNS, WORDS, model, sentences

STEPS = 5
SCHEDULE = Schedule(STEPS, 1e-3, 1, weight_decay=0.1)


@dataclass(frozen=True, eq=False)
class Images:
    """Drawn images through a vision transformer."""

    layout: Layout = OPEN_CLIP
    attention: str = ".attn."
    # Of a matrix that gets factors: the end of its tensor's name, and the third of its rows.
    places: ClassVar[dict[str, Any]] = {
        "q": ("in_proj_weight", 0),
        "k": ("in_proj_weight", 1),
        "v": ("in_proj_weight", 2),
        "out": ("out_proj.weight", None),
        "fc": ("c_fc.weight", None),
        "proj": ("c_proj.weight", None),
    }

    def encoder(self) -> nn.Module:
        return small_encoder(REFERENCE, "base", "float64")

    def task(self, number: int = 0) -> tuple[Tensor, Tensor]:
        data = REFERENCE.weights("toyvit_data", "float64")
        return data[f"train_images{number}"], data[f"train_labels{number}"]

    def head(self) -> tuple[Tensor, Any]:
        data = REFERENCE.weights("toyvit_data", "float64")
        return data["head0"], data["scale"]


@dataclass(frozen=True, eq=False)
class Texts:
    """Made sentences through a BERT."""

    layout: Layout = BERT
    attention: str = ".attention."
    places: ClassVar[dict[str, Any]] = {
        "q": ("query.weight", None),
        "k": ("key.weight", None),
        "v": ("value.weight", None),
        "out": ("dense.weight", None),
        "fc": ("dense.weight", None),
        "proj": ("dense.weight", None),
    }

    def encoder(self) -> nn.Module:
        return model(0).double()

    def task(self, number: int = 0) -> tuple[Tensor, Tensor]:
        texts, labels = sentences(number, 64)
        pairs = [(text, "it is here" if row % 2 else "") for row, text in enumerate(texts)]
        return torch.from_numpy(WORDS.encode(pairs, LENGTH).ids), torch.from_numpy(labels)

    def head(self) -> tuple[Tensor, Any]:
        rows = torch.randn(len(NOUNS), 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return nn.functional.normalize(rows, dim=1), 5.0


KINDS = {"images": Images(), "texts": Texts()}


def settings() -> Iterator[Any]:
    for kind in KINDS.values():
        for row in FINE_TUNING.values():
            name = f"{type(kind).__name__.lower()}-{row.name}"
            yield pytest.param(kind, row, {**row.quick}, id=f"{name}-defaults")
            for preset in row.presets:
                yield pytest.param(kind, row, {**preset.params, **row.quick}, id=f"{name}-{preset.name}")
            for number, variant in enumerate(row.variants):
                yield pytest.param(kind, row, {**row.quick, **variant}, id=f"{name}-variant{number}")


every = pytest.mark.parametrize(("kind", "row", "params"), list(settings()))


def trainer(kind: Any, row: Any, params: dict[str, Any]) -> Trainer:
    def others(count: int) -> dict[str, Tensor]:
        return {f"task{number}": kind.task(number)[0][:count] for number in (1, 2)}

    encoder, (head, scale) = kind.encoder(), kind.head()
    setting = Setting(3, len(head), others, layout=kind.layout, width=head.shape[1])
    return Trainer(encoder, [head], scale, SCHEDULE, strategy_of(row.name, params, encoder, setting))


@cache
def batches(kind: Any) -> list[tuple[Tensor, list[Tensor], Tensor]]:
    """Return samples, labels, and features that are imitated by recipes that imitate."""
    (samples, labels), found = kind.task(), []
    wanted = kind.encoder()(samples).detach().flip(1)
    for step in range(STEPS):
        rows = torch.randperm(64, generator=torch.Generator().manual_seed(step))[:16]
        found.append((samples[rows], [labels[rows]], wanted[rows]))
    return found


def trained(kind: Any, row: Any, params: dict[str, Any], parts: int = 1) -> Trainer:
    found = trainer(kind, row, params)
    found.parts = parts
    for batch in batches(kind):
        found.advance(*batch)
    return found


def copies(tensors: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@every
def test_an_expert_differs_from_the_base_only_where_the_recipe_trains(kind, row, params):
    base = copies(kind.encoder().state_dict())
    found = trained(kind, row, params)
    tensors = found.strategy.tensors()
    assert list(tensors) == list(base)
    moved = {name for name, tensor in tensors.items() if not torch.equal(tensor, base[name])}
    assert moved
    if row.name == "attention_only":
        assert all(kind.attention in name for name in moved)
        assert (any(name.endswith("bias") for name in moved)) == params.get("biases", False)
    elif row.name == "mlp_only":
        parts = {"first": ("fc",), "second": ("proj",), "both": ("fc", "proj")}[params.get("matrices", "first")]
        dense = {matrix.name.removesuffix(".weight") for part in parts for matrix in kind.layout.matrices[part]}
        assert {part_of(name).rpartition(".")[0] for name in moved} == dense
        assert (any(name.endswith("bias") for name in moved)) == params.get("biases", False)
    elif row.factors:
        targets = {name.rpartition(".lora_")[0].rpartition(".")[2] for name in found.strategy.factors()}
        assert targets
        assert all(name.endswith("weight") for name in moved), "no bias, no norm"
    else:
        assert moved == set(base)


@every
def test_the_expert_is_what_was_trained(kind, row, params):
    """The written weights give the trained features, evaluated as the row says."""
    found = trained(kind, row, params)
    samples = batches(kind)[0][0]
    expert = kind.encoder()
    expert.load_state_dict(dict(found.strategy.tensors()))
    if row.forward == "linearised":
        expert = Linearised(expert, dict(kind.encoder().named_parameters()))
    found.model.eval()
    torch.testing.assert_close(expert(samples), found.model(samples), rtol=1e-10, atol=1e-12)


@every
def test_factors_are_the_task_vector(kind, row, params):
    found = trained(kind, row, params)
    factors = found.strategy.factors()
    assert bool(factors) == row.factors
    base = kind.encoder().state_dict()
    left = {name: tensor - base[name] for name, tensor in copies(found.strategy.tensors()).items()}
    for name in {key.rpartition(".lora_")[0] for key in factors}:
        product = factors[name + ".lora_B"] @ factors[name + ".lora_A"]
        stem, _, target = name.rpartition(".")
        tensor, third = kind.places[target]
        whole = left[f"{stem}.{tensor}"]
        rows = whole if third is None else whole.chunk(3)[third]
        rows.sub_(product)
    if factors:
        assert all(tensor.abs().max() < 1e-14 for tensor in left.values()), "nothing else moved"


@every
def test_a_resumed_expert_is_equal_to_the_bit(kind, row, params):
    whole, first, second = (trainer(kind, row, params) for _ in range(3))
    for number, batch in enumerate(batches(kind)):
        whole.advance(*batch)
        if number < 2:
            first.advance(*batch)
    second.restore(copies(first.state()), 2)
    for batch in batches(kind)[2:]:
        second.advance(*batch)
    one, two = whole.strategy.tensors(), second.strategy.tensors()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(
        torch.equal(tensor, second.strategy.factors()[name]) for name, tensor in whole.strategy.factors().items()
    )


@every
def test_a_batch_in_parts_gives_the_same_expert(kind, row, params):
    one, two = trained(kind, row, params), trained(kind, row, params, parts=4)
    found, wanted, quiet = dict(two.strategy.tensors()), dict(one.strategy.tensors()), 1e-8
    if row.name == "osrm":  # factors begin where gradients are nearly 0, and AdamW steps there by their rounding
        samples = batches(kind)[0][0]  # features move by 0.009 or more
        found, wanted, quiet = {"features": two.model(samples)}, {"features": one.model(samples)}, 1e-5
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-6, atol=quiet)


climbing = [setting for setting in settings() if setting.values[1].name in ("sam", "saft")]
two_passes = [pytest.param(*setting.values, 1, id=setting.id) for setting in climbing]
one_pass = [pytest.param(*setting.values, 0, id=setting.id) for setting in settings()]


@pytest.mark.parametrize(("kind", "row", "params", "fails_at"), [*one_pass, *two_passes])
def test_a_step_that_fails_leaves_everything_as_it_was(kind, row, params, fails_at):
    """Memory may end in the first or in the second pass of a step."""
    plain, shaken = trainer(kind, row, params), trainer(kind, row, params)
    for number, batch in enumerate(batches(kind)):
        plain.advance(*batch)
        if number == 2:
            before, calls, gradient = copies(shaken.model.state_dict()), [], shaken.gradient

            def failing(samples, labels, soft=None, calls=calls, gradient=gradient):
                loss = gradient(samples, labels, soft)
                calls.append(loss)
                if len(calls) == fails_at + 1:
                    raise MemoryError
                return loss

            shaken.gradient = failing
            with pytest.raises(MemoryError):
                shaken.advance(*batch)
            shaken.gradient = gradient
            after = shaken.model.state_dict()
            assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
        shaken.advance(*batch)
    one, two = plain.strategy.tensors(), shaken.strategy.tensors()
    assert all(torch.equal(one[name], two[name]) for name in one)
