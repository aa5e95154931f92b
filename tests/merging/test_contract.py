"""Every merge method and transform of the catalog through the same checks."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.catalog import MERGE_METHODS, TRANSFORMS, MergeRow, Row, params_of
from engine.errors import EngineError
from engine.merging.apply import merge
from engine.merging.assemble import merged_vector
from engine.merging.scaled import Scaled
from engine.recipe import MethodCall
from engine.types import Merged, Weights
from engine.weights import LazyTaskVectors, Memory
from tests.reference.merging.support import EXPERTS, TinyContext, models, some_images, tensors_of, toy

PLAIN = MethodCall(method="task_arithmetic")


def settings_of(row: Row) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and parameters of every way in which a row is tried out."""
    yield "defaults", {**row.quick}
    for preset in row.presets:
        yield preset.name, {**preset.params, **row.quick}
    for number, variant in enumerate(row.variants):
        yield f"variant{number}", {**row.quick, **variant}


def variants() -> Iterator[Any]:
    for row in MERGE_METHODS.values():
        for name, params in settings_of(row):
            yield pytest.param(row, (), MethodCall(method=row.name, params=params), id=f"{row.name}-{name}")
    for row in TRANSFORMS.values():
        for name, params in settings_of(row):
            yield pytest.param(row, (MethodCall(method=row.name, params=params),), PLAIN, id=f"{row.name}-{name}")


every = pytest.mark.parametrize(("row", "transforms", "call"), list(variants()))


def experts_for(row: Any, wanted: int = 4) -> tuple[str, ...]:
    """As many experts as wanted, or as many as the row takes."""
    most = getattr(row, "max_experts", None) or wanted
    return EXPERTS[: max(min(wanted, most), row.min_experts)]


def without_effect(row: Row, params: dict[str, Any]) -> dict[str, Any]:
    """Other values of the parameters that have no effect beside these."""
    held = dict(params_of(row, params))
    return {
        name: held[name] / 2 if isinstance(held[name], float) else 2 * held[name]
        for name in held.keys() - row.in_effect(held).keys()
    }


