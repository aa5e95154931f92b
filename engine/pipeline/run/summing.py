"""Linearised merges as sums of their experts: every λ costs an addition once each expert has been encoded.

The features of a linearised model are linear in its weights, so those of θ_0 + Σ λ_k τ_k follow from the base's and
from each linearised expert's. Steps are planned so where that is less work: for several linear merges of the same
experts, as in sweeps, films and experiments, and wherever the experts' features are in the store already. The features
are the same ones up to rounding, so their key does not tell how they were come by.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .linearised import coefficients_of
from .plan import RunSteps


def sum_where_cheaper(runs: Iterable[RunSteps]) -> None:
    """Let runs add up their experts' features where they are at least as many merges as experts."""
    groups: dict[tuple[Any, ...], dict[tuple[float, ...], list[RunSteps]]] = {}
    for run in runs:
        coefficients = coefficients_of(run.recipe, run.experts)
        if coefficients is not None:
            group = (str(run.zoo.folder), run.recipe.probe, tuple(coefficients))
            groups.setdefault(group, {}).setdefault(tuple(coefficients.values()), []).append(run)
    for (*_, experts), merges in groups.items():
        for run in (run for same in merges.values() for run in same):
            run.summed = run.summed or len(merges) >= len(experts)
