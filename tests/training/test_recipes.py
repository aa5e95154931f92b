"""Promises of single recipes of fine-tuning, and what they refuse."""

import math

import pytest
import torch
from torch.func import functional_call, jvp

from engine.errors import EngineError, RecipeError
from engine.selfcheck.premerging.small import small_encoder
from engine.training import Setting, strategy_of
from engine.training.low_rank import adapted_matrices
from engine.training.osrm import layer_inputs
from engine.training.sharpness import perturbation
from engine.zoo.encoders.training import Schedule, Trainer
from tests.reference.premerging.support import REFERENCE


def encoder(precision="float64"):
    return small_encoder(REFERENCE, "base", precision)


def images(task, count=16):
    return REFERENCE.inputs("toyvit_data")[f"train_images{task}"].double()[:count]


def others(count):
    return {"one": images(1, count), "two": images(2, count)}


def perceptron():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 8))


@pytest.mark.parametrize("method", ["lora", "l_lora", "osrm", "attention_only", "mlp_only"])
def test_a_recipe_that_would_train_nothing_is_refused(method):
    with pytest.raises(EngineError, match="nothing"):
        strategy_of(method, {}, perceptron(), Setting(others=others))


def test_unknown_recipes_parameters_and_targets_are_refused():
    with pytest.raises(RecipeError, match="saft"):
        strategy_of("saff", {}, encoder(), Setting())
    with pytest.raises(RecipeError, match="rank"):
        strategy_of("lora", {"rank": 0}, encoder(), Setting())
    with pytest.raises(RecipeError, match="targets"):
        strategy_of("lora", {"targets": "q,everything"}, encoder(), Setting())
    with pytest.raises(RecipeError, match="at least one"):
        strategy_of("lora", {"targets": []}, encoder(), Setting())


def test_a_rank_above_a_matrix_is_refused():
    with pytest.raises(EngineError, match=r"Rank 17 exceeds a side of .*16 × 16"):
        strategy_of("lora", {"rank": 17}, encoder(), Setting())


def test_targets_name_rows_and_matrices():
    found = {matrix.name: matrix for matrix in adapted_matrices(encoder(), ["q", "v", "out", "mlp"])}
    value = found["transformer.resblocks.1.attn.v"]
    assert (value.tensor, value.rows, value.shape) == (
        "transformer.resblocks.1.attn.in_proj_weight",
        slice(32, 48),
        (16, 16),
    )
    assert found["transformer.resblocks.0.mlp.fc"].shape == (32, 16)
    assert len(found) == 2 * 5


def test_l_lora_is_the_linearisation_of_every_adapter():
    """Written out: the derivative of an adapted matrix around A_0, B = 0, in the direction of the trained factors."""
    frozen = strategy_of("l_lora", {"rank": 4, "targets": "q,mlp"}, encoder(), Setting(seed=5))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for up in frozen.model.up:
            up.copy_(torch.randn(up.shape, generator=generator, dtype=up.dtype))
    own = dict(encoder().named_parameters())
    weights = dict(own)
    for matrix, start, up in zip(frozen.model.matrices, frozen.model.down, frozen.model.up, strict=True):
        step = torch.randn(start.shape, generator=generator, dtype=start.dtype)
        whole = weights[matrix.tensor].clone()
        rows = own[matrix.tensor][matrix.rows]
        value, change = jvp(
            lambda a, b, rows=rows: rows + 8.0 * b @ a, (start.data, torch.zeros_like(up)), (step, up.data)
        )
        whole[matrix.rows] = value + change
        weights[matrix.tensor] = whole
    torch.testing.assert_close(frozen.model(images(0)), functional_call(encoder(), weights, (images(0),)))
    assert not any(parameter.requires_grad for parameter in frozen.model.down)


