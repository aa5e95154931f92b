"""References of trainings: some steps of each recipe on given batches."""

from __future__ import annotations

from ..measure import Check
from .small import Training

CHECKS: dict[str, Check] = {
    "standard_finetune_8_steps": Training("standard", {}),
    "linear_finetune_8_steps": Training("linearised", {}),
    "saft_loop_clean": Training("saft", {}),
    "saft_loop_as_published": Training("saft", {"accumulate": True}),
    "adamw_loop_clean": Training("standard", {}),
    "adamw_loop_as_published": Training("standard", {"accumulate": True}),
    "attention_only_6_steps": Training("attention_only", {}),
}
