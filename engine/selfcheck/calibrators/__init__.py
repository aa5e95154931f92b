"""Counterparts of each reference of the calibrators' folder; one module for each family."""

from ..measure import Check
from . import adamerging, head, interv_merge, prob_surgery, surgery, surgery_v2

FAMILIES = (surgery, prob_surgery, surgery_v2, interv_merge, adamerging, head)
CHECKS: dict[str, Check] = {name: check for family in FAMILIES for name, check in family.CHECKS.items()}
