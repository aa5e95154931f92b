"""Estimates of a sweep from that of one of its runs and from what its runs share. Free of torch."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ...store import Store
from ...sweeps import SweepRequest
from ..rates import Rates, known_rates
from .estimate import MAX_WORKERS, Facts, estimate, gather


@dataclass(frozen=True)
class SweepEstimate:
    """Expected time of a sweep, right within a factor of two or so."""

    runs: int
    merges: int  # merged models that differ
    seconds: float
    disk_bytes: int
    basis: str  # what the numbers rest on


def estimate_sweep(request: SweepRequest, store: Store) -> SweepEstimate:
    """Estimate a sweep: what its runs share counts once, the rest is spread over the workers.

    Raises:
        EngineError: the sweep cannot be carried out, or the zoo cannot be used.
    """
    from ...zoo.folder import Zoo

    points = request.points()
    first = points[0].recipe
    rates, facts = known_rates(store), gather(Zoo.open(first.zoo), first)
    one = estimate(first, facts, rates)
    merges = {
        json.dumps(point.recipe.model_dump(mode="json", exclude={"calibrators"}), sort_keys=True) for point in points
    }
    again = (len(merges) - 1) * (one.parts.get("merge", 0.0) + one.parts.get("features", 0.0) * merged_share(facts))
    again += (len(points) - 1) * (one.parts.get("calibrate", 0.0) * _together(first.calibrators, rates))
    again += (len(points) - 1) * one.parts.get("bundle", 0.0)
    disk = one.disk_bytes + (len(merges) - 1) * facts.tower.bytes + (len(points) - 1) * (one.disk_bytes // 2)
    seconds = round(one.seconds + again / _workers(rates), 1)
    return SweepEstimate(len(points), len(merges), seconds, disk, one.basis)


def merged_share(facts: Facts) -> float:
    """Return the merged model's share of a run's encoding; base, references and experts are shared by all runs."""
    test, own = sum(facts.images.values()), sum(facts.images[task] for task in facts.in_domain)
    return test / max(test * (2 + facts.references) + own, 1)


def _together(calibrators: tuple[object, ...], rates: Rates) -> int:
    """Return the number of workers that a run's calibrators occupy at once; the estimate of one run counts on that."""
    return min(max(len(calibrators), 1), _workers(rates))


def _workers(rates: Rates) -> int:
    return max(min(MAX_WORKERS, rates.cores), 1)
