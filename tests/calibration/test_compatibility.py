"""Named options that repeat what published programs do, and coefficients that learn beside interventions."""

import copy

import open_clip.transformer as vit
import pytest
import torch

from engine.calibration import IntervMerge, Surgery, SurgeryJoint, SurgeryV2, fit_deep, load_calibrator
from engine.calibration.coefficients import LinearMerge
from engine.calibration.tower import Tower
from engine.catalog import MERGE_METHODS
from engine.catalog.basic import TaskArithmeticParams
from engine.catalog.calibrators import SurgeryParams
from engine.catalog.deep_calibrators import IntervMergeParams, SurgeryJointParams, SurgeryV2Params
from engine.errors import CalibrationError
from engine.merging.averaging import task_arithmetic
from engine.weights import LazyTaskVectors, Memory

DIM, STEPS, RATE = 10, 6, 0.01
INPUTS = {"A": 1, "B": 2}


def encoder(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return vit.VisionTransformer(8, 4, 16, 3, 2, 2.0, output_dim=DIM).double().eval()


def images(seed, n=4):
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trained(kind, config, steps=STEPS, merge=None, tasks=("A", "B"), **more):
    """Batches are whole tasks, so their order does not matter."""
    calibrator, inputs = kind(), {task: images(INPUTS[task]) for task in tasks}
    config = config.model_copy(update={"steps": steps, "batch_size": 4, "learning_rate": RATE})
    targets = {task: kind().teach(encoder(seed + 5), x, config) for seed, (task, x) in enumerate(inputs.items())}
    report = fit_deep(calibrator, encoder(), inputs, targets, config, 0, merge=merge, **more)
    return calibrator, inputs, targets, report


def oracle(config, updates=1, stale=False):
    """One task after another, one torch.optim.Adam, gradients zeroed or dropped, a gradient used several times."""
    start = IntervMerge()
    tower = Tower(encoder().requires_grad_(False))
    start.reset(("A", "B"), tower.sizes(), config, dtype=torch.float64)
    _, inputs, targets, _ = trained(IntervMerge, config, steps=1)
    rows = [
        {name: value[i : i + 1].detach().clone().requires_grad_() for name, value in start.named_parameters()}
        for i in (0, 1)
    ]
    adam = torch.optim.Adam([value for row in rows for value in row.values()], lr=RATE)
    for _ in range(STEPS):
        for row, task in zip(rows, inputs, strict=True):
            adam.zero_grad(set_to_none=not stale)
            module = copy.deepcopy(start)
            module.tasks = (task,)
            module._adopt({})
            for name, value in row.items():
                object.__setattr__(module, name, value)
            features = module.student(tower, module.prefix(tower, inputs[task]), slice(0, 1))
            (features[0] - targets[task]).abs().mean().backward()
            for _ in range(updates):
                adam.step()
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({}, {}),
        ({"adam_semantics": "shared"}, {"stale": True}),
        ({"registration": "triple"}, {"updates": 3}),
        ({"registration": "triple", "adam_semantics": "shared"}, {"updates": 3, "stale": True}),
    ],
    ids=str,
)
def test_options_equal_the_program_written_out(options, reference):
    config = IntervMergeParams(rank=2, **options)
    calibrator, *_ = trained(IntervMerge, config)
    for name, value in oracle(config, **reference).items():
        torch.testing.assert_close(getattr(calibrator, name).detach(), value.detach(), rtol=1e-7, atol=1e-9)
    if options:
        plain, *_ = trained(IntervMerge, IntervMergeParams(rank=2))
        assert not torch.allclose(plain.source, calibrator.source, atol=1e-4)


def test_a_shared_adam_of_surgery_v2_drifts_and_independent_ones_do_not():
    own, *_ = trained(SurgeryV2, SurgeryV2Params(rank=2))
    shared, *_ = trained(SurgeryV2, SurgeryV2Params(rank=2, adam_semantics="shared"))
    alone, *_ = trained(SurgeryV2, SurgeryV2Params(rank=2), tasks=("A",))
    torch.testing.assert_close(own.up[0], alone.up[0])
    assert not torch.allclose(shared.up[0], alone.up[0], atol=1e-4)


def test_only_the_first_token_is_trained_where_asked():
    config = IntervMergeParams(rank=2, positions="patches", trained_tokens="first")
    calibrator, *_ = trained(IntervMerge, config)
    start = IntervMerge()
    start.reset(("A", "B"), calibrator.sizes, config, dtype=torch.float64)
    for name, value in calibrator.named_parameters():
        torch.testing.assert_close(value[:, :, 1:], getattr(start, name)[:, :, 1:], rtol=0, atol=0)
    moved = (calibrator.source[:, :-1, 0] - start.source[:, :-1, 0]).abs()  # of patches nothing is read after the last
    assert (moved > 1e-6).any(-1).all()