def test_all_tasks_of_a_seed_start_from_one_a():
    one, two, other = (strategy_of("lora", {}, encoder(), Setting(seed=seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.model.down, two.model.down, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one.model.down, other.model.down, strict=True))


def test_osrm_starts_where_other_tasks_are_quiet():
    quiet = strategy_of("osrm", {"rank": 4, "images": 16}, encoder(), Setting(others=others))
    random = strategy_of("lora", {"rank": 4}, encoder(), Setting())
    matrices = quiet.model.matrices
    seen = [layer_inputs(encoder(), matrices, some) for some in others(16).values()]
    for place, matrix in enumerate(matrices):
        moment = sum(inputs[matrix.tensor].moment for inputs in seen)
        shares = []
        for strategy in (quiet, random):
            rows = torch.linalg.qr(strategy.model.down[place].detach().T).Q.T
            shares.append(float((rows @ moment @ rows.T).trace() / moment.trace()))
        assert shares[0] < 0.1 * shares[1]
        down = quiet.model.down[place].detach()
        torch.testing.assert_close(down @ down.T, torch.eye(4, dtype=down.dtype))


def test_the_controls_of_osrm_start_where_the_own_task_is_quiet_and_anywhere():
    setting = Setting(others=others, own=lambda count: {"own": images(0, count)})
    made = {rule: strategy_of("osrm", {"rank": 4, "rule": rule}, encoder(), setting) for rule in ("own", "random")}
    again = strategy_of("osrm", {"rank": 4, "rule": "random"}, encoder(), Setting())
    matrices = made["own"].model.matrices
    seen = layer_inputs(encoder(), matrices, images(0, 100))
    for place, matrix in enumerate(matrices):
        moment, energy = seen[matrix.tensor].moment, {}
        for rule, strategy in made.items():
            down = strategy.model.down[place].detach()
            torch.testing.assert_close(down @ down.T, torch.eye(4, dtype=down.dtype))
            energy[rule] = float((down @ moment @ down.T).trace() / moment.trace())
        assert energy["own"] < 0.1 * energy["random"]
        assert torch.equal(made["random"].model.down[place], again.model.down[place])


def test_inputs_of_layers_are_those_of_the_modules():
    model, matrices = encoder(), adapted_matrices(encoder(), ["q", "mlp"])
    seen = []
    hook = model.transformer.resblocks[1].mlp.c_fc.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    found = layer_inputs(model, matrices, images(0, 10))
    hook.remove()
    rows = torch.cat([part.reshape(-1, 16) for part in seen])
    inputs = found["transformer.resblocks.1.mlp.c_fc.weight"]
    torch.testing.assert_close(inputs.moment, rows.T @ rows / len(rows))
    torch.testing.assert_close(inputs.mean, rows.mean(dim=0))


def test_osrm_refuses_too_few_other_tasks():
    with pytest.raises(EngineError, match="at least one other task"):
        strategy_of("osrm", {}, encoder(), Setting())
    with pytest.raises(EngineError, match="2 other tasks say nothing about 8 ranks"):
        strategy_of("osrm", {"rule": "code"}, encoder(), Setting(others=others))
    assert strategy_of("osrm", {"rule": "code", "rank": 2}, encoder(), Setting(others=others)).factors()


def test_ascent_raises_the_loss_and_stops_at_chance():
    data = REFERENCE.weights("toyvit_data", "float64")
    head, labels = data["head0"], data["train_labels0"]
    losses, accuracies = {}, {}
    for stop in (True, False):
        model = encoder()
        strategy = strategy_of("gradient_ascent", {"stop_at_chance": stop}, model, Setting(classes=len(head)))
        trainer = Trainer(model, [head], data["scale"], Schedule(40, 3e-3, 1), strategy)
        losses[stop], accuracies[stop] = [], []
        for _ in range(40):
            losses[stop].append(float(trainer.advance(data["train_images0"], [labels])))
            accuracies[stop].append(float(trainer.right) / len(labels))
    assert accuracies[True][0] > 1 / len(head)
    assert accuracies[True][-1] <= 1 / len(head), "chance"
    assert losses[True][-1] == losses[True][-2] > losses[True][0], "nothing moves any more"
    assert losses[False][-1] > 2 * losses[True][-1]


@pytest.mark.parametrize("length", ["plain", "code", "weights"])
def test_a_climb_has_the_radius_it_says(length):
    generator = torch.Generator().manual_seed(1)
    weights = {"weight": torch.randn(9, generator=generator), "bias": torch.randn(4, generator=generator)}
    gradients = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in weights.items()}
    climb = perturbation(weights, gradients, 0.3, length, eta=0.01)
    scale = {
        "plain": lambda name: torch.ones(()),
        "code": lambda name: weights[name].abs(),
        "weights": lambda name: weights[name].abs() + 0.01 if name == "weight" else torch.ones(()),
    }[length]
    norm = math.sqrt(sum(float((climb[name] / scale(name)).square().sum()) for name in weights))
    assert norm == pytest.approx(0.3, rel=1e-5)
    assert sum(float((climb[name] * gradients[name]).sum()) for name in weights) > 0


