"""Estimates of a sweep from those of its runs and from what the runs share. Free of torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial

from ...catalog import CALIBRATORS, looks_at_images
from ...experiments.spec import merge_matters, seed_matters
from ...recipe import Recipe
from ...store import Store
from ...sweeps import SweepRequest
from ..rates import Rates, known_rates
from .estimate import MAX_WORKERS, Estimate, Facts, estimate, gather


@dataclass(frozen=True)
class SweepEstimate:
    """Expected time of a sweep, right within a factor of two or so."""

    runs: int
    merges: int  # merged models that differ
    seconds: float
    disk_bytes: int
    basis: str  # what the numbers rest on


def estimate_sweep(request: SweepRequest, store: Store) -> SweepEstimate:
    """Estimate a sweep: the largest run counts whole, of others what is new, spread over the workers.

    Raises:
        EngineError: the sweep cannot be carried out, or the zoo cannot be used.
    """
    from ...zoo.folder import Zoo

    points = request.points()
    rates = known_rates(store)
    zoos: dict[str, Zoo] = {}
    sizes: dict[str, Facts] = {}  # by what they are gathered from
    each = []
    for recipe in (point.recipe for point in points):
        place = recipe.model_dump_json(include={"zoo", "experts", "probe"})
        if recipe.zoo not in zoos:
            zoos[recipe.zoo] = Zoo.open(recipe.zoo)
        if place not in sizes:
            sizes[place] = gather(zoos[recipe.zoo], recipe)
        each.append((estimate(recipe, sizes[place], rates), recipe, sizes[place]))
    each.sort(key=lambda one: (-one[0].seconds, one[1].model_dump_json()))  # the largest counts whole, in any order
    done: set[str] = set()
    seconds, disk, merges = each[0][0].seconds, 0, 0
    for number, (whole, recipe, facts) in enumerate(each):
        fresh = fresh_shares(recipe, done, merged_share(facts))
        merges += "merge" in fresh
        left = estimate(recipe, facts, rates, dict.fromkeys(whole.parts, 0.0) | fresh)
        disk += left.disk_bytes
        if number:
            seconds += _work(left, recipe, rates) / _workers(rates)
    return SweepEstimate(len(points), merges, round(seconds, 1), disk, each[0][0].basis)


def _work(found: Estimate, recipe: Recipe, rates: Rates) -> float:
    """Return the seconds of all parts of a run, where one worker trains its calibrators one after another."""
    beside = _together(recipe.calibrators, rates) - 1
    return sum(found.parts.values()) + beside * found.parts.get("calibrate", 0.0)


def merged_share(facts: Facts) -> float:
    """Return the merged model's share of a run's encoding; base, references and experts are shared by all runs."""
    test, own = sum(facts.images.values()), sum(facts.images[task] for task in facts.in_domain)
    return test / max(test * (2 + facts.references) + own, 1)


def _together(calibrators: tuple[object, ...], rates: Rates) -> int:
    """Return the number of workers that a run's calibrators occupy at once; the estimate of one run counts on that."""
    return min(max(len(calibrators), 1), _workers(rates))


def _workers(rates: Rates) -> int:
    return max(min(MAX_WORKERS, rates.cores), 1)


def first_of(done: set[str], kind: str, *parts: object) -> bool:
    """Return whether nothing before was the same, and remember it."""
    key = json.dumps([kind, *parts], sort_keys=True, default=str)
    new = key not in done
    done.add(key)
    return new


def fresh_shares(recipe: Recipe, done: set[str], merged: float, *, tuned: bool = False) -> dict[str, float]:
    """Return the share of each kind of step that no recipe before had, and remember it.

    Args:
        recipe: resolved.
        done: what recipes before had; added to.
        merged: the merged model's share of a run's encoding.
        tuned: the merged model is measured on validation samples as well, of which there are at most as many.
    """
    once = partial(first_of, done)
    document = recipe.model_dump(mode="json")
    seeds, probe = document["seeds"], document["probe"]
    experts = [document["zoo"], document["experts"], recipe.forward]
    drawn = [seeds if merge_matters(recipe) else 0, probe if looks_at_images(recipe) else 0]
    made = [experts, document["merge"], document["transforms"], drawn]
    alike = {"name": ""}  # what a calibrator is called changes nothing
    calls = [
        once("calibrate", {**call, **alike}, made if call["on"] == "merged" else experts, probe, seeds)
        for call in document["calibrators"]
    ]
    others = once("other features", experts, probe)
    deep = [4.0 if CALIBRATORS[call["method"]].deep else 1.0 for call in document["calibrators"]]
    work = sum(weight for weight, new in zip(deep, calls, strict=True) if new)
    found = {
        "merge": float(once("merge", made)),
        "salience": float(once("salience", experts)),
        "heads": float(once("heads", document["zoo"])),
        "features": (1.0 if others else merged) * once("features", made, probe)
        + merged * (tuned and once("validation", made, probe)),
        "calibrate": work / sum(deep) if deep else 0.0,
    }
    whole = {name: share for name, share in found.items() if share}
    if once("bundle", document, seeds if seed_matters(recipe) else 0):
        whole["bundle"] = 1.0
    return whole
