"""Properties of merges that mix weights for every image, learn masks or search coefficients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.catalog.learned import ConcreteParams, EvolutionaryParams
from engine.catalog.routing import TwinParams, WemoeParams
from engine.errors import Cancelled, MergeError
from engine.merging import concrete as masks
from engine.merging import localize_learned
from engine.merging.adamerging import entropy, predict
from engine.merging.apply import merge
from engine.merging.compressed import restored, separate
from engine.merging.concrete import Mask, mask_gradient, relaxed, rescaled
from engine.merging.evolutionary import search
from engine.merging.twin import rebuild as rebuild_twin
from engine.recipe import MethodCall
from engine.weights import LazyTaskVectors, Memory, on_device
from engine.weights.on_device import held
from tests.reference.merging.support import EXPERTS, TinyContext, models, some_images, tensors_of, toy, toy_vectors


def merged(method: str, params: dict, context: TinyContext | None = None, transforms: tuple = ()):
    base, vectors = toy_vectors()
    return base, merge(base, vectors, transforms, MethodCall(method=method, params=params), context or TinyContext())


def test_a_twin_that_keeps_everything_is_the_expert_that_is_chosen():
    base, vectors = toy_vectors()
    encoder = rebuild_twin(base, separate(vectors, TwinParams(density=1.0), TinyContext()), TinyContext().forward)
    for k, expert in enumerate(EXPERTS):
        weights = encoder.mix(torch.nn.functional.one_hot(torch.tensor(k), 4).double())
        for name, tensor in tensors_of(toy(expert)).items():
            torch.testing.assert_close(weights[name], tensor.double())


def test_a_twin_stores_what_it_says():
    base, result = merged("twin", {"examples": 8, "epochs": 1, "density": 0.25})
    matrix, rank = "visual.transformer.resblocks.0.mlp.c_fc.weight", 3
    assert result.parts[f"left/{matrix}"].shape == (4, 24, rank)
    assert result.parts[f"right/{matrix}"].shape == (4, rank, 12)
    own = sum(tensor.numel() for name, tensor in result.parts.items() if not name.startswith(("vector/", "routing")))
    assert result.info.extra_parameters == own < 4 * sum(tensor.numel() for tensor in tensors_of(base).values())


@pytest.mark.parametrize("compression", ["magnitude", "random"])
def test_a_twin_of_single_entries_stores_them_packed(compression):
    base, vectors = toy_vectors()
    params = TwinParams(compression=compression, density=0.4)
    found = restored(base, separate(vectors, params, TinyContext()))
    for name in vectors.names:
        own = vectors.stack(name) - 0.3 * vectors.stack(name).sum(dim=0)
        if own.dim() < 3:
            torch.testing.assert_close(found[name], own)
            continue
        for got, want in zip(found[name].flatten(1), own.flatten(1), strict=True):
            kept = got != 0
            factor = 1 / 0.4 if compression == "random" else 1.0
            torch.testing.assert_close(got[kept], factor * want[kept])
            if compression == "magnitude":
                assert kept.sum() == int(0.4 * len(want))
                assert want[kept].abs().min() >= want[~kept].abs().max()
    info = merged("twin", {**params.model_dump(), "examples": 4, "epochs": 0})[1].info
    assert info.extra_bits >= sum(own.numel() for own in found.values() if own.dim() > 2)


def test_the_router_of_a_twin_learns_which_task_an_image_is_of():
    class Coloured(TinyContext):
        def batches(self, task, split, size):
            level = EXPERTS.index(task) - 1.5
            for images, labels in super().batches(task, split, size):
                yield 0.1 * images + level * torch.tensor([1.0, -1.0, 0.5])[:, None, None], labels

    base, result = merged("twin", {"examples": 64, "epochs": 60, "batch_size": 32}, Coloured())
    assert result.info.details["router_accuracy"] > 90
    encoder = result.rebuild(base, result.parts, Coloured().forward)
    for k, task in enumerate(EXPERTS):
        images, _ = next(Coloured(seed=9).batches(task, "adapt", 20))
        gates = encoder.gates(images.double())
        torch.testing.assert_close(gates.sum(dim=1), torch.ones(20, dtype=torch.float64))
        assert (gates.argmax(dim=1) == k).float().mean() > 0.8


def test_untrained_constant_gates_are_task_arithmetic():
    base, result = merged("wemoe", {"gate_layers": 0, "steps": 0, "scaling": 0.4})
    _, plain = merged("task_arithmetic", {"scaling": 0.4})
    want = tensors_of(plain.weights)
    for weights in models(base, result).values():
        for name, tensor in want.items():
            torch.testing.assert_close(weights.tensor(name), tensor, rtol=1e-6, atol=1e-7)


def test_training_gates_lowers_the_entropy():
    params = {"steps": 60, "batch_size": 16, "learning_rate": 0.01}
    losses = merged("wemoe", params)[1].info.details["loss"]
    assert sum(losses[-5:]) < sum(losses[:5])


def test_groups_of_images_do_not_depend_on_how_images_are_fed():
    base, result = merged("wemoe", {"steps": 1, "routing": "batch", "batch_size": 4})
    encoder, images = result.rebuild(base, result.parts, TinyContext().forward), some_images(8)
    torch.testing.assert_close(encoder(images), torch.cat([encoder(images[:4]), encoder(images[4:])]))


def test_wemoe_needs_perceptrons():
    base = Memory({"visual.proj": torch.zeros(3, 3)})
    vectors = LazyTaskVectors(base, {"a": base})
    with pytest.raises(MergeError, match="these weights have none"):
        merge(base, vectors, [], MethodCall(method="wemoe"), TinyContext(("a",)))


@settings(max_examples=25, deadline=None)
@given(
    logits=st.lists(st.floats(-20, 20), min_size=1, max_size=20),
    temperature=st.floats(0.05, 5),
    seed=st.integers(0, 5),
)
def test_relaxed_masks_are_between_0_and_1_and_keep_the_mean(logits, temperature, seed):
    values = torch.tensor(logits)
    noise = torch.rand(values.shape, generator=torch.Generator().manual_seed(seed))
    mask = relaxed(values, noise, temperature)
    assert ((mask >= 0) & (mask <= 1)).all()
    assert (relaxed(values + 1, noise, temperature) >= mask).all()
    if mask.mean() > 1e-6:
        torch.testing.assert_close(rescaled(mask).mean(), torch.tensor(1.0))
    assert rescaled(torch.zeros(0)).shape == (0,)
    assert not rescaled(torch.zeros(3)).any()


def test_the_mask_follows_the_gradient_through_the_merge():
    """The gradient of the logits equals that of autograd through sampling, merging and encoding."""
    base, vectors = toy_vectors()
    params, context = ConcreteParams(), TinyContext()
    batches = {task: next(context.batches(task, "adapt", 8))[0] for task in EXPERTS}
    free, found = (
        Mask({name: torch.zeros(vectors.shape(name)).requires_grad_() for name in vectors.names}, params, 0)
        for _ in range(2)
    )
    rows = torch.rand(len(vectors.names), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = {
        name: base.tensor(name).double() + torch.einsum("k,k...->...", row, vectors.stack(name)) * free.sample(name, 3)
        for row, name in zip(rows, vectors.names, strict=True)
    }
    loss = sum(entropy(predict(context.forward(weights, batches[task]), context.head(task))) for task in EXPERTS)
    loss.backward()
    assert mask_gradient(base, vectors, found, 3, rows, context, batches) == pytest.approx(loss.item())
    used = [name for name in vectors.names if found.logits[name].grad is not None]
    assert "visual.transformer.resblocks.1.mlp.c_fc.weight" in used
    for name, logits in free.logits.items():
        wanted = logits.grad if logits.grad is not None else torch.zeros_like(logits)
        torch.testing.assert_close(found.logits[name].grad if name in used else torch.zeros_like(logits), wanted)


@pytest.mark.parametrize("coefficients", ["fixed", "task", "layer"])
def test_learning_a_mask_lowers_the_entropy_and_reports_coefficients(coefficients):
    params = {"coefficients": coefficients, "batch_size": 64, "steps": 40, "learning_rate": 0.05}
    params |= {"inner_learning_rate": 0.01, "coefficient_steps": 10}
    details = merged("concrete", params)[1].info.details
    losses = details["loss"]
    assert len(losses) == 40 + (0 if coefficients == "fixed" else 10)
    assert sum(losses[-5:]) < sum(losses[:5])
    shape = {"fixed": (4,), "task": (4,), "layer": (4, 33)}[coefficients]
    values = torch.tensor(list(details["coefficients"].values()))
    assert values.shape == shape
    assert (values == values.flatten()[0]).all() == (coefficients == "fixed")


def test_discrete_masks_keep_or_drop_whole_entries():
    base, result = merged("concrete", {"steps": 1, "mask": "discrete"})
    _, plain = merged("task_arithmetic", {"scaling": 0.3})
    name = "visual.transformer.resblocks.0.mlp.c_fc.weight"
    moved = result.weights.tensor(name) - base.tensor(name).double()
    ratio = moved / (plain.weights.tensor(name) - base.tensor(name).double())
    assert len(ratio.mul(1e4).round().unique()) == 2, "zero, or one factor"


MASKS = {
    "concrete": {"steps": 3, "batch_size": 4, "coefficients": "layer", "coefficient_steps": 2},
    "localize_and_stitch_learned": {"epochs": 2, "batch_size": 4, "examples": 8},
}


@pytest.mark.parametrize(("method", "module"), [*zip(MASKS, (masks, localize_learned), strict=True)])
def test_vectors_that_are_held_while_a_mask_is_learned_give_the_same_model(method, module, monkeypatch):
    monkeypatch.setattr(on_device, "SMALL", 0)
    base, lazy = merged(method, MASKS[method])
    seen = []

    def hold(base, vectors, device, beside):
        seen.append(beside)
        return held(base, vectors, device)

    monkeypatch.setattr(module, "on_device", hold)
    _, near = merged(method, MASKS[method])
    assert seen == [4 if method == "concrete" else 1]
    for name in base.names:
        assert torch.equal(lazy.weights.tensor(name), near.weights.tensor(name))


@pytest.mark.parametrize("settings", [{"granularity": "task"}, {"granularity": "layer", "plus_plus": True}], ids=str)
def test_vectors_that_are_held_while_coefficients_are_learned_give_the_same_model(settings, monkeypatch):
    settings = {"steps": 3, "batch_size": 4, **settings}
    base, near = merged("adamerging", settings)
    monkeypatch.setattr(on_device, "SMALL", 0)
    _, lazy = merged("adamerging", settings)
    assert lazy.info.details == near.info.details
    for name in base.names:
        assert torch.equal(lazy.weights.tensor(name), near.weights.tensor(name))


@pytest.mark.parametrize("size", [1, 2, 6])
def test_the_search_finds_a_maximum_within_its_budget(size):
    peak = np.linspace(0.2, 0.7, size)
    asked = []

    def score(candidate):
        asked.append(candidate.copy())
        return -float(((candidate[:size] - peak) ** 2).sum())

    found = search(score, size, EvolutionaryParams(evaluations=400), seed=1)
    assert len(found.scores) == len(asked) <= 400
    assert (np.array(asked)[0] == 0.3).all(), "the start is the first candidate"
    assert np.array(asked).min() >= 0
    assert np.array(asked).max() <= 1
    np.testing.assert_allclose(found.best[:size], peak, atol=0.02)
    again = search(score, size, EvolutionaryParams(evaluations=400), seed=1)
    np.testing.assert_array_equal(again.best, found.best)


def test_the_search_leaves_numpys_global_generator_alone():
    np.random.seed(5)  # noqa: NPY002
    wanted = np.random.rand()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    search(lambda candidate: float(candidate[0]), 3, EvolutionaryParams(evaluations=20), seed=0)
    assert np.random.rand() == wanted  # noqa: NPY002


@pytest.mark.parametrize("budget", [1, 2, 7, 90])
def test_a_flat_or_undefined_score_uses_the_budget_and_keeps_the_start(budget):
    flat = search(lambda candidate: 50.0, 4, EvolutionaryParams(evaluations=budget), seed=0)
    assert len(flat.scores) == budget
    assert (flat.best == 0.3).all()
    undefined = search(lambda candidate: float("nan"), 4, EvolutionaryParams(evaluations=budget), seed=0)
    assert len(undefined.scores) == budget
    assert (undefined.best == 0.3).all()


@pytest.mark.parametrize("granularity", ["task", "block"])
def test_the_search_is_never_worse_than_its_start_on_validation_images(granularity):
    params = {"granularity": granularity, "evaluations": 40, "examples": 50, "objective": "loss", "on": "task_vectors"}
    _, result = merged("evolutionary", params)
    details = result.info.details
    assert details["evaluations"] == len(details["score"]) == 40
    assert details["validation_images"] == 200
    assert max(details["score"]) > details["score"][0]
    found = next(iter(details["coefficients"].values()))
    assert set(found) == {"0", "1", "outside"} if granularity == "block" else 0 <= found <= 1


def test_densities_are_searched_beside_coefficients():
    params = {"search_densities": True, "density": 0.5, "evaluations": 30, "examples": 50, "objective": "loss"}
    _, result = merged("evolutionary", params)
    details = result.info.details
    assert set(details["densities"]) == set(details["coefficients"])
    assert all(round(20 * density) == pytest.approx(20 * density) for density in details["densities"].values())
    assert max(details["score"]) > details["score"][0]
    assert len({*details["densities"].values()}) > 1, "each expert has its own"


def test_a_density_that_is_searched_keeps_what_the_same_fixed_one_keeps():
    start = {"density": 0.5, "evaluations": 1, "examples": 4}
    (_, fixed), (_, found) = (merged("evolutionary", start | more) for more in ({}, {"search_densities": True}))
    assert set(found.info.details["densities"].values()) == {0.5}
    torch.testing.assert_close(tensors_of(found.weights), tensors_of(fixed.weights))


def test_coordinates_of_densities_have_bounds_and_a_start_of_their_own():
    asked = []

    def score(candidate):
        asked.append(candidate.copy())
        return -float(((candidate - [0.6, 0.9, 0.1]) ** 2).sum())

    params = EvolutionaryParams(evaluations=300, largest=0.5, density=0.4)
    found = search(score, 1, params, seed=3, densities=2)
    assert asked[0].tolist() == [0.3, 0.4, 0.4]
    assert np.array(asked).max(axis=0)[0] <= 0.5 < np.array(asked).max(axis=0)[1] <= 1
    np.testing.assert_allclose(found.best, [0.5, 0.9, 0.1], atol=0.02)


def test_densities_are_of_trimmed_vectors():
    with pytest.raises(ValueError, match="set `on: ties`"):
        EvolutionaryParams(on="task_vectors", search_densities=True)


def test_the_search_looks_at_validation_images_only():
    class Watched(TinyContext):
        def batches(self, task, split, size):
            assert split == "validation"
            return super().batches(task, split, size)

    merged("evolutionary", {"evaluations": 2, "examples": 4}, Watched())


CANCELLED = {
    "twin": TwinParams(examples=64),
    "wemoe": WemoeParams(),
    "concrete": ConcreteParams(),
    "evolutionary": EvolutionaryParams(),
}


@pytest.mark.parametrize("method", CANCELLED)
@pytest.mark.parametrize("after", [1, 40])
def test_cancelling_stops_between_batches(method, after):
    class Stopped(TinyContext):
        def progress(self, fraction: float, message: str = "") -> None:
            super().progress(fraction, message)
            if len(self.fractions) == after:
                raise Cancelled("stopped")

    context = Stopped()
    with pytest.raises(Cancelled):
        merged(method, CANCELLED[method].model_dump(), context)
    assert len(context.fractions) == after


@pytest.mark.parametrize("method", ["twin", "wemoe"])
def test_what_scales_one_model_is_refused_behind_a_router(method):
    params = CANCELLED[method].model_dump() | {"examples": 4, "epochs": 0} if method == "twin" else {"steps": 0}
    with pytest.raises(MergeError, match="one for each image"):
        merged(method, params, transforms=(MethodCall(method="lines"),))


def test_lwptv_prunes_before_a_router():
    base, result = merged("wemoe", {"steps": 0}, transforms=(MethodCall(method="lwptv", params={"eta": 0.9}),))
    kept = result.info.details["transforms"]["lwptv"]["kept_layers"]
    weights = next(iter(models(base, result).values()))
    moved = [name for name in base.names if not torch.equal(weights.tensor(name), base.tensor(name).double())]
    assert 0 < len(moved) == kept < 33
