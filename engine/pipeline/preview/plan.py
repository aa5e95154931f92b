"""From the request for a preview to its one step; its key names what a run of the same merge would encode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...catalog import resolve
from ...errors import EngineError
from ...recipe import Recipe
from ...store import Store
from ...zoo.folder import Zoo
from ..graph import Plan
from ..run.plan import RunSteps
from ..viewing.by_task import need_heads
from ..views.film import chance_in
from .measure import PreviewInputs, PreviewParams, Side, preview
from .request import PreviewRequest, rate_name


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
    against = None if asked.sampled_against is None else _other(run, asked.sampled_against)
    if against is not None:
        sides["against"] = against
    params = PreviewParams(
        keys={name: side.keys for name, side in sides.items()},
        heads=run.digests.get("heads"),
        chance=chance_in(recipe, recipe.seeds[0]),
        protocol=recipe.probe.protocol,
        split_seed=recipe.probe.split_seed,
        seed=recipe.seeds[0],
        sides=sides,
        rate=rate_name(recipe, run.zoo.manifest.name),
        sources=run.sources,
    )
    return Plan.to(run.make(preview, params, PreviewInputs[str](run.heads())), run.steps)


def _other(run: RunSteps, recipe: Recipe) -> Side | None:
    """Return the side that is compared with, None where its merge is refused today."""
    try:
        return _side(RunSteps(run.zoo, resolve(recipe), run.store, run.steps))
    except EngineError:
        return None


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
