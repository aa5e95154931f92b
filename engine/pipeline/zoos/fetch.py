"""The step that makes a described zoo: finds or downloads its files, and converts them. Asked for by a person."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from ...mounts import here, there
from ...recipe import Request
from ...store import Store
from ..graph import Plan
from ..steps import NoInputs, StepParams, step

if TYPE_CHECKING:
    from ..tools import StepTools

MAX_PLACES = 20


class FetchRequest(Request):
    """Request to make a described zoo: its name, and where its files are."""

    REFUSAL = "The zoo cannot be fetched"

    zoo: str = Field(min_length=1)
    places: tuple[str, ...] = Field((), max_length=MAX_PLACES)  # local folders to look in first
    download: bool = False  # agreed to
    images: bool = True


class FetchParams(StepParams):
    """Parameters of the fetch step."""

    zoo: str
    places: tuple[str, ...]
    download: bool
    images: bool
    asked: float  # seconds since the epoch


def plan_fetch(asked: FetchRequest, store: Store) -> Plan:
    """Plan a fetch. What it leaves lies in the cache and not in the store, so every asking is a step of its own."""
    node = fetch.plan(FetchParams(**asked.model_dump(), asked=time.time()), label=f"Fetching {asked.zoo}")
    return Plan((node,), node.key)


@step("fetch", label="Fetching a zoo", params=FetchParams)
def fetch(inputs: NoInputs[Path], params: FetchParams, output: Path, tools: StepTools) -> None:
    """Make the zoo; writes ``fetched.json`` with its folder."""
    from ...zoo.described.make import holding, make_zoo

    found = holding(params.zoo, [Path(place).expanduser() for place in here(params.places)])
    folder = ""
    if found is not None:
        found = found if params.images else found.without_images()
        folder = there(str(make_zoo(found, tools.progress, download=params.download)))
    (output / "fetched.json").write_text(json.dumps({"zoo": params.zoo, "folder": folder}), "utf-8")