def test_a_quirk_is_off_by_default_and_then_not_written():
    for params in (IntervMergeParams(), SurgeryV2Params()):
        assert not {"adam_semantics", "registration", "trained_tokens", "coefficients"} & set(params.model_dump())
    assert SurgeryParams().adam_semantics == "indep"
    assert IntervMergeParams(registration="triple").model_dump()["registration"] == "triple"


def merge(start=0.3, experts=2, rows=None):
    base = {name: value.detach() for name, value in encoder().state_dict().items()}
    vectors = {
        name: torch.stack([encoder(seed + 5).state_dict()[name] - value for seed in range(experts)])
        for name, value in base.items()
    }
    shape = (rows or len(vectors), experts)
    names = tuple("AB"[:experts])
    return LinearMerge(base, vectors, torch.full(shape, start, dtype=torch.float64), names)


def test_coefficients_start_at_the_merge_and_bring_it_nearer():
    given, config = merge(), IntervMergeParams(rank=1, coefficients="layer")
    calibrator, inputs, targets, report = trained(IntervMerge, config, steps=60, merge=given, monitor_every=10)
    assert report.curve[-1][1] < report.curve[0][1]
    assert calibrator.coefficients.shape == (len(given.layers), 2)
    assert (calibrator.coefficients - 0.3).abs().mean() > 0.01
    visual = encoder()
    visual.load_state_dict(calibrator.merged_weights(given))
    distance = (calibrator.correct_features(visual, inputs["A"], "A") - targets["A"]).abs().mean()
    frozen, *_ = trained(IntervMerge, IntervMergeParams(rank=1), steps=60)
    assert distance < (frozen.correct_features(encoder(), inputs["A"], "A") - targets["A"]).abs().mean()


def test_one_coefficient_an_expert_and_none_outside_the_interval():
    given = merge(start=0.999, rows=1)
    calibrator, *_ = trained(IntervMerge, IntervMergeParams(coefficients="task"), steps=20, merge=given)
    assert calibrator.coefficients.shape == (1, 2)
    weights, used = calibrator.merged_weights(given), calibrator.coefficients.detach().clamp(0, 1)[0]
    for name, tensor in weights.items():
        want = given.base[name] + used[0] * given.vectors[name][0] + used[1] * given.vectors[name][1]
        torch.testing.assert_close(tensor, want)


def test_surgery_learns_along_with_coefficients_by_the_distance_after_its_correction():
    given, inputs = merge(rows=1), images(1)
    calibrator, tower = SurgeryJoint(), Tower(encoder().requires_grad_(False))
    config = SurgeryJointParams(rank=3)
    stack = calibrator.reset(("A", "B"), tower.sizes(), config, dtype=torch.float64)
    stack.parameters["up"].data.normal_(generator=torch.Generator().manual_seed(0))
    student, target = calibrator.join(tower, given, stack), calibrator.teach(encoder(5), inputs, config)

    def loss_at(coefficients):
        visual = encoder()
        visual.load_state_dict(given.weights(coefficients))
        return (calibrator.correct_features(visual, inputs, "B") - target).abs().mean()

    student.backward(inputs, target[None], slice(1, 2))
    for expert in range(2):
        step = torch.zeros(1, 2, dtype=torch.float64)
        step[0, expert] = 1e-6
        slope = (loss_at(given.start + step) - loss_at(given.start - step)) / 2e-6
        torch.testing.assert_close(calibrator.coefficients.grad[0, expert], slope, rtol=1e-4, atol=1e-7)


def test_one_coefficient_an_expert_starts_at_the_mean_over_layers_and_one_a_layer_where_the_merge_has_one():
    tower = Tower(encoder().requires_grad_(False))
    given = merge()
    given.start.copy_(torch.rand(given.start.shape, generator=torch.Generator().manual_seed(0)))
    for granularity, start in (("task", given), ("layer", given), ("layer", merge(0.7, rows=1))):
        calibrator = SurgeryJoint()
        config = SurgeryJointParams(rank=1, coefficients=granularity)
        stack = calibrator.reset(("A", "B"), tower.sizes(), config, dtype=torch.float64)
        calibrator.join(tower, start, stack)
        wanted = (
            start.start.mean(0, keepdim=True) if granularity == "task" else start.start.expand(len(start.layers), 2)
        )
        torch.testing.assert_close(calibrator.coefficients.detach(), wanted)


def test_a_coefficient_outside_the_interval_counts_as_its_end_and_gets_no_gradient():
    tower, inputs = Tower(encoder().requires_grad_(False)), images(1)
    config = SurgeryJointParams(rank=1, coefficients="task")
    target, found = SurgeryJoint().teach(encoder(5), inputs, config), []
    for start in (1.0, 1.5):
        calibrator = SurgeryJoint()
        stack = calibrator.reset(("A",), tower.sizes(), config, dtype=torch.float64)
        student = calibrator.join(tower, merge(start, rows=1), stack)
        found.append(student.backward(inputs, target[None], slice(0, 1)))
    torch.testing.assert_close(found[1], found[0])
    assert not calibrator.coefficients.grad.any()


