"""Estimates of experiments from what their runs and the views on them share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import EngineError
from ...experiments import Experiment, Variant
from ...experiments.sizes import shape_of
from ...store import Store
from ...zoo.folder import Zoo
from ..preflight.estimate import Facts, estimate, gather
from ..preflight.sweep import first_of, fresh_shares, merged_share
from ..preflight.views import START, work_seconds
from ..rates import Rates, known_rates
from ..viewing.base import View, ViewRequest
from .experiment import asked_of, views_of


@dataclass(frozen=True)
class ExperimentEstimate:
    """Expected work of experiments, right within a factor of two or so; what the store has already is not taken off."""

    runs: int
    seconds: float
    peak_memory_bytes: int
    disk_bytes: int
    refused: tuple[str, ...]  # experiments of which the zoo allows no part
    basis: str


def estimate_experiments(specs: Sequence[Experiment], zoo: str, store: Store, *, quick: bool) -> ExperimentEstimate:
    """Estimate experiments together: merges, features, calibrators, views and measurements that are equal count once.

    Raises:
        EngineError: the zoo cannot be used.
    """
    opened, shape = Zoo.open(zoo), shape_of(zoo)
    counted = _Counted(opened, known_rates(store))
    refused = []
    for spec in specs:
        views, allowed = views_of(spec), 0
        for point in spec.points:
            if quick and not point.quick:
                continue
            try:
                variants = spec.variants(point, zoo, shape, quick=quick)
                for variant in variants:
                    opened.choose(variant.recipe)
                asked = [[(view, asked_of(view, variant, shape.sizes)) for view in views] for variant in variants]
            except EngineError:
                continue
            for variant, wanted in zip(variants, asked, strict=True):
                allowed += 1
                counted.add(variant, wanted)
        refused += [] if allowed else [spec.name]
    return ExperimentEstimate(
        counted.runs, round(counted.seconds, 1), counted.memory, counted.disk, tuple(refused), counted.basis
    )


@dataclass
class _Counted:
    """The sum of what runs take, in which a step that several need counts once."""

    zoo: Zoo
    rates: Rates
    facts: dict[str, Facts] = field(default_factory=dict)  # by experts and samples
    done: set[str] = field(default_factory=set)
    runs: int = 0
    seconds: float = 0.0
    memory: int = 0
    disk: int = 0
    basis: str = ""

    def add(self, variant: Variant, views: Sequence[tuple[View[Any], ViewRequest]]) -> None:
        """Count a run and the views on it, each with what it is asked."""
        recipe = variant.recipe
        place = json.dumps(recipe.model_dump(mode="json", include={"experts", "probe"}), sort_keys=True)
        if place not in self.facts:
            self.facts[place] = gather(self.zoo, recipe)
        facts = self.facts[place]
        found = estimate(recipe, facts, self.rates)
        self.memory, self.basis = max(self.memory, found.peak_memory_bytes), found.basis
        fresh = fresh_shares(recipe, self.done, merged_share(facts), tuned=bool(variant.point.tune))
        if "bundle" in fresh:
            self.runs += 1
            self.disk += found.disk_bytes
        self.seconds += sum(found.parts.get(name, 0.0) * share for name, share in fresh.items())
        for view, asked in views:
            if view.work and first_of(self.done, view.name, asked.model_dump(mode="json")):
                self.seconds += START + work_seconds(view, asked, facts, self.rates)
