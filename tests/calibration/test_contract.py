"""Every calibrator of the catalog keeps the same promises."""

import copy
from dataclasses import dataclass
from typing import get_args

import open_clip.transformer as vit
import pytest
import torch

from engine import catalog
from engine.calibration import (
    DeepCalibrator,
    JointCalibrator,
    OutputCalibrator,
    calibrator_from_state,
    fit_deep,
    load_calibrator,
)
from engine.catalog.calibrators import Loss
from engine.errors import CalibrationError, CheckpointError, UnpairedFeatures

DIM = 10
SIZES = {"letters": 24, "signs": 17}
VARIANTS = [(row.name, params) for row in catalog.CALIBRATORS.values() for params in ({}, *row.variants)]
every_row = pytest.mark.parametrize("name", list(catalog.CALIBRATORS))
every_variant = pytest.mark.parametrize(("name", "params"), VARIANTS, ids=lambda value: str(value))


def encoder(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return vit.VisionTransformer(8, 4, 16, 3, 2, 2.0, output_dim=DIM).eval()


@dataclass
class Bench:
    """One calibrator, its data and one way to train and apply it, whatever its protocol."""

    row: catalog.CalibratorRow
    config: catalog.Params
    inputs: dict  # task → images or merged features
    targets: dict
    merged: torch.nn.Module | None

    def make(self):
        return self.row.load()()

    def fit(self, calibrator, seed=0, tasks=None, monitor=None, every=3, **changes):
        config = self.config.model_copy(update=changes)
        inputs = {task: self.inputs[task] for task in tasks or self.inputs}
        targets = {task: self.targets[task] for task in tasks or self.inputs}
        if self.row.deep:
            return fit_deep(calibrator, self.merged, inputs, targets, config, seed, monitor, every)
        return calibrator.fit(inputs, targets, config, seed, monitor, every)

    def apply(self, calibrator, task):
        if self.row.deep:
            return calibrator.correct_features(self.merged, self.inputs[task], task)
        return calibrator.correct(self.inputs[task], task)

    def plain(self, task):
        if self.row.deep:
            with torch.no_grad():
                return self.merged(self.inputs[task])
        return self.inputs[task]


def bench(name, params=None):
    row = catalog.CALIBRATORS[name]
    config = catalog.params_of(row, {"steps": 9, "batch_size": 8, **row.quick, **(params or {})})
    generator = torch.Generator().manual_seed(5)
    if not row.deep:
        inputs = {task: torch.randn(n, DIM, generator=generator) for task, n in SIZES.items()}
        targets = {task: z + 0.3 * torch.randn(z.shape, generator=generator) - 0.4 for task, z in inputs.items()}
        return Bench(row, config, inputs, targets, None)
    inputs = {task: torch.randn(n, 3, 8, 8, generator=generator) for task, n in SIZES.items()}
    teachers = {task: encoder(seed) for seed, task in enumerate(SIZES, start=1)}
    targets = {task: row.load()().teach(teachers[task], images, config) for task, images in inputs.items()}
    return Bench(row, config, inputs, targets, encoder(0))


def parameters_of(calibrator):
    return {name: value.detach().clone() for name, value in calibrator.named_parameters()}


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=0, atol=0)


def other(row, field, value):
    """Another value of a parameter."""
    if isinstance(value, str):
        return next(choice for choice in get_args(row.params.model_fields[field].annotation) if choice != value)
    return value / 2 if isinstance(value, float) else 2 * value


@every_row
def test_nothing_changes_before_fitting(name):
    data = bench(name)
    calibrator = data.make()
    torch.testing.assert_close(data.apply(calibrator, "signs"), data.plain("signs"))
    assert calibrator.parameter_count() == 0


@every_variant
def test_untrained_modules_are_the_identity_unless_declared(name, params):
    data = bench(name, params)
    calibrator = data.make()
    data.fit(calibrator)
    calibrator.reset(calibrator.tasks, calibrator.sizes, data.config)
    unchanged = torch.allclose(data.apply(calibrator, "signs"), data.plain("signs"), atol=1e-5)
    assert unchanged == calibrator.starts_as_identity


@every_variant
def test_training_brings_features_nearer_to_the_expert(name, params):
    data = bench(name, params)
    calibrator = data.make()
    report = data.fit(calibrator, steps=200, learning_rate=0.02, every=50)
    assert report.steps == 200
    assert report.parameters == calibrator.parameter_count()
    assert [row[0] for row in report.curve] == list(range(50, 201, 50))
    for task in SIZES:
        want = data.targets[task][:, -DIM:]
        after = (data.apply(calibrator, task) - want).abs().mean()
        assert after < (data.plain(task) - want).abs().mean()


