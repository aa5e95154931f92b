"""From the request for a preview to its one step; its key names what a run of the same merge would encode."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from ...catalog import resolve
from ...errors import EngineError
from ...recipe import Recipe
from ...store import Store
from ...zoo.folder import Zoo
from ..graph import Plan
from ..run.findings import refuse
from ..run.plan import RunSteps
from ..viewing.by_task import need_heads
from ..views.film import chance_in
from .measure import PreviewInputs, PreviewParams, Side, preview
from .request import PreviewRequest, foreseen_seconds, rate_name, trained_parts


def plan_preview(document: Mapping[str, Any], store: Store) -> Plan:
    """Plan a preview.

    Raises:
        EngineError: the merge cannot be carried out, or nothing can be scored.
    """
    asked = PreviewRequest.parse(document)
    recipe = resolve(asked.sampled)
    run = RunSteps(Zoo.open(recipe.zoo), recipe, store)
    need_heads(run)
    sides = {"merged": _side(run)}
    uncompared = ""
    if asked.sampled_against is not None and (learned := trained_parts(asked.sampled_against)):
        uncompared = f"{' and '.join(learned)} learns from images, which is not done again for a preview."
    elif asked.sampled_against is not None:
        try:
            sides["against"] = _side(_beside(run, resolve(asked.sampled_against)))
        except EngineError as error:  # such as one whose method or experts the zoo no longer has
            uncompared = str(error)
    params = PreviewParams(
        keys={name: side.keys for name, side in sides.items()},
        heads=run.digests.get("heads"),
        chance=chance_in(recipe, recipe.seeds[0]),
        protocol=recipe.probe.protocol,
        split_seed=recipe.probe.split_seed,
        seed=recipe.seeds[0],
        uncompared=uncompared,
        sides=sides,
        rate=rate_name(recipe, run.zoo.manifest.name),
        foreseen=foreseen_seconds(asked, run.zoo.manifest.name, store),
        sources=run.sources,
    )
    return Plan.to(run.make(preview, params, PreviewInputs[str](run.heads())), run.steps)


def _beside(run: RunSteps, recipe: Recipe) -> RunSteps:
    """Return the steps of another recipe for the same zoo; files that both read are looked at once.

    Raises:
        EngineError: its merge is refused.
    """
    if recipe.experts != run.recipe.experts:
        return RunSteps(run.zoo, recipe, run.store, run.steps)
    refuse(recipe, run.zoo)
    other = copy(run)
    other.recipe = recipe
    return other


def _side(run: RunSteps) -> Side:
    """Return a merge and what is encoded with it, as the steps of its run would."""
    made = run.seed(run.recipe.seeds[0])
    encoded = {
        state: {task: run.steps[key].params for task, key in tasks.items()}
        for state, tasks in made.features.items()
        if state in ("pretrained", "merged")
    }
    return Side(
        keys={state: dict(made.features[state]) for state in encoded},
        merge=run.steps[made.merge].params,
        encoded=encoded,
    )
