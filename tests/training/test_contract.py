"""Every recipe of fine-tuning through the same checks, on a transformer with two blocks."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.catalog import FINE_TUNING
from engine.features.linearised import Linearised
from engine.selfcheck.premerging.small import small_encoder
from engine.training import Setting, strategy_of
from engine.zoo.encoders.training import Schedule, Trainer
from tests.reference.premerging.support import REFERENCE

STEPS = 5
SCHEDULE = Schedule(STEPS, 1e-3, 1, weight_decay=0.1)


def settings() -> Iterator[Any]:
    for row in FINE_TUNING.values():
        yield pytest.param(row, {**row.quick}, id=f"{row.name}-defaults")
        for preset in row.presets:
            yield pytest.param(row, {**preset.params, **row.quick}, id=f"{row.name}-{preset.name}")
        for number, variant in enumerate(row.variants):
            yield pytest.param(row, {**row.quick, **variant}, id=f"{row.name}-variant{number}")


every = pytest.mark.parametrize(("row", "params"), list(settings()))


def others(count: int) -> dict[str, Tensor]:
    data = REFERENCE.inputs("toyvit_data")
    return {f"task{number}": data[f"train_images{number}"].double()[:count] for number in (1, 2)}


def trainer(row: Any, params: dict[str, Any]) -> Trainer:
    data = REFERENCE.weights("toyvit_data", "float64")
    encoder = small_encoder(REFERENCE, "base", "float64")
    strategy = strategy_of(row.name, params, encoder, Setting(3, len(data["head0"]), others))
    return Trainer(encoder, [data["head0"]], data["scale"], SCHEDULE, strategy)


def batches() -> Iterator[tuple[Tensor, list[Tensor]]]:
    data = REFERENCE.weights("toyvit_data", "float64")
    for step in range(STEPS):
        rows = torch.randperm(64, generator=torch.Generator().manual_seed(step))[:16]
        yield data["train_images0"][rows], [data["train_labels0"][rows]]


def trained(row: Any, params: dict[str, Any], parts: int = 1) -> Trainer:
    found = trainer(row, params)
    found.parts = parts
    for images, labels in batches():
        found.advance(images, labels)
    return found


def copies(tensors: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@every
def test_an_expert_differs_from_the_base_only_where_the_recipe_trains(row, params):
    base = copies(small_encoder(REFERENCE, "base", "float64").state_dict())
    found = trained(row, params)
    tensors = found.strategy.tensors()
    assert list(tensors) == list(base)
    moved = {name for name, tensor in tensors.items() if not torch.equal(tensor, base[name])}
    assert moved
    if row.name == "attention_only":
        assert all(".attn." in name for name in moved)
        assert (any(name.endswith("bias") for name in moved)) == params.get("biases", False)
    elif row.name == "mlp_only":
        inner = {"first": ("c_fc",), "second": ("c_proj",), "both": ("c_fc", "c_proj")}[params.get("matrices", "first")]
        assert {name.split(".mlp.")[1].split(".")[0] for name in moved} == set(inner)
        assert (any(name.endswith("bias") for name in moved)) == params.get("biases", False)
    elif row.factors:
        targets = {name.rpartition(".lora_")[0].rpartition(".")[2] for name in found.strategy.factors()}
        assert targets
        assert all(name.endswith("weight") for name in moved), "no bias, no norm"
    else:
        assert moved == set(base)


@every
def test_the_expert_is_what_was_trained(row, params):
    """The written weights give the trained features, evaluated as the row says."""
    found = trained(row, params)
    images = next(batches())[0]
    expert = small_encoder(REFERENCE, "base", "float64")
    expert.load_state_dict(dict(found.strategy.tensors()))
    if row.forward == "linearised":
        expert = Linearised(expert, dict(small_encoder(REFERENCE, "base", "float64").named_parameters()))
    found.model.eval()
    torch.testing.assert_close(expert(images), found.model(images), rtol=1e-10, atol=1e-12)


@every
def test_factors_are_the_task_vector(row, params):
    found = trained(row, params)
    factors = found.strategy.factors()
    assert bool(factors) == row.factors
    base = small_encoder(REFERENCE, "base", "float64").state_dict()
    left = {name: tensor - base[name] for name, tensor in copies(found.strategy.tensors()).items()}
    for name in {key.rpartition(".lora_")[0] for key in factors}:
        product = factors[name + ".lora_B"] @ factors[name + ".lora_A"]
        stem, _, target = name.rpartition(".")
        tensor, third = {"q": ("in_proj_weight", 0), "k": ("in_proj_weight", 1), "v": ("in_proj_weight", 2)}.get(
            target, ({"out": "out_proj.weight", "fc": "c_fc.weight", "proj": "c_proj.weight"}.get(target), None)
        )
        whole = left[f"{stem}.{tensor}"]
        rows = whole if third is None else whole.chunk(3)[third]
        rows.sub_(product)
    if factors:
        assert all(tensor.abs().max() < 1e-14 for tensor in left.values()), "nothing else moved"


@every
def test_a_resumed_expert_is_equal_to_the_bit(row, params):
    whole, first, second = (trainer(row, params) for _ in range(3))
    for number, batch in enumerate(batches()):
        whole.advance(*batch)
        if number < 2:
            first.advance(*batch)
    second.restore(copies(first.state()), 2)
    for batch in list(batches())[2:]:
        second.advance(*batch)
    one, two = whole.strategy.tensors(), second.strategy.tensors()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(
        torch.equal(tensor, second.strategy.factors()[name]) for name, tensor in whole.strategy.factors().items()
    )


@every
def test_a_batch_in_parts_gives_the_same_expert(row, params):
    one, two = trained(row, params).strategy.tensors(), trained(row, params, parts=4).strategy.tensors()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-6, atol=1e-8)


climbing = [setting for setting in settings() if setting.values[0].name in ("sam", "saft")]
two_passes = [pytest.param(*setting.values, 1, id=setting.id) for setting in climbing]
one_pass = [pytest.param(*setting.values, 0, id=setting.id) for setting in settings()]


@pytest.mark.parametrize(("row", "params", "fails_at"), [*one_pass, *two_passes])
def test_a_step_that_fails_leaves_everything_as_it_was(row, params, fails_at):
    """Memory may end in the first or in the second pass of a step."""
    plain, shaken = trainer(row, params), trainer(row, params)
    for number, batch in enumerate(batches()):
        plain.advance(*batch)
        if number == 2:
            before, calls, gradient = copies(shaken.model.state_dict()), [], shaken.gradient

            def failing(images, labels, soft=None, calls=calls, gradient=gradient):
                loss = gradient(images, labels)
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
