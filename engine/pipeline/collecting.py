"""Garbage collection as work of the service: pages ask for a preview or for the collection itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ..recipe import Request
from ..store import Store, collect
from ..store.artefacts import KEEP_DAYS
from .steps import Plan, make_step

if TYPE_CHECKING:
    from .steps import StepTools

VERSION = 1


class CollectRequest(Request):
    """What a collection is asked for."""

    REFUSAL = "The collection cannot be used"

    asked: float  # seconds since the epoch: a collection depends on the moment
    days: float = Field(KEEP_DAYS, ge=0, le=3650)
    dry: bool = True


def plan_collect(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan a collection or its preview.

    Raises:
        RecipeError: what is wrong with the request.
    """
    asked = CollectRequest.parse(request)
    label = "Looking at what nobody refers to" if asked.dry else "Removing what nobody refers to"
    step = make_step("collect", params=asked.model_dump(mode="json"), label=label, version=VERSION)
    return Plan((step,), step.key, step.key)


def collect_step(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Collect, or only count; writes ``collected.json``."""
    asked = CollectRequest.parse(params)
    found = collect(tools.store, days=asked.days, dry=asked.dry)
    tools.log(str(found))
    found.write(output)