@every_variant
def test_same_seed_same_result_and_refitting_forgets(name, params):
    data = bench(name, params)
    once, again = data.make(), data.make()
    first = data.fit(once, seed=3)
    data.fit(again, seed=4)
    assert any(not torch.equal(value, getattr(once, key)) for key, value in again.named_parameters())
    second = data.fit(again, seed=3)
    assert_same(parameters_of(once), parameters_of(again))
    assert first.curve == second.curve


@every_variant
def test_parameters_without_effect_beside_the_others_change_nothing(name, params):
    data = bench(name, params)
    held = dict(data.config)
    found = {}
    for changed in (False, True):
        idle = {field: other(data.row, field, held[field]) for field in held.keys() - data.row.in_effect(held).keys()}
        calibrator = data.make()
        data.fit(calibrator, **(idle if changed else {}))
        found[changed] = parameters_of(calibrator)
    assert_same(found[False], found[True])


@every_row
def test_random_state_and_inputs_are_left_alone(name):
    data = bench(name)
    before = copy.deepcopy((data.inputs, data.targets))
    weights = None if data.merged is None else copy.deepcopy(data.merged.state_dict())
    if data.merged is not None:
        data.merged.train()
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    calibrator = data.make()
    data.fit(calibrator)
    data.apply(calibrator, "letters")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert_same(data.inputs, before[0])
    assert_same(data.targets, before[1])
    if data.merged is not None:
        assert_same(data.merged.state_dict(), weights)
        assert data.merged.training
        assert all(p.requires_grad and p.grad is None for p in data.merged.parameters())


@every_row
def test_a_task_alone_gives_the_same_module_as_beside_others(name):
    data = bench(name)
    together, alone = data.make(), data.make()
    data.fit(together)
    data.fit(alone, tasks=["signs"])
    for key, value in alone.named_parameters():
        row = getattr(together, key)[together.row("signs")]
        torch.testing.assert_close(value[0], row, rtol=1e-4, atol=1e-5)


@every_row
def test_the_order_of_tasks_does_not_matter(name):
    data = bench(name)
    forth, back = data.make(), data.make()
    data.fit(forth)
    data.fit(back, tasks=list(reversed(SIZES)))
    torch.testing.assert_close(data.apply(forth, "letters"), data.apply(back, "letters"), rtol=1e-4, atol=1e-5)


@every_variant
def test_saved_and_loaded_it_is_the_same(name, params, tmp_path):
    data = bench(name, params)
    calibrator = data.make()
    data.fit(calibrator)
    calibrator.save(tmp_path / "x.safetensors")
    loaded = load_calibrator(tmp_path / "x.safetensors")
    assert type(loaded) is type(calibrator)
    assert loaded.tasks == calibrator.tasks
    assert loaded.config == calibrator.config
    assert loaded.parameter_count() == calibrator.parameter_count()
    torch.testing.assert_close(data.apply(loaded, "signs"), data.apply(calibrator, "signs"), rtol=0, atol=0)