@pytest.mark.parametrize(
    ("length", "wanted"),
    [
        ("plain", [1 / 3, 2 / 3, 2 / 3]),
        ("code", [9 / 29**0.5, 2 / 29**0.5, 8 / 29**0.5]),
        ("printed", [9 / 3, 2 / 3, 8 / 3]),
        ("weights", [16 / 6, 8 / 6, 2 / 6]),
    ],
)
def test_a_climb_by_hand(length, wanted):
    """Gradients of length 3; times the sizes of weights (3, 2, 4), of length √29; with η = 1 beside them (4, 4, 2)."""
    weights = {"weight": torch.tensor([3.0, -1.0]), "bias": torch.tensor([2.0])}
    gradients = {"weight": torch.tensor([1.0, 2.0]), "bias": torch.tensor([2.0])}
    found = perturbation(weights, gradients, 0.5, length, eta=1.0)
    assert [*found["weight"].tolist(), *found["bias"].tolist()] == pytest.approx([0.5 * value for value in wanted])


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_statistics_count_a_batch_once(momentum):
    model, plain = (
        torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.BatchNorm2d(4, momentum=momentum), torch.nn.Flatten())
        for _ in range(2)
    )
    plain.load_state_dict(model.state_dict())
    head, batch = torch.eye(3, 4), torch.randn(6, 3, 2, 2)
    for method, net in (("sam", model), ("standard", plain)):
        trainer = Trainer(net, [head], 1.0, Schedule(1, 0.1, 1), strategy_of(method, {}, net, Setting()))
        trainer.advance(batch, [torch.tensor([0, 1, 2, 0, 1, 2])])
    torch.testing.assert_close(model[1].running_mean, plain[1].running_mean)
    torch.testing.assert_close(model[1].running_var, plain[1].running_var)
    assert model[1].num_batches_tracked == plain[1].num_batches_tracked == 1


def test_a_step_of_kd4mtl_is_the_one_written_out():
    """Two heads: cross-entropy and the squared distance of mapped unit features, the maps by an Adam of their own."""
    data, weight = REFERENCE.weights("toyvit_data", "float64"), 0.7
    samples, labels = images(0, 8), [data["train_labels0"][:4], data["train_labels0"][4:8]]
    wanted = torch.randn(8, data["head0"].shape[1], generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    setting = Setting(seed=4, heads=2, width=wanted.shape[1])
    ours = encoder()
    strategy = strategy_of("kd4mtl", {"weight": weight}, ours, setting)
    starts = [one.weight.detach().clone() for one in strategy.imitation.maps]
    assert not torch.equal(*starts)
    assert float(torch.stack(starts).std()) == pytest.approx(wanted.shape[1] ** -0.5, rel=0.2)
    trainer = Trainer(ours, [data["head0"]] * 2, data["scale"], Schedule(10, 1e-3, 0), strategy)

    plain, maps = encoder().requires_grad_(True), [start.clone().requires_grad_() for start in starts]
    unit = torch.nn.functional.normalize
    loss = 0.0
    for number, part in enumerate(samples.split(4)):
        features, goal = plain(part), wanted.split(4)[number]
        logits = data["scale"] * unit(features, dim=1) @ data["head0"].T
        apart = unit(features @ maps[number].T, dim=1) - unit(goal, dim=1)
        distance = apart.square().sum(dim=1).mean()
        loss = loss + (torch.nn.functional.cross_entropy(logits, labels[number]) + weight * distance) / 2
    loss.backward()
    torch.optim.Adam(maps, lr=0.1, weight_decay=5e-4).step()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0).step()

    found = trainer.advance(samples, labels, wanted)
    torch.testing.assert_close(found, loss.detach(), rtol=1e-5, atol=0)
    for own, one in zip(strategy.imitation.maps, maps, strict=True):
        torch.testing.assert_close(own.weight, one, rtol=1e-4, atol=1e-6)
    for own, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)
