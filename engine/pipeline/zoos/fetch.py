"""The step that makes a described zoo: finds or downloads its files, and converts them. Asked for by a person."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ZooError
from ...store import Store
from ..steps import Plan, make_step

if TYPE_CHECKING:
    from ..steps import StepTools

MAX_PLACES = 20


def plan_fetch(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan a fetch: ``zoo``, ``places`` (local folders), ``download`` (agreed to), ``images``.

    What it leaves lies in the cache and not in the store, so that every asking is a step of its own.

    Raises:
        ZooError: no zoo is named.
    """
    zoo, places = str(request.get("zoo", "")), [str(place) for place in request.get("places", ())][:MAX_PLACES]
    if not zoo:
        raise ZooError("Name the zoo whose files are to be fetched.")
    params = {"zoo": zoo, "places": places, "download": request.get("download") is True}
    params |= {"images": request.get("images") is not False, "asked": time.time()}
    step = make_step("fetch", params=params, label=f"Fetching {zoo}")
    return Plan(steps=(step,), result=step.key, identity=step.key)


def fetch(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Make the zoo; writes ``fetched.json`` with its folder."""
    from ...zoo.described.make import holding, make_zoo

    found = holding(params["zoo"], [Path(place).expanduser() for place in params["places"]])
    folder = ""
    if found is not None:
        found = found if params["images"] else found.without_images()
        folder = str(make_zoo(found, tools.progress, download=params["download"]))
    (output / "fetched.json").write_text(json.dumps({"zoo": params["zoo"], "folder": folder}), "utf-8")
