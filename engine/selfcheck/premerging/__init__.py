"""Counterparts of each reference of the premerging folder; one module for each family."""

from ..measure import Check
from . import alignment, disentanglement, linearised, low_rank, merges, recipes, sharpness, transformer_alignment

FAMILIES = (
    linearised,
    recipes,
    sharpness,
    low_rank,
    merges,
    disentanglement,
    alignment,
    transformer_alignment,
)
CHECKS: dict[str, Check] = {name: check for family in FAMILIES for name, check in family.CHECKS.items()}
