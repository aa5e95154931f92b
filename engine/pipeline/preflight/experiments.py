"""Estimates of experiments from what their runs share. Free of torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ...catalog import CALIBRATORS
from ...errors import EngineError
from ...experiments import Experiment
from ...experiments.sizes import shape_of
from ...experiments.spec import merge_matters, seed_matters
from ...recipe import Recipe
from ...store import Store
from ..rates import known_rates
from .estimate import Facts, estimate, gather
from .sweep import merged_share


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
    """Estimate experiments together: merges, features, calibrators and measurements that are equal count once.

    Views on runs (stitched networks, shifted images) are not counted.

    Raises:
        EngineError: the zoo cannot be used.
    """
    from ...zoo.folder import Zoo

    opened, shape, rates = Zoo.open(zoo), shape_of(zoo), known_rates(store)
    facts: dict[str, Facts] = {}
    done: set[str] = set()
    refused, runs, seconds, memory, disk, basis = [], 0, 0.0, 0, 0, ""
    for spec in specs:
        allowed = 0
        for point in spec.points:
            if quick and not point.quick:
                continue
            try:
                variants = spec.variants(point, zoo, shape, quick=quick)
                for variant in variants:
                    opened.choose(variant.recipe)
            except EngineError:
                continue
            for variant in variants:
                allowed += 1
                recipe = variant.recipe
                place = json.dumps(recipe.model_dump(mode="json", include={"experts", "probe"}), sort_keys=True)
                if place not in facts:
                    facts[place] = gather(opened, recipe)
                found = estimate(recipe, facts[place], rates)
                memory, basis = max(memory, found.peak_memory_bytes), found.basis
                fresh = _fresh(recipe, done, merged_share(facts[place]))
                if "bundle" in fresh:
                    runs += 1
                    disk += found.disk_bytes
                seconds += sum(found.parts.get(name, 0.0) * share for name, share in fresh.items())
        refused += [] if allowed else [spec.name]
    return ExperimentEstimate(runs, round(seconds, 1), memory, disk, tuple(refused), basis)


def _fresh(recipe: Recipe, done: set[str], merged: float) -> dict[str, float]:
    """Return the share of each kind of step that no recipe before had, and remember it.

    Args:
        recipe: resolved.
        done: what recipes before had; added to.
        merged: the merged model's share of a run's encoding.
    """

    def once(kind: str, *parts: object) -> bool:
        key = json.dumps([kind, *parts], sort_keys=True, default=str)
        new = key not in done
        done.add(key)
        return new

    document = recipe.model_dump(mode="json")
    seed = recipe.seeds[0]
    made = [document["experts"], document["merge"], document["transforms"], seed if merge_matters(recipe) else 0]
    probe, alike = document["probe"], {"name": ""}  # what a calibrator is called changes nothing
    calls = [
        once("calibrate", {**call, **alike}, made if call["on"] == "merged" else document["experts"], probe, seed)
        for call in document["calibrators"]
    ]
    others = once("other features", document["experts"], probe)
    deep = [4.0 if CALIBRATORS[call["method"]].deep else 1.0 for call in document["calibrators"]]
    work = sum(weight for weight, new in zip(deep, calls, strict=True) if new)
    found = {
        "merge": float(once("merge", made)),
        "salience": float(once("salience", document["experts"])),
        "heads": float(once("heads")),
        "features": (1.0 if others else merged) if once("features", made, probe) else 0.0,
        "calibrate": work / sum(deep) if deep else 0.0,
    }
    whole = {name: share for name, share in found.items() if share}
    if once("bundle", document, seed if seed_matters(recipe) else 0):
        whole["bundle"] = 1.0
    return whole
