"""References of single steps of sharpness-aware minimisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...training.sharpness import perturbation
from ...zoo.encoders.training import Schedule
from ..measure import Check, Found
from ..reference import PremergingReference
from .small import small_trainer, stored_names, task_batch, without_key_bias


@dataclass(frozen=True)
class OneStep:
    """Takes one step from the second expert; compares losses and weights at the top of the climb and after it."""

    method: str
    params: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, reference: PremergingReference, name: str, precision: str) -> Found:
        """Climb, step, and compare."""
        stated = reference.entries[name]["params"]
        schedule = Schedule(10**9, stated["lr"], 0, stated.get("weight_decay", 0.0))  # the cosine has hardly begun
        trainer = small_trainer(reference, precision, self.method, self.params, "expert1", schedule)
        if stated["base"] == "SGD":
            trainer.optimizer = torch.optim.SGD(trainer.trained.values(), lr=stated["lr"])
        seen: list[dict[str, Tensor]] = []
        watched = trainer.model.register_forward_pre_hook(
            lambda *_: seen.append({key: p.detach().clone() for key, p in trainer.trained.items()})
        )
        images, labels = task_batch(reference, precision)
        trainer.advance(images, [labels])
        watched.remove()
        below, above = trainer.losses
        got = {"loss_at_theta": below, "loss_at_climbed": above} | stored_names(seen[1], "climbed.")
        got |= stored_names(trainer.trained, "after.")
        return without_key_bias(got, reference.output(name), precision)


def as_printed(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare the climb of Eq. (7) as printed, and the two norms."""
    trainer = small_trainer(reference, precision, "saft", {"length": "printed"}, "expert1")
    images, labels = task_batch(reference, precision)
    trainer.gradient(images, [labels])
    weights = {key: p.detach() for key, p in trainer.trained.items()}
    gradients = {key: p.grad for key, p in trainer.trained.items()}
    rho = reference.entries[name]["params"]["rho"]
    climb = perturbation(weights, gradients, rho, "printed")
    norms = {
        "norm_plain": torch.cat([g.flatten() for g in gradients.values()]).norm(),
        "norm_adaptive": torch.cat([(weights[key].abs() * g).flatten() for key, g in gradients.items()]).norm(),
    }
    return Found(norms | stored_names(climb, "epsilon."), reference.output(name))


CHECKS: dict[str, Check] = {
    "sam_step_sgd_rho0.05": OneStep("sam"),
    "sam_step_adamw_rho0.05": OneStep("sam"),
    "sam_samsung_step_sgd_rho0.05": OneStep("sam"),
    "asam_step_adamw_rho0.5": OneStep("saft"),
    "asam_samsung_step_sgd_rho0.5_eta0.01": OneStep("sam", {"rho": 0.5, "scale": "weights"}),
    "saft_eq7_as_printed": as_printed,
}
