"""References of Surgery."""

from __future__ import annotations

from functools import partial

from ...calibration import Surgery
from ...catalog.calibrators import SurgeryParams
from ..measure import Check, Found
from ..reference import CalibratorReference
from .stored import built, scores, trained

NAMES = {"down": "W_down", "up": "W_up"}


def forward(reference: CalibratorReference, name: str, precision: str) -> Found:
    """Return bias, corrected features, loss, gradients, logits."""
    numbers = reference.numbers(name, precision)
    calibrator, _ = built(Surgery, numbers, NAMES, SurgeryParams(rank=len(numbers["W_down"])))
    z, target = numbers["z_merged"], numbers["z_expert"]
    corrected = calibrator.correct(z, "A")
    got = {"bias": calibrator.bias(z, "A"), "corrected": corrected, "logits": scores(corrected, numbers)}
    got["logits_test_time"] = got["logits"]
    got["l1"] = calibrator.accumulate(z[None], target[None], None, slice(None))
    got |= {f"grad_{theirs}": getattr(calibrator, mine).grad[0] for mine, theirs in NAMES.items()}
    return Found(got, {key: numbers[key] for key in got})


def training(reference: CalibratorReference, name: str, precision: str, sharing: str) -> Found:
    """Return the weights and losses of a stored training."""
    rank = next(
        len(value) for key, value in reference.numbers(name, precision).items() if key.startswith("init_W_down")
    )
    configs = {
        semantics: SurgeryParams(rank=rank, sharing=sharing, adam_semantics=semantics)
        for semantics in ("indep", "shared")
    }
    return trained(Surgery, NAMES, configs, reference, name, precision)


CHECKS: dict[str, Check] = {
    "surgery_forward": forward,
    "surgery_forward_at_init": forward,
    "surgery_one2one_trajectory": partial(training, sharing="none"),
    "surgery_shared_module_trajectory": partial(training, sharing="all"),
}
