"""References of ProbSurgery."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from ...calibration import ProbSurgery
from ...calibration.scoring import distribution_score
from ...catalog.calibrators import ProbSurgeryParams
from ..measure import Check, Found
from ..reference import CalibratorReference
from .stored import Numbers, built, scores, trained

NAMES = {"narrow": "W_up", "mean": "W_mean", "log_variance": "W_logvar"}
LOSSES = {"l1": "l1", "mse": "mse", "smoothl1": "smooth_l1"}
PDA_LOSSES = {"l1mean": "l1", "l2norm": "l2"}
PDA_FORMS = {
    "paper_plus_allpairs": {"pda_form": "paper", "pda_pairs": "all"},
    "paper_plus_pair01": {"pda_form": "paper", "pda_pairs": "single"},
    "paper_plus_cyclic": {"pda_form": "paper", "pda_pairs": "cyclic"},
    "proper_energy": {"pda_form": "energy", "pda_pairs": "all"},
}


def loss_and_gradients(numbers: Numbers, **config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a stored module on stored features and noise; gradients by the reference's names."""
    calibrator, _ = built(ProbSurgery, numbers, NAMES, ProbSurgeryParams(hidden=len(numbers["W_up"]), **config))
    z, target, noise = (numbers[key][None] for key in ("z_merged", "z_expert", "eps"))
    value = calibrator.accumulate(z, target, noise if noise.dim() == 4 else noise[None], slice(None))
    return value, {theirs: getattr(calibrator, mine).grad[0].clone() for mine, theirs in NAMES.items()}


def forward(reference: CalibratorReference, name: str, precision: str) -> Found:
    """Return mean, deviation, corrected features, logits, three losses and the divergence, with all gradients."""
    numbers = reference.numbers(name, precision)
    calibrator, _ = built(ProbSurgery, numbers, NAMES, ProbSurgeryParams(hidden=len(numbers["W_up"])))
    z = numbers["z_merged"]
    mu, sigma, corrected = calibrator.bias(z, "A"), calibrator.sigma(z, "A"), calibrator.correct(z, "A")
    drawn = mu + numbers["eps"] * sigma
    sampled = z - drawn
    got: dict[str, Any] = {"mu": mu, "sigma": sigma, "logvar": 2 * sigma.log(), "xi": drawn}
    got |= {"corrected_mean": corrected, "corrected_sampled": sampled}
    got |= {"logits_mean_test_time": scores(corrected, numbers), "logits_sampled": scores(sampled, numbers)}
    weight = reference.facts(name)["kl_weight"]
    for prefix, loss in LOSSES.items():
        got[f"{prefix}_align"], plain = loss_and_gradients(numbers, loss=loss, kl_weight=0.0)
        got[f"{prefix}_total"], slopes = loss_and_gradients(numbers, loss=loss, kl_weight=weight)
        got |= {f"{prefix}_grad_{part}": slope for part, slope in slopes.items()}
        if prefix == "l1":
            whole, with_divergence = loss_and_gradients(numbers, loss=loss, kl_weight=1.0)
            got["kl"] = whole - got["l1_align"]
            got |= {f"kl_grad_{part}": with_divergence[part] - plain[part] for part in plain}
    return Found(got, {key: numbers[key] for key in got})


def scored(reference: CalibratorReference, name: str, precision: str) -> Found:
    """Return four readings of the score of a distribution under two distances, with all gradients."""
    numbers, facts = reference.numbers(name, precision), reference.facts(name)
    common = {"sharing": "pda", "pda_samples": facts["r"], "pda_kappa": facts["kappa"]}
    got: dict[str, Any] = {}
    for form, choice in PDA_FORMS.items():
        for prefix, loss in PDA_LOSSES.items():
            got[f"{prefix}_{form}_loss"], slopes = loss_and_gradients(numbers, loss=loss, **common, **choice)
            got |= {f"{prefix}_{form}_grad_{part}": slope for part, slope in slopes.items()}
    calibrator, _ = built(ProbSurgery, numbers, NAMES, ProbSurgeryParams(hidden=len(numbers["W_up"]), sharing="pda"))
    z = numbers["z_merged"]
    mu, log_variance = calibrator.bias(z, "A"), 2 * calibrator.sigma(z, "A").log()
    got["samples"] = mu + numbers["eps"] * calibrator.sigma(z, "A")
    for prefix in PDA_LOSSES:
        # κ m + (1 − κ) s and m − s / 2 give the two terms m and s.
        literal, energy = (got[f"{prefix}_{form}_loss"] for form in ("paper_plus_allpairs", "proper_energy"))
        spread = (literal - facts["kappa"] * energy) / (1 - facts["kappa"] / 2)
        got |= {f"{prefix}_pair_term_allpairs": spread, f"{prefix}_first_term": energy + spread / 2}
    arguments = (mu[None], log_variance[None], numbers["eps"][None], numbers["z_bias"][None])
    with_term, without = (
        distribution_score(*arguments, ProbSurgeryParams(sharing="pda", kl_weight=weight)) for weight in (1.0, 0.0)
    )
    got["kl"] = with_term - without
    return Found(got, {key: numbers[key] for key in got})


class Logged(ProbSurgery):
    """Gives the alignment alone as its loss, as the program logs it; gradients are those of the whole loss."""

    def accumulate(self, z: Tensor, target: Tensor, noise: Tensor, rows: slice) -> Tensor:
        """Return the alignment of every row, and gradients with the divergence."""
        whole = self.config
        self.config = whole.model_copy(update={"kl_weight": 0.0})
        alignment = super().accumulate(z, target, noise, rows)
        self.config = whole
        super().accumulate(z, target, noise, rows)
        return alignment


def training(reference: CalibratorReference, name: str, precision: str, sharing: str) -> Found:
    """Return the weights and losses of a stored training."""
    hidden = next(
        len(value) for key, value in reference.numbers(name, precision).items() if key.startswith("init_W_up")
    )
    configs = {
        semantics: ProbSurgeryParams(hidden=hidden, sharing=sharing, adam_semantics=semantics)
        for semantics in ("indep", "shared")
    }
    return trained(Logged, NAMES, configs, reference, name, precision)


CHECKS: dict[str, Check] = {
    "probsurgery_forward": forward,
    "probsurgery_forward_at_init": forward,
    "probsurgery_one2one_trajectory": partial(training, sharing="none"),
    "probsurgery_dfa_trajectory": partial(training, sharing="dfa"),
    "pda_loss": scored,
}