def test_surgery_moves_coefficients_and_begins_where_the_merge_is():
    given, config = merge(start=0.1), SurgeryJointParams(rank=1, coefficients="layer")
    calibrator, _, _, report = trained(SurgeryJoint, config, steps=60, merge=given, monitor_every=10)
    assert report.curve[-1][1] < report.curve[0][1]
    assert calibrator.coefficients.shape == (len(given.layers), 2)
    assert (calibrator.coefficients - 0.1).abs().mean() > 0.01


def test_surgery_with_frozen_coefficients_is_surgery():
    """One module, the same start and the same batches, whether features are cached or the encoder runs."""
    config = SurgeryJointParams(rank=2, coefficients="frozen")
    calibrator, inputs, targets, _ = trained(SurgeryJoint, config, steps=20)
    plain = {task: SurgeryJoint().correct_features(encoder(), images, task) for task, images in inputs.items()}
    same = SurgeryParams(rank=2, steps=20, batch_size=4, learning_rate=RATE)
    surgery = Surgery()
    surgery.fit(plain, targets, same, 0)
    for name in ("down", "up"):
        torch.testing.assert_close(getattr(calibrator, name), getattr(surgery, name), rtol=1e-8, atol=1e-10)


def test_divergence_takes_coefficients_back_as_well():
    given, config = merge(), IntervMergeParams(coefficients="layer", rank=1)
    calibrator, kept, calls = IntervMerge(), {}, []
    original = calibrator.losses

    def poisoned(*arguments):
        calls.append(1)
        return original(*arguments) * (torch.nan if len(calls) == 7 else 1.0)

    def keep(step, loss, module):
        kept.update({name: value.detach().clone() for name, value in module.named_parameters()})
        return True

    calibrator.losses = poisoned
    inputs = {"A": images(1)}
    config = config.model_copy(update={"steps": 9, "batch_size": 4, "learning_rate": RATE})
    targets = {"A": calibrator.teach(encoder(5), inputs["A"], config)}
    report = fit_deep(calibrator, encoder(), inputs, targets, config, 0, keep, 3, merge=given)
    assert (report.diverged_at, report.steps) == (7, 6)
    assert "coefficients" in kept
    for name, value in calibrator.named_parameters():
        torch.testing.assert_close(value, kept[name], rtol=0, atol=0)


def test_saved_with_its_coefficients(tmp_path):
    calibrator, *_ = trained(IntervMerge, IntervMergeParams(coefficients="layer"), merge=merge())
    calibrator.save(tmp_path / "joint.safetensors")
    loaded = load_calibrator(tmp_path / "joint.safetensors")
    torch.testing.assert_close(loaded.coefficients, calibrator.coefficients, rtol=0, atol=0)
    assert loaded.parameter_count() == calibrator.parameter_count()
    assert loaded.parameter_count() - sum(loaded.get_parameter(name).numel() for name in loaded.shapes()) == (
        calibrator.coefficients.numel()
    )


def test_coefficients_and_a_merge_belong_together():
    with pytest.raises(CalibrationError, match="`coefficients` is layer and no merge is given"):
        trained(IntervMerge, IntervMergeParams(coefficients="layer"))
    with pytest.raises(CalibrationError, match="`coefficients` is frozen and a merge is given"):
        trained(IntervMerge, IntervMergeParams(), merge=merge())
    with pytest.raises(CalibrationError, match="does not learn merging coefficients"):
        trained(SurgeryV2, SurgeryV2Params(), merge=merge())
    with pytest.raises(CalibrationError, match=r"shape \(3, 2\)"):
        merge(rows=3)


def test_surgery_knows_no_drift_unless_asked():
    generator = torch.Generator().manual_seed(0)
    merged = {task: torch.randn(8, 6, generator=generator) for task in "AB"}
    expert = {task: z - 0.5 for task, z in merged.items()}
    made = {}
    for semantics in ("indep", "shared"):
        made[semantics] = Surgery()
        config = SurgeryParams(rank=2, steps=10, batch_size=8, learning_rate=0.01, adam_semantics=semantics)
        made[semantics].fit(merged, expert, config, 0)
    assert not torch.allclose(made["indep"].up, made["shared"].up, atol=1e-4)


def test_weight_averaging_that_drops_the_last_expert_is_a_recipe():
    generator = torch.Generator().manual_seed(0)
    base, *experts = (Memory({"visual.w": torch.randn(5, 3, generator=generator)}) for _ in range(4))
    vectors = LazyTaskVectors(base, dict(zip("abc", experts, strict=True)), weights=[1, 1, 0])
    merged = task_arithmetic(base, vectors, TaskArithmeticParams(scaling=1 / 3), None).weights.tensor("visual.w")
    start, first, second, _ = (model.tensor("visual.w") for model in (base, *experts))
    torch.testing.assert_close(merged, start + (first - start) / 3 + (second - start) / 3)
    assert "weight 0" in MERGE_METHODS["weight_average"].departure
