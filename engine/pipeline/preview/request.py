"""Requests for previews, what they can show of a recipe, and how long they take. Free of torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pydantic import Field

from ...catalog import MERGE_METHODS, TRANSFORMS, looks_at_images, params_of, resolve
from ...recipe import Probe, Recipe, Request
from ...store import Store
from ...zoo.folder import Zoo
from ..preflight.estimate import gather, quick_estimate
from ..rates import known_rates
from ..viewing.base import read_document

KIND = "preview"  # of the rows in the run table
PER_TASK = 32  # images, at most
PATIENCE = 1.5  # seconds up to which a preview follows a change unasked


class PreviewRequest(Request):
    """Request for a preview: a merge on a sample of its images, beside another one on the same sample."""

    recipe: Recipe
    against: Recipe | None = None  # the merge that it is compared with
    images: int = Field(PER_TASK, ge=4, le=200, title="Images a task")

    @property
    def sampled(self) -> Recipe:
        """Return the recipe on as many images as are looked at."""
        return _on(self.recipe, self._probe)

    @property
    def sampled_against(self) -> Recipe | None:
        """Return what it is compared with, on the same images."""
        return None if self.against is None else _on(self.against, self._probe)

    @property
    def _probe(self) -> Probe:
        own = self.recipe.probe.samples_per_task
        few = self.images if own == "all" else min(own, self.images)
        return self.recipe.probe.model_copy(update={"samples_per_task": few})


def preview_request(recipe: Recipe, shown: Recipe | None) -> PreviewRequest:
    """Return the request for what a recipe's merge does, against that of the run shown where it is of the same zoo.

    Args:
        recipe: as it is set.
        shown: recipe of the run shown.
    """
    against = merge_of(shown) if shown is not None and shown.zoo == recipe.zoo else None
    return PreviewRequest(recipe=merge_of(recipe), against=against)


def merge_of(recipe: Recipe) -> Recipe:
    """Return what a recipe's merge and the choice of its images depend on: no calibrators, the first seed alone."""
    return resolve(recipe.model_copy(update={"calibrators": (), "seeds": recipe.seeds[:1]}))


def merges_alike(recipe: Recipe, shown: Recipe) -> bool:
    """Tell whether two recipes merge the same experts in the same way, and choose their images in the same way."""
    return merge_of(recipe) == merge_of(shown)


def trained_parts(recipe: Recipe) -> list[str]:
    """Return the titles of the parts of a recipe's merge that learn, which a preview does not wait for."""
    row = MERGE_METHODS[recipe.merge.method]
    return [row.title] if row.learns else []


def drawn_parts(recipe: Recipe) -> list[str]:
    """Return the titles of the parts of a recipe's merge that draw at random."""
    merge = MERGE_METHODS[recipe.merge.method]
    transforms = [TRANSFORMS[call.method] for call in recipe.transforms]
    return [row.title for row in (*transforms, merge) if row.stochastic]


def _by_chance(recipe: Recipe) -> str:
    """Return the titles of the parts of a recipe's merge that draw at random, training among them."""
    return ", ".join(dict.fromkeys((*drawn_parts(recipe), *trained_parts(recipe))))


def chance_in(recipe: Recipe, seed: int) -> str:
    """Return a sentence on what the merges of a film draw at random; '' where nothing is."""
    drawn = _by_chance(recipe)
    return (
        f"Drawn at random, with seed {seed} in every frame: {drawn}. Part of the movement is chance." if drawn else ""
    )


def chance_of(asked: PreviewRequest, *, compared: bool) -> str:
    """Return sentences on what the merges of a preview draw at random; '' where nothing is.

    Args:
        asked: for the preview.
        compared: with another merge; False where there is none or it was left out.
    """
    found = []
    for who, recipe in (("this merge", asked.recipe), ("that of the run shown", asked.against if compared else None)):
        if recipe is not None and (drawn := _by_chance(recipe)):
            found.append(f"{drawn} in {who}, with seed {recipe.seeds[0]}")
    if not found:
        return ""
    means = "Part of the difference is chance." if compared else "Another seed gives other numbers."
    return f"Drawn at random: {'; '.join(found)}. {means}"


def looked_at(asked: PreviewRequest, *, compared: bool = True) -> str:
    """Return a sentence on merges that are made from images, and from fewer than a run's; '' where none is.

    Args:
        asked: for the preview.
        compared: with another merge; False where that was left out.
    """
    few, found = asked.sampled.probe.samples_per_task, []
    for who, recipe in (("this merge", asked.recipe), ("that of the run shown", asked.against if compared else None)):
        own = recipe.probe.samples_per_task if recipe is not None and looks_at_images(recipe) else few
        if own != few:
            found.append(f"{who} from {'all images' if own == 'all' else f'{own:,} images a task'}")
    return f"Made here from at most {few} images a task; a run makes {', '.join(found)}." if found else ""


def rate_name(recipe: Recipe, zoo: Zoo) -> str:
    """Return a name of what the time of a preview depends on: sizes of the zoo, and how much of them is worked on.

    Args:
        recipe: on as many images as are looked at.
        zoo: of the recipe.

    Raises:
        EngineError: the zoo cannot be used.
    """
    sizes = hashlib.sha256(repr(gather(zoo, recipe)).encode()).hexdigest()[:12]
    rows = [(TRANSFORMS[call.method], call.params) for call in recipe.transforms]
    methods = []
    for row, given in (*rows, (MERGE_METHODS[recipe.merge.method], recipe.merge.params)):
        amounts = (row.cost.images, row.cost.merges, row.cost.products)
        counts = [f"{amount(params_of(row, given)):g}" for amount in amounts if amount]  # of images, merges, products
        methods.append("=".join([row.name, *counts]))
    experts = len(zoo.choose(recipe))
    return f"{sizes}-{experts}-{'+'.join(methods)}-{recipe.forward}-{recipe.probe.samples_per_task}"


def foreseen_seconds(asked: PreviewRequest, store: Store) -> float:
    """Return how long a preview takes once the zoo is in memory: as measured here, else by sizes and rates.

    Args:
        asked: for it.
        store: where the rates of this machine are kept.

    Raises:
        EngineError: the zoo cannot be used.
    """
    sampled = asked.sampled
    known = known_rates(store).preview.get(rate_name(sampled, Zoo.open(sampled.zoo)))
    if known is not None:
        return known
    parts = quick_estimate(sampled, store).parts
    return parts.get("merge", 0.0) + parts.get("features", 0.0) / 2  # the other half is of what stands still


def read_preview(folder: Path) -> dict[str, Any]:
    """Read what a preview left.

    Raises:
        StoreError: it is not there or damaged.
    """
    return read_document(folder, KIND)


def _on(recipe: Recipe, probe: Probe) -> Recipe:
    return recipe.model_copy(update={"probe": probe})