@every_row
def test_damaged_files_are_refused(name, tmp_path):
    data = bench(name)
    calibrator = data.make()
    data.fit(calibrator)
    path = tmp_path / "x.safetensors"
    calibrator.save(path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_calibrator(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_calibrator(tmp_path / "missing.safetensors")
    tensors, metadata = calibrator.state()
    with pytest.raises(CheckpointError, match="are needed"):
        calibrator_from_state({key: value[..., :1] for key, value in tensors.items()}, metadata)
    with pytest.raises(CheckpointError, match="no calibrator 'other'"):
        calibrator_from_state(tensors, {**metadata, "method": "other"})


@every_row
def test_the_monitor_sees_intervals_and_can_cancel(name):
    data = bench(name)
    seen = []

    def stop_after_two(step, loss, module):
        seen.append((step, sorted(loss)))
        assert module is calibrator
        return len(seen) < 2

    calibrator = data.make()
    report = data.fit(calibrator, monitor=stop_after_two, every=2)
    assert seen == [(2, sorted(SIZES)), (4, sorted(SIZES))]
    assert report.cancelled
    assert report.steps == 4
    whole = data.make()
    assert not data.fit(whole, monitor=lambda *_: True, every=2).cancelled
    partial = data.make()
    data.fit(partial, steps=4)
    assert_same(parameters_of(calibrator), parameters_of(partial))


@every_row
def test_unusable_data_is_refused_by_name(name):
    data = bench(name)
    with pytest.raises(CalibrationError, match=r"'signs' has 17 images.*batch size of 20.*at most 17"):
        data.fit(data.make(), batch_size=20)
    data.targets["signs"] = data.targets["signs"][:-1]
    with pytest.raises(UnpairedFeatures, match=r"'signs' has 17 .* 16"):
        data.fit(data.make())
    data.inputs["signs"], data.targets["signs"] = data.inputs["signs"][:0], data.targets["signs"][:0]
    with pytest.raises(CalibrationError, match="'signs' has no images"):
        data.fit(data.make())


@every_row
def test_features_that_are_not_numbers_are_refused(name):
    data = bench(name)
    data.targets["letters"][3, 1] = torch.nan
    with pytest.raises(CalibrationError, match="'letters' hold values that are not finite"):
        data.fit(data.make())


@every_row
def test_divergence_keeps_the_last_good_state_and_says_when(name):
    data = bench(name)
    calibrator = data.make()
    attribute = "losses" if data.row.deep else "accumulate"
    original, calls, kept = getattr(calibrator, attribute), [], {}

    def poisoned(*arguments):
        calls.append(1)
        losses = original(*arguments)
        return losses * torch.nan if len(calls) == 7 else losses

    def keep(step, loss, module):
        kept.update(parameters_of(module))
        return True

    setattr(calibrator, attribute, poisoned)
    report = data.fit(calibrator, monitor=keep, every=3, tasks=["letters"])
    assert report.diverged_at == 7
    assert report.steps == 6
    assert not report.cancelled
    assert "diverged at update 7" in report.warnings[0]
    assert_same(parameters_of(calibrator), kept)


@every_row
def test_unknown_tasks_are_refused_where_modules_are_the_tasks_own(name):
    data = bench(name)
    calibrator = data.make()
    data.fit(calibrator)
    with pytest.raises(CalibrationError, match=r"not trained for task 'sign'\. Did you mean 'signs'"):
        calibrator.row("sign")


def test_a_change_that_nothing_reads_is_refused():
    data = bench("interv_merge", {"positions": "first", "blocks": (2,)})
    with pytest.raises(CalibrationError, match="no effect"):
        data.fit(data.make())


@pytest.mark.parametrize("params", [{"sharing": "dfa"}, {"sharing": "pda"}])
def test_a_shared_module_ignores_the_task(params):
    data = bench("prob_surgery", params)
    calibrator = data.make()
    data.fit(calibrator)
    z = data.inputs["signs"]
    torch.testing.assert_close(calibrator.correct(z, "letters"), calibrator.correct(z, "anything"))
    assert calibrator.sigma(z, "anything").min() > 0


@every_variant
def test_the_row_counts_the_parameters_of_a_module(name, params):
    data = bench(name, params)
    calibrator = data.make()
    data.fit(calibrator)
    rows = 1 if calibrator.shared else len(SIZES)
    assert calibrator.parameter_count() == rows * data.row.parameter_count(data.config, calibrator.sizes)


@every_row
def test_the_row_says_what_the_calibrator_is(name):
    row = catalog.CALIBRATORS[name]
    kind = row.load()
    assert kind.method == name
    assert issubclass(kind, DeepCalibrator if row.deep else OutputCalibrator)
    assert issubclass(kind, JointCalibrator) == row.learns_coefficients
    assert ("coefficients" in row.params.model_fields) == row.learns_coefficients


WRITTEN_OUT = [
    (name, params)
    for name, params in VARIANTS
    if not catalog.CALIBRATORS[name].deep
    and catalog.CALIBRATORS[name].load().accumulate is not OutputCalibrator.accumulate
]


@pytest.mark.parametrize("loss", get_args(Loss))
@pytest.mark.parametrize(("name", "params"), WRITTEN_OUT, ids=str)
def test_gradients_that_are_written_out_are_those_of_the_loss(name, params, loss):
    data = bench(name, {**params, "loss": loss})
    calibrator, count = data.make(), len(SIZES)
    stack = calibrator.reset(tuple(SIZES), {"dim": DIM}, data.config, seed=2, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    stack.values.normal_(0, 0.3, generator=generator)
    z, target = torch.randn((2, count, 7, DIM), generator=generator, dtype=torch.float64)
    shape = (count, calibrator.noise_draws, 7, DIM)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64) if calibrator.noise_draws else None
    for task in range(count):
        one = slice(task, task + 1)
        rows = slice(0, 1) if calibrator.shared else one
        given = z[one], target[one], None if noise is None else noise[one], rows
        stack.gradients.zero_()
        wanted, gradients = OutputCalibrator.accumulate(calibrator, *given), stack.gradients.clone()
        stack.gradients.zero_()
        torch.testing.assert_close(calibrator.accumulate(*given), wanted, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(stack.gradients, gradients, rtol=1e-10, atol=1e-13)
        assert gradients.count_nonzero() > 0


def test_a_calibrator_without_written_gradients_trains_as_with_them():
    class Plain(catalog.CALIBRATORS["surgery"].load()):
        accumulate = OutputCalibrator.accumulate

    data = bench("surgery")
    written, plain = data.make(), Plain()
    data.inputs, data.targets = ({t: z.double() for t, z in part.items()} for part in (data.inputs, data.targets))
    data.fit(written, steps=40)
    data.fit(plain, steps=40)
    for name, value in written.named_parameters():
        torch.testing.assert_close(getattr(plain, name), value, rtol=1e-9, atol=1e-11)
