"""Costs of the recipes of fine-tuning, measured side by side."""

import statistics

from benchmarks.recipes import measure
from engine.catalog import FINE_TUNING


def test_every_recipe_is_measured_beside_the_standard_one():
    found = measure("mini8", 2, 2)
    assert set(found) == {name for name, row in FINE_TUNING.items() if not row.joint}
    assert all(len(seconds) == 2 for seconds in found.values())
    assert all(statistics.median(seconds) > 0 for seconds in found.values())
