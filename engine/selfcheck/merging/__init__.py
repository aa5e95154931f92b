"""The engine's merge for each reference of the merging folder; one module for each family."""

from ..measure import Check
from . import basic, low_rank, optimisation, routing, sparse, transforms, weighted

FAMILIES = (basic, weighted, sparse, low_rank, optimisation, routing, transforms)
CHECKS: dict[str, Check] = {name: check for family in FAMILIES for name, check in family.CHECKS.items()}
