"""Time that a view will take, foreseen from its declared work and from what earlier ones took. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...catalog import resolve
from ...errors import EngineError
from ...recipe import Recipe
from ...store import Run, Store
from ...zoo.folder import Zoo
from ..rates import Rates, known_rates
from ..viewing.base import View, ViewRequest
from ..viewing.work import Sizes, Work
from .estimate import SVD, Facts, estimate, gather, merge_seconds
from .sweep import merged_share

START = 0.3  # seconds around every view
EACH = 0.05  # seconds around every model that is read
WORKED = 4.0  # times that every value of a model is read, changed and written
LOOKED_AT = 12  # earlier rows of the kind
LAST = 3  # of them count
NEARLY = (0.2, 20.0)  # what was measured may differ from the declared work by these factors


@dataclass(frozen=True)
class Foreseen:
    """Expected time of a view, right within a factor of two or so."""

    seconds: float
    basis: str  # what it rests on


def foresee(view: View, asked: ViewRequest, store: Store, *, finished: bool) -> Foreseen | None:
    """Return the time that a view takes.

    Args:
        view: as it is declared.
        asked: of it.
        store: keeps the rates of this machine and the rows of earlier views.
        finished: the run that it is a view on is in the store, so that merge and features need not be made first.

    Returns:
        None where the view declares no work.

    Raises:
        EngineError: the zoo cannot be used.
    """
    if view.work is None:
        return None
    rates = known_rates(store)
    facts = _facts(asked.recipe)
    own = work_seconds(view, asked, facts, rates)
    ratio = _measured(view, asked.recipe.zoo, facts, rates, store)
    basis = rates.basis if ratio is None else "what the last ones took here"
    before = 0.0 if finished or view.needs == "zoo" else _before(view, asked.recipe, facts, rates)
    return Foreseen(before + START + own * (ratio or 1.0), basis)


def _facts(recipe: Recipe) -> Facts:
    return gather(Zoo.open(recipe.zoo), recipe)


def work_seconds(view: View, asked: ViewRequest, facts: Facts, rates: Rates) -> float:
    """Return the seconds of a view's declared work."""
    tower = facts.tower
    sizes = Sizes(facts.experts, tower.dim, tower.inner.get("blocks", 0), facts.images, facts.in_domain)
    work: Work = view.work(asked, sizes)
    each = EACH + tower.bytes * (1 / rates.read + WORKED / rates.arithmetic)
    matrices = sum(SVD * m * n * min(m, n) for m, n in tower.matrices)
    seconds = work.seconds + work.models * each + work.decomposed * matrices / rates.matmul
    seconds += work.passes * tower.flops / rates.encode_rate(tower.name)
    if work.merges:
        seconds += work.merges * merge_seconds(resolve(asked.recipe), facts, rates)
    return seconds + _runs(work, asked.recipe, facts, rates)


def _runs(work: Work, recipe: Recipe, facts: Facts, rates: Rates) -> float:
    """Return the seconds of whole runs inside a view, side by side on the workers but for the merges' encoding."""
    if not work.runs:
        return 0.0
    other = recipe if work.recipe is None else work.recipe
    parts = estimate(resolve(other), _facts(other), rates).parts
    shared = parts.get("features", 0.0) * (1 - merged_share(facts))
    again = parts.get("merge", 0.0) + parts.get("features", 0.0) * merged_share(facts) + parts.get("calibrate", 0.0)
    return shared + parts.get("heads", 0.0) + work.runs * again


def _before(view: View, recipe: Recipe, facts: Facts, rates: Rates) -> float:
    """Return the seconds of what has to be there before the view: the merge, or the whole run."""
    made = estimate(resolve(recipe), facts, rates)
    return made.parts.get("merge", 0.0) if view.needs == "merge" else made.seconds


def _measured(view: View, zoo: str, facts: Facts, rates: Rates, store: Store) -> float | None:
    """Return how much longer than declared the view took lately on this zoo, at most; None where it was not asked for.

    Only views on runs that were there count: others made their run as well.
    """
    found: list[float] = []
    for row in store.runs.list(kinds=(view.name,), states=("finished",), limit=LOOKED_AT):
        if row.parent is None or row.request.get("recipe", {}).get("zoo") != zoo or len(found) == LAST:
            continue
        if (ratio := _ratio(view, row, facts, rates)) is not None:
            found.append(min(max(ratio, NEARLY[0]), NEARLY[1]))
    return max(found) if found else None


def _ratio(view: View, row: Run, facts: Facts, rates: Rates) -> float | None:
    try:
        asked = view.request.parse(row.request)
        recipe = asked.recipe
        same = replace(facts, experts=facts.everyone if recipe.experts == "all" else len(recipe.experts))
        declared = work_seconds(view, asked, same, rates)
    except EngineError:
        return None  # of an earlier version
    return (row.elapsed - START) / declared if declared > 0 and row.elapsed > START else None