def run(
    base: Weights,
    experts: dict[str, Weights],
    transforms: tuple[MethodCall, ...],
    call: MethodCall,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Merged:
    context = TinyContext(tuple(experts), seed=seed)
    return merge(base, LazyTaskVectors(base, experts, dtype=dtype), transforms, call, context)


def read(base: Weights, merged: Merged) -> dict[str, dict[str, Tensor]]:
    return {task: tensors_of(weights) for task, weights in models(base, merged).items()}


WAYS = {item.id: item.values for item in variants()}


each = pytest.mark.parametrize("name", list(WAYS))


@cache
def prepared(name: str, dtype: torch.dtype = torch.float32) -> tuple[dict[str, Weights], dict[str, dict[str, Tensor]]]:
    """The models and their tensors that a way of trying out merges the full world to, once for all who only look."""
    row, transforms, call = WAYS[name]
    base, experts = full(experts_for(row))
    merged = run(base, experts, transforms, call, dtype=dtype)
    return models(base, merged), read(base, merged)


def full(names: tuple[str, ...]) -> tuple[Memory, dict[str, Weights]]:
    """Weights with frozen layers, a scalar, an integer buffer, and tensors of 1 to 4 dimensions."""
    return toy("pretrained", "toyfull"), {name: toy(name, "toyfull") for name in names}


def assert_close(found: dict[str, dict[str, Tensor]], wanted: dict[str, dict[str, Tensor]], atol: float = 2e-5) -> None:
    assert set(found) == set(wanted)
    for task, tensors in wanted.items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(
                found[task][name], tensor, rtol=1e-5, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
            )


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_names_shapes_dtypes_and_finiteness(name, dtype):
    base = toy("pretrained", "toyfull")
    merged, tensors = prepared(name, dtype)
    for task, weights in merged.items():
        assert weights.names == base.names
        for name in base.names:
            tensor = tensors[task][name]
            assert tuple(tensor.shape) == weights.shape(name) == base.shape(name)
            assert tensor.dtype == weights.dtype(name)
            if base.dtype(name).is_floating_point:
                assert tensor.dtype == dtype
                assert tensor.isfinite().all(), name


@each
def test_merging_does_something(name):
    before = tensors_of(toy("pretrained", "toyfull"))
    for tensors in prepared(name)[1].values():
        assert any(not torch.equal(tensors[name], before[name]) for name in before)


@each
def test_frozen_and_integer_tensors_stay_the_bases(name):
    base = toy("pretrained", "toyfull")
    frozen = [name for name in base.names if not name.startswith("visual.")]
    assert len(frozen) == 6
    for tensors in prepared(name)[1].values():
        assert torch.equal(tensors["visual.position_ids"], base.tensor("visual.position_ids"))
        for name in frozen:
            torch.testing.assert_close(tensors[name], base.tensor(name), rtol=1e-6, atol=1e-7)


@every
def test_inputs_are_not_changed_and_reading_twice_agrees(row, transforms, call):
    base, experts = full(experts_for(row))
    before = [tensors_of(weights) for weights in (base, *experts.values())]
    merged = run(base, experts, transforms, call)
    parts = {name: tensor.clone() for name, tensor in getattr(merged, "parts", {}).items()}
    first, second = read(base, merged), read(base, merged)
    assert_close(second, first, atol=0)
    for weights, tensors in zip((base, *experts.values()), before, strict=True):
        assert all(torch.equal(weights.tensor(name), tensor) for name, tensor in tensors.items())
    assert all(torch.equal(merged.parts[name], tensor) for name, tensor in parts.items())


@every
def test_experts_equal_to_the_base_give_the_base(row, transforms, call):
    base, _ = full(EXPERTS)
    experts = {name: base for name in experts_for(row)}
    found = read(base, run(base, experts, transforms, call))
    assert_close(found, {task: tensors_of(base) for task in found}, atol=1e-6)


@each
def test_order_of_experts(name):
    row, transforms, call = WAYS[name]
    base, experts = full(experts_for(row))
    turned = dict(reversed(experts.items()))
    _, first = prepared(name, torch.float64)
    second = read(base, run(base, turned, transforms, call, dtype=torch.float64))
    if getattr(row, "order_matters", False):
        with pytest.raises(AssertionError):
            assert_close(second, first)
    else:
        assert_close(second, first, atol=1e-6)


@each
def test_seeds(name):
    row, transforms, call = WAYS[name]
    base, experts = full(experts_for(row))
    _, first = prepared(name)  # of seed 0
    other = read(base, run(base, experts, transforms, call, seed=4))
    if row.stochastic:
        assert_close(read(base, run(base, experts, transforms, call)), first, atol=0)
        with pytest.raises(AssertionError):
            assert_close(other, first, atol=0)
    else:
        assert_close(other, first, atol=0)


@every
@pytest.mark.parametrize("count", [1, 2])
def test_few_experts_are_merged_or_refused(row, transforms, call, count):
    base, experts = full(EXPERTS[:count])
    if count < row.min_experts:
        with pytest.raises(EngineError, match="at least"):
            run(base, experts, transforms, call)
        return
    found = read(base, run(base, experts, transforms, call))
    assert all(tensor.isfinite().all() for tensors in found.values() for tensor in tensors.values())


@every
def test_half_precision_files(row, transforms, call):
    base, experts = full(experts_for(row))
    half = {
        name: Memory({key: cast(value) for key, value in tensors_of(weights).items()})
        for name, weights in (("base", base), *experts.items())
    }
    wide = {name: Memory({key: widen(weights.tensor(key)) for key in weights.names}) for name, weights in half.items()}
    first = read(half["base"], run(half.pop("base"), half, transforms, call))
    second = read(wide["base"], run(wide.pop("base"), wide, transforms, call))
    assert_close(first, second, atol=1e-6)


def cast(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float16) if tensor.is_floating_point() else tensor


def widen(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


@every
def test_an_expert_without_a_difference_is_harmless(row, transforms, call):
    base, experts = full(experts_for(row))
    experts[next(iter(experts))] = base
    found = read(base, run(base, experts, transforms, call))
    assert all(tensor.isfinite().all() for tensors in found.values() for tensor in tensors.values())


@every
def test_layers_without_entries_are_kept(row, transforms, call):
    base, experts = full(experts_for(row))
    empty = {"visual.empty": torch.zeros(0, 4)}
    base, *rest = (Memory({**tensors_of(weights), **empty}) for weights in (base, *experts.values()))
    found = read(base, run(base, dict(zip(experts, rest, strict=True)), transforms, call))
    assert all(tensors["visual.empty"].shape == (0, 4) for tensors in found.values())


def test_methods_that_need_images_say_so_and_count_them():
    for row in MERGE_METHODS.values():
        looks = bool({"unlabelled", "validation"} & row.needs)
        assert looks or not row.learns, row.name
        assert bool(row.cost.images) == looks, row.name


@pytest.mark.parametrize("row", [row for row in MERGE_METHODS.values() if not row.needs], ids=lambda row: row.name)
def test_methods_without_needs_ask_for_no_images(row: MergeRow):
    base, experts = full(experts_for(row))

    class Blind(TinyContext):
        def batches(self, *arguments: Any) -> Any:
            raise AssertionError("images were asked for")

        forward = head = batches

    merged = merge(base, LazyTaskVectors(base, experts), [], MethodCall(method=row.name), Blind(tuple(experts)))
    assert read(base, merged)


@pytest.mark.parametrize(
    ("row", "call"), [item.values[::2] for item in variants() if getattr(item.values[0], "yields", "") == "per_sample"]
)
def test_an_image_is_encoded_with_the_weights_that_are_named_for_it(row, call):
    base, experts = full(experts_for(row))
    context = TinyContext(tuple(experts))
    merged = merge(base, LazyTaskVectors(base, experts, dtype=torch.float64), (), call, context)
    encoder = merged.rebuild(base, merged.parts, context.forward)
    images = some_images(5)
    together = encoder(images[:1]) if context_matters(call) else encoder(images)
    for image, features in zip(images, together, strict=False):
        weights = encoder.weights_of(image)
        torch.testing.assert_close(context.forward(weights, image[None])[0], features, rtol=1e-6, atol=1e-8)
    assert merged.info.needs_task_id == context_matters(call)
    one, other = (encoder.weights_of(image)["visual.transformer.resblocks.1.mlp.c_proj.weight"] for image in images[:2])
    assert call.params.get("routing") == "best" or not torch.allclose(one, other, rtol=0, atol=1e-12)


def context_matters(call: MethodCall) -> bool:
    """Tell whether images of one batch share their weights."""
    return call.params.get("routing") == "batch"


@pytest.mark.parametrize("row", [row for row in MERGE_METHODS.values() if row.proportional], ids=lambda row: row.name)
def test_proportional_vectors_are_their_scaling_times_one_vector(row):
    base, experts = full(experts_for(row))
    vectors = LazyTaskVectors(base, experts)
    for _, params in settings_of(row):
        at = [run(base, experts, (), MethodCall(method=row.name, params={**params, "scaling": s})) for s in (1.0, 0.3)]
        one, other = (merged_vector(base, vectors, merged) for merged in at)
        for name in vectors.names:
            torch.testing.assert_close(one(name).mul_(0.3), other(name), rtol=1e-6, atol=1e-8)
            whole = Scaled(base, {name: one(name).clone()}, 0.3)
            assert torch.equal(whole.tensor(name), one(name).mul_(0.3).add_(base.tensor(name)))
            half = torch.empty(whole.shape(name), dtype=torch.float16)
            whole.read_into(name, half)
            assert torch.equal(half, whole.tensor(name).half())


@pytest.mark.parametrize(
    ("row", "transforms", "call"),
    [way for way in variants() if without_effect(way.values[0], (*way.values[1], way.values[2])[0].params)],
)
def test_parameters_without_effect_beside_the_others_change_nothing(row, transforms, call):
    base, experts = full(experts_for(row))
    changes = without_effect(row, (*transforms, call)[0].params)

    def changed(part: MethodCall) -> MethodCall:
        return MethodCall(method=part.method, params={**part.params, **changes}) if part.method == row.name else part

    after = run(base, experts, tuple(map(changed, transforms)), changed(call))
    assert_close(read(base, after), read(base, run(base, experts, transforms, call)), atol=0)
