"""Calibrators of the output against the published programs' numbers (tests/reference/calibrators/README.md)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.calibration import ProbSurgery, Surgery
from engine.calibration.output import update_rule
from engine.calibration.scoring import distribution_score
from engine.catalog.calibrators import ProbSurgeryParams, SurgeryParams

REFERENCE = Path(__file__).parents[1] / "reference" / "calibrators"
EXACT = {"rtol": 1e-9, "atol": 1e-12}
TRAJECTORY = {"rtol": 1e-8, "atol": 1e-10}
TASKS = ("A", "B", "C")
PROB_NAMES = {"narrow": "W_up", "mean": "W_mean", "log_variance": "W_logvar"}
SURGERY_NAMES = {"down": "W_down", "up": "W_up"}


def reference(name):
    return load_file(REFERENCE / f"{name}.safetensors")


def built(kind, numbers, names, config, tasks=("A",)):
    """A calibrator whose parameters are those of a reference file, and its stack."""
    calibrator = kind()
    dim = numbers[names[next(iter(names))]].shape[-1]
    stack = calibrator.reset(tasks, {"dim": dim}, config, dtype=torch.float64)
    for mine, theirs in names.items():
        getattr(calibrator, mine).data[0].copy_(numbers[theirs])
    return calibrator, stack


@pytest.mark.parametrize("name", ["surgery_forward", "surgery_forward_at_init"])
def test_surgery_matches_values_and_gradients(name):
    numbers = reference(name)
    calibrator, _ = built(Surgery, numbers, SURGERY_NAMES, SurgeryParams(rank=4))
    z, target = numbers["z_merged"], numbers["z_expert"]
    torch.testing.assert_close(calibrator.bias(z, "A"), numbers["bias"], **EXACT)
    torch.testing.assert_close(calibrator.correct(z, "A"), numbers["corrected"], **EXACT)
    loss = calibrator.accumulate(z[None], target[None], None, slice(None))
    torch.testing.assert_close(loss, numbers["l1"], **EXACT)
    torch.testing.assert_close(calibrator.down.grad[0], numbers["grad_W_down"], **EXACT)
    torch.testing.assert_close(calibrator.up.grad[0], numbers["grad_W_up"], **EXACT)


@pytest.mark.parametrize("name", ["probsurgery_forward", "probsurgery_forward_at_init"])
def test_prob_surgery_matches_mean_and_sigma(name):
    numbers = reference(name)
    calibrator, _ = built(ProbSurgery, numbers, PROB_NAMES, ProbSurgeryParams(hidden=5))
    z = numbers["z_merged"]
    torch.testing.assert_close(calibrator.bias(z, "A"), numbers["mu"], **EXACT)
    torch.testing.assert_close(calibrator.sigma(z, "A"), numbers["sigma"], **EXACT)
    torch.testing.assert_close(calibrator.correct(z, "A"), numbers["corrected_mean"], **EXACT)


@pytest.mark.parametrize("name", ["probsurgery_forward", "probsurgery_forward_at_init"])
@pytest.mark.parametrize(("loss", "prefix"), [("l1", "l1"), ("mse", "mse"), ("smooth_l1", "smoothl1")])
def test_prob_surgery_matches_losses_and_gradients(name, loss, prefix):
    numbers = reference(name)
    config = ProbSurgeryParams(hidden=5, loss=loss, kl_weight=1e-4)
    calibrator, _ = built(ProbSurgery, numbers, PROB_NAMES, config)
    z, target, noise = (numbers[key][None] for key in ("z_merged", "z_expert", "eps"))
    value = calibrator.accumulate(z, target, noise[None], slice(None))
    torch.testing.assert_close(value, numbers[f"{prefix}_total"], **EXACT)
    for mine, theirs in PROB_NAMES.items():
        torch.testing.assert_close(getattr(calibrator, mine).grad[0], numbers[f"{prefix}_grad_{theirs}"], **EXACT)


@pytest.mark.parametrize("name", ["probsurgery_forward", "probsurgery_forward_at_init"])
def test_divergence_from_a_standard_normal_matches(name):
    numbers = reference(name)
    z, target, noise = (numbers[key][None] for key in ("z_merged", "z_expert", "eps"))
    gradients = []
    for weight in (0.0, 1.0):
        config = ProbSurgeryParams(hidden=5, kl_weight=weight)
        calibrator, stack = built(ProbSurgery, numbers, PROB_NAMES, config)
        value = calibrator.accumulate(z, target, noise[None], slice(None))
        gradients.append((value, stack.gradients.clone()))
    torch.testing.assert_close(gradients[1][0] - gradients[0][0], numbers["kl"], **EXACT)
    theirs = torch.cat([numbers[f"kl_grad_{name}"].flatten() for name in PROB_NAMES.values()])
    torch.testing.assert_close(gradients[1][1] - gradients[0][1], theirs, rtol=1e-9, atol=1e-11)


def trajectory(kind, names, name, config, semantics):
    """Train as a reference did: 18 steps, task after task, from its start values and its noise."""
    numbers = reference(name)
    calibrator = kind()
    dim = numbers["z_merged_A"].shape[-1]
    stack = calibrator.reset(TASKS, {"dim": dim}, config, dtype=torch.float64)
    first = next(iter(names))
    for row, task in enumerate(("",) if calibrator.shared else TASKS):
        suffix = f"_{task}" if task else ""
        getattr(calibrator, first).data[row].copy_(numbers[f"init_{names[first]}{suffix}"])
    update = update_rule(calibrator, stack, config)
    losses = []
    for step in range(6):
        z = torch.stack([numbers[f"z_merged_{task}"][step] for task in TASKS])
        target = torch.stack([numbers[f"z_expert_{task}"][step] for task in TASKS])
        noise = numbers["eps_per_step"][3 * step : 3 * step + 3][:, None] if "eps_per_step" in numbers else None
        losses.append(update(z, target, noise))
    for row, task in enumerate(("",) if calibrator.shared else TASKS):
        suffix = f"_{task}" if task else ""
        for mine, theirs in names.items():
            want = numbers[f"{semantics}_final_{theirs}{suffix}"]
            torch.testing.assert_close(getattr(calibrator, mine)[row].detach(), want, **TRAJECTORY)
    return torch.cat(losses), numbers[f"{semantics}_l1_per_step"]


@pytest.mark.parametrize("semantics", ["indep", "shared"])
@pytest.mark.parametrize(
    ("name", "sharing"), [("surgery_one2one_trajectory", "none"), ("surgery_shared_module_trajectory", "all")]
)
def test_surgery_trajectory_matches(name, sharing, semantics):
    config = SurgeryParams(rank=4, sharing=sharing, adam_semantics=semantics)
    mine, theirs = trajectory(Surgery, SURGERY_NAMES, name, config, semantics)
    torch.testing.assert_close(mine, theirs, **TRAJECTORY)


@pytest.mark.parametrize("semantics", ["indep", "shared"])
@pytest.mark.parametrize(
    ("name", "sharing"), [("probsurgery_one2one_trajectory", "none"), ("probsurgery_dfa_trajectory", "dfa")]
)
def test_prob_surgery_trajectory_matches(name, sharing, semantics):
    config = ProbSurgeryParams(hidden=5, sharing=sharing, adam_semantics=semantics)
    mine, theirs = trajectory(ProbSurgery, PROB_NAMES, name, config, semantics)
    excess = mine - theirs  # the reference logs the alignment alone, without 1e-4 times the divergence
    assert (excess >= -1e-9).all()
    assert (excess < 1e-5).all()


PDA_FORMS = {
    "paper_plus_allpairs": {"pda_form": "paper", "pda_pairs": "all"},
    "paper_plus_pair01": {"pda_form": "paper", "pda_pairs": "single"},
    "paper_plus_cyclic": {"pda_form": "paper", "pda_pairs": "cyclic"},
    "proper_energy": {"pda_form": "energy", "pda_pairs": "all"},
}


@pytest.mark.parametrize("form", PDA_FORMS)
@pytest.mark.parametrize(("loss", "prefix"), [("l1", "l1mean"), ("l2", "l2norm")])
def test_pda_scores_and_gradients_match(form, loss, prefix):
    numbers = reference("pda_loss")
    config = ProbSurgeryParams(hidden=5, sharing="pda", loss=loss, pda_samples=5, pda_kappa=0.5, **PDA_FORMS[form])
    assert config.kl_weight == 0
    calibrator, _ = built(ProbSurgery, numbers, PROB_NAMES, config)
    z, target, noise = (numbers[key][None] for key in ("z_merged", "z_expert", "eps"))
    value = calibrator.accumulate(z, target, noise, slice(None))
    torch.testing.assert_close(value, numbers[f"{prefix}_{form}_loss"], **EXACT)
    for mine, theirs in PROB_NAMES.items():
        want = numbers[f"{prefix}_{form}_grad_{theirs}"]
        torch.testing.assert_close(getattr(calibrator, mine).grad[0], want, **EXACT)


def test_pda_divergence_term_matches():
    numbers = reference("pda_loss")
    calibrator, _ = built(ProbSurgery, numbers, PROB_NAMES, ProbSurgeryParams(hidden=5, sharing="pda"))
    z = numbers["z_merged"]
    mu, log_variance = calibrator.bias(z, "A"), 2 * calibrator.sigma(z, "A").log()
    arguments = (mu[None], log_variance[None], numbers["eps"][None], numbers["z_bias"][None])
    with_term = distribution_score(*arguments, ProbSurgeryParams(sharing="pda", kl_weight=1.0))
    without = distribution_score(*arguments, ProbSurgeryParams(sharing="pda"))
    torch.testing.assert_close(with_term - without, numbers["kl"], **EXACT)


def test_every_reference_says_where_it_comes_from():
    for path in REFERENCE.glob("*.safetensors"):
        assert json.loads(path.with_suffix(".json").read_text())["source"]
