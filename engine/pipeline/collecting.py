"""Garbage collection as work of the service: pages ask for a preview or for the collection itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from ..recipe import Request
from ..store import Store, collect
from ..store.artefacts import KEEP_DAYS
from .graph import Plan
from .steps import NoInputs, StepParams, step

if TYPE_CHECKING:
    from .tools import StepTools


class CollectRequest(Request):
    """Request for a clean-up of the store."""

    REFUSAL = "The collection cannot be used"

    asked: float  # seconds since the epoch: a collection depends on the moment
    days: float = Field(KEEP_DAYS, ge=0, le=3650)
    dry: bool = True


class CollectParams(StepParams):
    """Parameters of the collect step."""

    asked: float
    days: float
    dry: bool


def plan_collect(asked: CollectRequest, store: Store) -> Plan:
    """Plan a collection or its preview."""
    label = "Looking at what nobody refers to" if asked.dry else "Removing what nobody refers to"
    node = collected.plan(CollectParams(**asked.model_dump()), label=label)
    return Plan((node,), node.key)


@step("collect", label="Collecting", params=CollectParams)
def collected(inputs: NoInputs[Path], params: CollectParams, output: Path, tools: StepTools) -> None:
    """Collect, or only count; writes ``collected.json``."""
    found = collect(tools.store, days=params.days, dry=params.dry)
    tools.log(str(found))
    found.write(output)
