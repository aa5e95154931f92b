"""Calibrators of the output with stored parameters, and their stored trainings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...analysis.accuracy import logits
from ...calibration.output import OutputCalibrator, update_rule
from ...calibration.stack import Stack
from ...catalog.calibrators import OutputParams
from ..measure import Found
from ..reference import CalibratorReference

Numbers = Mapping[str, Tensor]


def built(
    kind: type[OutputCalibrator], numbers: Numbers, names: Mapping[str, str], config: OutputParams
) -> tuple[OutputCalibrator, Stack]:
    """Return a calibrator for one task 'A' with a reference's parameters; ``names`` maps ours to the reference's."""
    calibrator = kind()
    first = numbers[next(iter(names.values()))]
    stack = calibrator.reset(("A",), {"dim": first.shape[-1]}, config, dtype=first.dtype)
    for mine, theirs in names.items():
        getattr(calibrator, mine).data[0].copy_(numbers[theirs])
    return calibrator, stack


def scores(features: Tensor, numbers: Numbers) -> Tensor:
    """Return the logits of features under a reference's head."""
    plain = logits(features.detach().numpy(), numbers["head_weight"].numpy(), 1.0)
    return torch.from_numpy(plain) + numbers["head_bias"]


def trained(
    kind: type[OutputCalibrator],
    names: Mapping[str, str],
    configs: Mapping[str, OutputParams],
    reference: CalibratorReference,
    name: str,
    precision: str,
) -> Found:
    """Train as a reference did, task after task, from its start values and its noise, under each reading of Adam."""
    numbers, tasks = reference.numbers(name, precision), tuple(reference.facts(name)["tasks"])
    got: dict[str, Any] = {}
    for semantics, config in configs.items():
        calibrator = kind()
        z, target = (torch.stack([numbers[f"z_{who}_{t}"] for t in tasks], 1) for who in ("merged", "expert"))
        stack = calibrator.reset(tasks, {"dim": z.shape[-1]}, config, dtype=z.dtype)
        suffixes = [""] if calibrator.shared else [f"_{task}" for task in tasks]
        first, theirs = next(iter(names.items()))
        for row, suffix in enumerate(suffixes):
            getattr(calibrator, first).data[row].copy_(numbers[f"init_{theirs}{suffix}"])
        noise = numbers.get("eps_per_step")
        noise = None if noise is None else noise.view(*z.shape[:2], 1, *noise.shape[1:])
        update = update_rule(calibrator, stack, config)
        found = [update(z[step], target[step], None if noise is None else noise[step]) for step in range(len(z))]
        got[f"{semantics}_l1_per_step"] = torch.cat(found)
        for row, suffix in enumerate(suffixes):
            got |= {
                f"{semantics}_final_{their}{suffix}": getattr(calibrator, mine)[row] for mine, their in names.items()
            }
    return Found(got, {key: numbers[key] for key in got})
