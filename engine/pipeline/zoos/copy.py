"""The step that copies a zoo of the app into the store, so that experts can be trained in it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from ...manifest import SAFE_NAME
from ...mounts import there
from ...recipe import Request
from ...store import Store
from ...zoo.folder import Zoo
from ...zoo.making.copy import check_copy
from ..graph import Plan
from ..sources import Sources
from ..steps import NoInputs, StepParams, apart, step

if TYPE_CHECKING:
    from ..tools import StepTools

FOLDER = "zoos"  # of the store


class CopyRequest(Request):
    """Request to copy a zoo."""

    REFUSAL = "The zoo cannot be copied"

    zoo: str = Field(min_length=1)
    name: str = Field(pattern=SAFE_NAME)


class CopyParams(StepParams):
    """Parameters of the copy."""

    name: str
    asked: float  # seconds since the epoch
    sources: Sources = apart()


def plan_copy(asked: CopyRequest, store: Store) -> Plan:
    """Plan a copy. What it leaves may be deleted, so every asking is a step of its own.

    Raises:
        ZooError: there is no such zoo, or a zoo of the new name.
    """
    zoo = Zoo.open(asked.zoo)
    check_copy(zoo, store.root / FOLDER / asked.name)
    params = CopyParams(name=asked.name, asked=time.time(), sources=Sources(zoo=str(zoo.folder)))
    node = copy.plan(params, label=f"Copying {zoo.manifest.name}")
    return Plan((node,), node.key)


@step("copy", label="Copying a zoo", params=CopyParams)
def copy(inputs: NoInputs[Path], params: CopyParams, output: Path, tools: StepTools) -> None:
    """Copy a zoo into the store's folder of zoos and remember it; writes ``copied.json`` with its folder."""
    from ...zoo.making.copy import copy_zoo

    folder = tools.store.root / FOLDER / params.name
    if not (folder / "zoo.yaml").is_file():  # else a worker was lost after its work was done
        copy_zoo(params.sources.open(), folder, tools.progress)
    tools.store.zoos.add(folder)
    (output / "copied.json").write_text(json.dumps({"folder": there(str(folder))}), "utf-8")
