"""References of averaging and task arithmetic."""

from __future__ import annotations

from ..measure import Check
from .recipe import Recipe

CHECKS: dict[str, Check] = {
    "weight_average": Recipe("weight_average"),
    **{f"task_arithmetic_l{scaling}": Recipe("task_arithmetic", {"scaling": scaling}) for scaling in (0.3, 0.4, 1.0)},
    "task_negation_e0_l0.5": Recipe("task_arithmetic", {"scaling": 0.5}, experts=[0], weights=[-1.0]),
    "task_analogy_C+B-A_l0.4": Recipe("task_arithmetic", {"scaling": 0.4}, experts=[0, 1, 2], weights=[-1.0, 1.0, 1.0]),
}
