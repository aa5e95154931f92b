"""Calibrators of the output: counts, gradients, batches and what the scores lead to."""

import copy

import pytest
import torch
from open_clip.transformer import VisionTransformer

from engine.calibration import IntervMerge, ProbSurgery, Surgery, SurgeryJoint, SurgeryV2
from engine.calibration.loop import run_loop
from engine.calibration.losses import distance, distance_and_gradient
from engine.calibration.output import FeatureBatches
from engine.calibration.sampling import EndlessBatches, generator_for
from engine.calibration.scoring import pairs_of
from engine.catalog.calibrators import ProbSurgeryParams, SurgeryParams
from engine.catalog.deep_calibrators import IntervMergeParams, SurgeryJointParams, SurgeryV2Params
from engine.errors import CalibrationError, UnpairedFeatures

EIGHT = tuple("ABCDEFGH")
VIT_B = {"dim": 512, "width": 768, "blocks": 12, "tokens": 50}
VIT_L = {"dim": 768, "width": 1024, "blocks": 24, "tokens": 257}
LOSSES = ("l1", "l2", "mse", "smooth_l1")


def mini(function, placement, dims, rank=1):
    return IntervMergeParams(rank=rank, function=function, mini=placement, mini_dims=dims)


COUNTS = [
    (Surgery, SurgeryParams(rank=16), VIT_B, 2 * 512 * 16, None),
    (Surgery, SurgeryParams(rank=16), VIT_L, 24_576, None),
    (Surgery, SurgeryParams(rank=64), VIT_B, 524_288 // 8, None),
    (Surgery, SurgeryParams(rank=192), VIT_B, 3 * 512 * 128, None),
    (ProbSurgery, ProbSurgeryParams(hidden=128), VIT_B, 196_608, 131_072),
    (ProbSurgery, ProbSurgeryParams(hidden=128), VIT_L, 294_912, 196_608),
    (ProbSurgery, ProbSurgeryParams(hidden=128, bias=True), VIT_B, 196_608 + 128 + 2 * 512, 131_712),  # Table 6
    (ProbSurgery, ProbSurgeryParams(hidden=128, bias=True), VIT_L, 294_912 + 128 + 2 * 768, 197_504),
    (SurgeryV2, SurgeryV2Params(rank=16), VIT_B, 2 * 16 * (12 * 768 + 512), None),
    (SurgeryV2, SurgeryV2Params(rank=4), VIT_L, 202_752, None),
    (IntervMerge, IntervMergeParams(rank=1), VIT_B, 12 * (2 * 768 + 2), None),
    (IntervMerge, IntervMergeParams(rank=1), VIT_L, 49_200, None),
    (IntervMerge, IntervMergeParams(rank=4), VIT_B, 590_592 // 8, None),
    (IntervMerge, IntervMergeParams(rank=1, blocks=(11,)), VIT_B, 12_304 // 8, None),
    (IntervMerge, IntervMergeParams(rank=1, function="loreft"), VIT_B, 12 * (2 * 768 + 1), None),
    (IntervMerge, mini("noreft", "start", 64), VIT_B, 1_560, None),
    (IntervMerge, mini("lobireft", "shifted", 64), VIT_B, 6_240 // 8, 6_144 // 8),
]


@pytest.mark.parametrize(("kind", "config", "sizes", "per_task", "inference"), COUNTS)
def test_parameter_counts(kind, config, sizes, per_task, inference):
    calibrator = kind()
    calibrator.reset(EIGHT, sizes, config)
    assert calibrator.parameter_count() == 8 * per_task
    assert calibrator.inference_parameter_count() == 8 * (inference or per_task)


@pytest.mark.parametrize(
    ("kind", "config", "count"),
    [
        (Surgery, SurgeryParams(rank=16, sharing="all"), 16_384),
        (ProbSurgery, ProbSurgeryParams(sharing="dfa"), 196_608),
        (ProbSurgery, ProbSurgeryParams(sharing="pda"), 196_608),
    ],
)
def test_a_shared_module_costs_the_same_for_any_number_of_tasks(kind, config, count):
    calibrator = kind()
    calibrator.reset(EIGHT, VIT_B, config)
    assert calibrator.parameter_count() == count


@pytest.mark.parametrize("name", LOSSES)
def test_distances_have_the_gradients_of_automatic_differentiation(name):
    difference = torch.linspace(-3, 3, 2 * 3 * 5, dtype=torch.float64).view(2, 3, 5).requires_grad_()
    want = torch.autograd.grad(distance(name, difference).sum(), difference)[0]
    value, gradient = distance_and_gradient(name, difference.detach())
    torch.testing.assert_close(gradient, want)
    torch.testing.assert_close(value, distance(name, difference.detach()))
    assert not distance_and_gradient(name, torch.zeros(1, 2, 3))[1].any()


def test_distances_equal_the_usual_losses():
    z = torch.randn(1, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2
    zero = torch.zeros_like(z)
    torch.testing.assert_close(distance("l1", z)[0], torch.nn.functional.l1_loss(z, zero))
    torch.testing.assert_close(distance("mse", z)[0], torch.nn.functional.mse_loss(z, zero))
    torch.testing.assert_close(distance("smooth_l1", z)[0], torch.nn.functional.smooth_l1_loss(z, zero))
    torch.testing.assert_close(distance("l2", z)[0], z[0].norm(dim=1).mean())
    with pytest.raises(CalibrationError, match="Did you mean 'smooth_l1'"):
        distance("smoothl1", z)


def features(sizes, dim=6, seed=0, shift=0.5):
    generator = torch.Generator().manual_seed(seed)
    merged = {task: torch.randn(n, dim, generator=generator, dtype=torch.float64) for task, n in sizes.items()}
    expert = {
        task: z - shift - 0.3 * torch.randn(z.shape, generator=generator, dtype=torch.float64)
        for task, z in merged.items()
    }
    return merged, expert


def oracle_loss(kind, module, z, target, noise, config):
    """The training loss written from the equations, for automatic differentiation."""
    if kind is Surgery:
        corrected = z - torch.relu(z @ module["down"].T) @ module["up"].T
        return distance(config.loss, corrected - target)
    narrow, mean, spread = (module.get(f"{name}_bias", 0.0) for name in ("narrow", "mean", "log_variance"))
    hidden = torch.relu(z @ module["narrow"].T + narrow)
    mu, log_variance = hidden @ module["mean"].T + mean, hidden @ module["log_variance"].T + spread
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(mu, (log_variance / 2).exp()), torch.distributions.Normal(0.0, 1.0)
    )
    corrected = z - mu - noise * (log_variance / 2).exp()
    return distance(config.loss, corrected - target) + config.kl_weight * kl.sum(1).mean()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (Surgery, SurgeryParams(rank=4)),
        (ProbSurgery, ProbSurgeryParams(hidden=4, kl_weight=0.01)),
        (ProbSurgery, ProbSurgeryParams(hidden=4, kl_weight=0.01, bias=True)),
    ],
)
def test_training_equals_a_separate_loop_for_every_task(kind, params, loss):
    config = params.model_copy(update={"steps": 25, "batch_size": 5, "loss": loss, "learning_rate": 0.01})
    merged, expert = features({"A": 11, "B": 8})
    calibrator = kind()
    calibrator.reset(("A", "B"), {"dim": 6}, config, seed=7, dtype=torch.float64)
    start = copy.deepcopy(dict(calibrator.named_parameters()))
    feed = FeatureBatches(calibrator, merged, expert, 5, 7, torch.float64)
    batches = [tuple(None if part is None else part.clone() for part in feed.next()) for _ in range(25)]
    report = calibrator.fit(merged, expert, config, 7, monitor_every=1)
    for row, task in enumerate(("A", "B")):
        module = {name: value[row].detach().clone().requires_grad_() for name, value in start.items()}
        adam = torch.optim.Adam(module.values(), lr=0.01)
        for step, (z, target, noise) in enumerate(batches):
            value = oracle_loss(kind, module, z[row], target[row], None if noise is None else noise[row, 0], config)
            assert report.curve[step][2 + row] == pytest.approx(value.item(), rel=1e-9)
            adam.zero_grad()
            value.backward()
            adam.step()
        for name, value in module.items():
            torch.testing.assert_close(getattr(calibrator, name)[row], value, rtol=1e-8, atol=1e-10)
        assert task in report.tasks


@pytest.mark.parametrize(
    ("kind", "params"), [(Surgery, SurgeryParams(rank=3)), (ProbSurgery, ProbSurgeryParams(hidden=4, kl_weight=0.01))]
)
def test_cached_features_train_as_encoding_every_batch_anew(kind, params):
    """The loop of the published programs: both encoders see every batch; no feature is kept."""
    config = params.model_copy(update={"steps": 15, "batch_size": 4, "learning_rate": 0.01})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        merged, expert = (VisionTransformer(8, 4, 16, 2, 2, 2.0, output_dim=6).double().eval() for _ in range(2))
    images = torch.randn(11, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cached = kind()
    with torch.no_grad():
        cached.fit({"A": merged(images)}, {"A": expert(images)}, config, 3)
    fresh = kind()
    fresh.reset(("A",), {"dim": 6}, config, 3, torch.float64)
    module = {name: value[0].detach().clone().requires_grad_() for name, value in fresh.named_parameters()}
    batches = EndlessBatches(11, 4, generator_for(3, "A", "batches"))
    noise = generator_for(3, "A", "noise")
    adam = torch.optim.Adam(module.values(), lr=0.01)
    for _ in range(config.steps):
        batch = images[batches.take(1)[0]]
        with torch.no_grad():
            z, target = merged(batch), expert(batch)
        draws = torch.empty(z.shape, dtype=z.dtype).normal_(generator=noise)
        adam.zero_grad()
        oracle_loss(kind, module, z, target, draws, config).backward()
        adam.step()
    for name, value in module.items():
        torch.testing.assert_close(getattr(cached, name)[0], value, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "params"), [(Surgery, SurgeryParams(rank=3)), (ProbSurgery, ProbSurgeryParams(hidden=4, kl_weight=0.01))]
)
def test_tasks_that_stand_for_another_train_as_it_does_alone(kind, params):
    """Start values, batches and noise are that task's; of as many rows or of others, of the same features or not."""
    config = params.model_copy(update={"steps": 15, "batch_size": 4, "learning_rate": 0.01})
    merged, expert = features({"C": 11, "D": 11, "E": 7})
    together = kind()
    drawn_as = {"C": "A", "D": "A", "E": "A"}
    together.fit(merged, expert, config, 3, drawn_as=drawn_as)
    for row, task in enumerate(merged):
        alone = kind()
        alone.fit({"A": merged[task]}, {"A": expert[task]}, config, 3)
        for name, value in alone.named_parameters():
            torch.testing.assert_close(getattr(together, name)[row], value[0], rtol=1e-9, atol=1e-12)


def spans(calibrator):
    """The least and the greatest start value of every tensor."""
    return {name: (value.min().item(), value.max().item()) for name, value in calibrator.named_parameters()}


@pytest.mark.parametrize(
    ("kind", "params", "bounds"),
    [
        (Surgery, SurgeryParams(rank=16), {"down": 512}),
        (ProbSurgery, ProbSurgeryParams(bias=True), {"narrow": 512, "narrow_bias": 512}),
        (SurgeryV2, SurgeryV2Params(rank=4), {"down": 768, "down_output": 512}),
        (SurgeryJoint, SurgeryJointParams(rank=16), {"down": 512}),
        (IntervMerge, IntervMergeParams(rank=4), dict.fromkeys(("source", "target"), 768)),
        (IntervMerge, mini("noreft", "start", 64), dict.fromkeys(("source", "target"), 64)),
        (IntervMerge, IntervMergeParams(rank=64, function="consreft"), {}),
        (IntervMerge, IntervMergeParams(rank=64, function="lobireft"), {}),
    ],
)
def test_start_values_fill_the_interval_of_their_width(kind, params, bounds):
    calibrator = kind()
    calibrator.reset(EIGHT, {**VIT_B, "blocks": 3}, params)
    found = spans(calibrator)
    for name, width in bounds.items():
        low, high = found.pop(name)
        assert -(width**-0.5) <= low < -0.9 * width**-0.5 < 0.9 * width**-0.5 < high <= width**-0.5
    if kind is not IntervMerge:
        assert set(found.values()) == {(0.0, 0.0)}
    elif params.function != "noreft":
        assert 0 <= found["bias"][0] < 0.1 < 0.9 < found["bias"][1] <= 1


def looped(losses, steps, every, monitor=None, spoilt_at=0):
    """A loop whose updates are counted in the parameters, lose what they are told, and may leave no number."""
    calibrator, given = Surgery(), iter(losses)
    stack = calibrator.reset(("A", "B"), {"dim": 2}, SurgeryParams(rank=1))
    stack.values.zero_()

    def update():
        stack.values.add_(1)
        if stack.values[0] == spoilt_at:
            stack.values[-1] = torch.nan
        return torch.tensor(next(given))

    return run_loop(calibrator, stack, steps, update, monitor, every), stack.values


def test_a_curve_has_the_means_of_its_intervals_and_a_last_no_cancels_nothing():
    losses = [(1.0, 5.0), (3.0, 7.0), (4.0, 0.0)]
    report, values = looped(losses, 3, 2, lambda step, loss, module: step < 3)
    assert report.curve == ((2, 4.0, 2.0, 6.0), (3, 2.0, 4.0, 0.0))
    assert (report.steps, report.cancelled, report.diverged_at) == (3, False, None)
    assert (values == 3).all()
    assert looped(losses, 3, 2, lambda step, loss, module: False)[0].cancelled


def test_values_that_are_no_numbers_are_taken_back_however_good_the_losses():
    report, values = looped([(1.0, 1.0)] * 6, 6, 2, spoilt_at=3)
    assert (report.steps, report.diverged_at, len(report.curve)) == (2, 4, 1), "the interval's last update is named"
    assert (values == 2).all()


def test_a_later_parameter_is_written_only_where_it_is_used():
    assert "bias" not in ProbSurgeryParams().model_dump(mode="json")
    assert ProbSurgeryParams(bias=True).model_dump(mode="json")["bias"] is True


def test_endless_batches_use_every_row_equally_often():
    batches = EndlessBatches(7, 3, torch.Generator().manual_seed(0))
    drawn = torch.cat([batches.take(5), batches.take(9)]).flatten()
    assert torch.bincount(drawn, minlength=7).tolist() == [6] * 7
    passes = drawn.view(6, 7)
    assert all(sorted(one.tolist()) == list(range(7)) for one in passes)
    assert len({tuple(one.tolist()) for one in passes}) > 1


def test_draws_depend_on_seed_task_and_purpose():
    def draw(*key):
        return torch.rand(3, generator=generator_for(*key)).tolist()

    assert draw(0, "A", "noise") == draw(0, "A", "noise")
    assert (
        len({tuple(draw(*key)) for key in [(0, "A", "noise"), (1, "A", "noise"), (0, "B", "noise"), (0, "A", "x")]})
        == 4
    )


def test_pairs():
    assert pairs_of(3, "all") == [(0, 1), (0, 2), (1, 2)]
    assert pairs_of(3, "cyclic") == [(0, 1), (1, 2), (2, 0)]
    assert pairs_of(3, "single") == [(0, 1)]


def test_the_energy_score_keeps_sigma_and_the_printed_form_loses_it():
    merged, expert = features({"A": 256}, dim=8)
    sigmas = {}
    for form in ("energy", "paper"):
        config = ProbSurgeryParams(
            hidden=32, steps=600, batch_size=64, learning_rate=0.01, sharing="pda", pda_form=form, loss="l1"
        )
        calibrator = ProbSurgery()
        calibrator.fit(merged, expert, config, 0)
        sigmas[form] = calibrator.sigma(merged["A"], "A").mean().item()
    assert 0.15 < sigmas["energy"] < 0.45  # the residual's standard deviation is 0.3
    assert sigmas["paper"] < 0.1 < sigmas["energy"]


def test_no_divergence_weight_with_pda_unless_given():
    assert ProbSurgeryParams().kl_weight == 1e-4
    assert ProbSurgeryParams(sharing="pda").kl_weight == 0
    assert ProbSurgeryParams(sharing="pda", kl_weight=1e-4).kl_weight == 1e-4


def test_single_precision_features_train_in_single_precision():
    merged, expert = features({"A": 16})
    calibrator = Surgery()
    half = {task: z.half() for task, z in merged.items()}
    calibrator.fit(half, expert, SurgeryParams(rank=2, steps=3), 0)
    assert calibrator.down.dtype == torch.float32
    assert calibrator.correct(half["A"], "A").dtype == torch.float32


def test_unusable_features_are_refused():
    merged, expert = features({"A": 20, "B": 20})
    config = SurgeryParams(rank=2, steps=2)
    with pytest.raises(CalibrationError, match="No task"):
        Surgery().fit({}, {}, config, 0)
    with pytest.raises(CalibrationError, match="B have only merged or only expert"):
        Surgery().fit(merged, {"A": expert["A"]}, config, 0)
    with pytest.raises(CalibrationError, match=r"widths 6 \(merged\) and 5"):
        Surgery().fit(merged, {**expert, "B": expert["B"][:, :5]}, config, 0)
    with pytest.raises(CalibrationError, match=r"shape \(n, dim\)"):
        Surgery().fit({**merged, "B": merged["B"][0]}, expert, config, 0)
    with pytest.raises(UnpairedFeatures, match="'A' has 20 merged and 19"):
        Surgery().fit(merged, {**expert, "A": expert["A"][1:]}, config, 0)
    with pytest.raises(CalibrationError, match="distinct tasks"):
        Surgery().reset(("A", "A"), {"dim": 3}, config)


def test_a_loss_that_overflows_is_reported_not_raised():
    merged, expert = features({"A": 20})
    huge = {task: z * 1e200 for task, z in merged.items()}
    calibrator, untrained = Surgery(), Surgery()
    config = SurgeryParams(rank=2, steps=50, loss="mse")
    report = calibrator.fit(huge, {task: z * 0 for task, z in expert.items()}, config, 0, monitor_every=5)
    assert report.diverged_at == 1
    assert report.steps == 0
    assert report.curve == ()
    assert report.curve == ()
    untrained.reset(("A",), {"dim": 6}, config, 0, torch.float64)
    for name, value in untrained.named_parameters():
        torch.testing.assert_close(getattr(calibrator, name), value, rtol=0, atol=0)
