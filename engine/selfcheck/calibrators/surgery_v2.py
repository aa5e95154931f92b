"""References of SurgeryV2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...calibration import SurgeryV2
from ...calibration.tower import Tower
from ...catalog.deep_calibrators import SurgeryV2Params
from ..measure import Check, Found
from ..reference import CalibratorReference
from .encoder import sizes, small_encoder


class Watched(Tower):
    """A tower that remembers the tokens that leave its blocks."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder)
        self.tokens: list[Tensor] = []

    def run(self, x: Tensor, first: int, stop: int) -> Tensor:
        """Return the tokens behind some blocks."""
        self.tokens.append(super().run(x, first, stop))
        return self.tokens[-1]


def inside(reference: CalibratorReference, name: str, precision: str) -> Found:
    """Return tokens, targets of every block, features, losses and gradients."""
    numbers, facts = reference.numbers(name, precision), reference.facts(name)
    blocks = range(facts["vit"]["blocks"])
    parts = (*blocks, "final")
    merged, expert = (small_encoder(numbers, facts, owner) for owner in ("merged", "expert"))
    got: dict[str, Any] = {}
    for loss, key in (("mse", "l2losses"), ("l1", "l1losses")):
        config = SurgeryV2Params(rank=len(numbers["W_down_0"]), loss=loss)
        calibrator = SurgeryV2()
        calibrator.reset(("A",), sizes(facts), config, dtype=numbers["images"].dtype)
        for block in blocks:
            calibrator.down.data[0, block] = numbers[f"W_down_{block}"]
            calibrator.up.data[0, block] = numbers[f"W_up_{block}"]
        calibrator.down_output.data[0] = numbers["W_down_final"]
        calibrator.up_output.data[0] = numbers["W_up_final"]
        teacher = calibrator.teach(expert, numbers["images"], config)
        tower = Watched(merged)
        prefix = calibrator.prefix(tower, numbers["images"])
        student = calibrator.student(tower, prefix, slice(None))
        losses = calibrator.losses(student, teacher[None])
        got[key] = losses
    losses.sum().backward()
    got["final_student"] = calibrator.correct_features(merged, numbers["images"], "A")
    got |= {f"tokens_before_surgery_{block}": tower.tokens[block] for block in blocks}
    got["final_teacher"] = teacher[:, -numbers["final_teacher"].shape[1] :]
    got |= {"teacher_target": teacher, "student_target": student[0]}
    for block in blocks:
        got |= {f"grad_W_{way}_{block}": getattr(calibrator, way).grad[0, block] for way in ("down", "up")}
    got |= {f"grad_W_{way}_final": getattr(calibrator, f"{way}_output").grad[0] for way in ("down", "up")}
    want = {key: numbers[key] for key in got if key in numbers}
    want |= {
        f"{who}_target": torch.cat([numbers[f"{who}_target_{part}"] for part in parts], 1)
        for who in ("teacher", "student")
    }
    return Found(got, want)


CHECKS: dict[str, Check] = {"surgeryv2_tiny_vit": inside, "surgeryv2_tiny_vit_at_init": inside}
