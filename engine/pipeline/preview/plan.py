"""From the request for a preview to its one step; its key names what a run of the same merge would encode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...catalog import resolve
from ...errors import EngineError
from ...store import Store
from ...zoo.folder import Zoo
from ..graph import Plan
from ..run.plan import RunSteps
from ..viewing.by_task import need_heads
from .measure import PreviewInputs, PreviewParams, preview
from .models import side_of
from .request import PreviewRequest, chance_of, foreseen_seconds, looked_at, rate_name, trained_parts


def plan_preview(document: Mapping[str, Any], store: Store) -> Plan:
    """Plan a preview.

    Raises:
        EngineError: the merge cannot be carried out, or nothing can be scored.
    """
    asked = PreviewRequest.parse(document)
    recipe = resolve(asked.sampled)
    run = RunSteps(Zoo.open(recipe.zoo), recipe, store)
    need_heads(run)
    sides = {"merged": side_of(run, run.seed(recipe.seeds[0]))}
    uncompared = ""
    if asked.sampled_against is not None and (learned := trained_parts(asked.sampled_against)):
        uncompared = f"{' and '.join(learned)} learns from images, which is not done again for a preview."
    elif asked.sampled_against is not None:
        try:
            other = run.beside(resolve(asked.sampled_against))
            sides["against"] = side_of(other, other.seed(other.recipe.seeds[0]))
        except EngineError as error:  # such as one whose method or experts the zoo no longer has
            uncompared = str(error)
    params = PreviewParams(
        keys={name: side.keys for name, side in sides.items()},
        heads=run.digests.get("heads"),
        chance=chance_of(asked, compared="against" in sides),
        looked_at=looked_at(asked, compared="against" in sides),
        protocol=recipe.probe.protocol,
        split_seed=recipe.probe.split_seed,
        seed=recipe.seeds[0],
        uncompared=uncompared,
        sides=sides,
        rate=rate_name(recipe, run.zoo),
        foreseen=foreseen_seconds(asked, store),
        sources=run.sources,
    )
    return Plan.to(run.make(preview, params, PreviewInputs[str](run.heads())), run.steps)
