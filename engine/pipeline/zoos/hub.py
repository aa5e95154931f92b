"""The step that takes files of a hub repository into a visitor's folder, for an import. Asked for by a person."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from ...mounts import there
from ...recipe import Request
from ...store import Store
from ...store.uploads import TRAY, Uploads
from ..graph import Plan
from ..steps import NoInputs, StepParams, step

if TYPE_CHECKING:
    from ..tools import StepTools


class HubRequest(Request):
    """Request for a repository's weights, or its data."""

    REFUSAL = "The repository cannot be fetched"

    repository: str = Field(min_length=3, max_length=300, pattern=r"^[\w.-]+/[\w.-]+(@[\w./-]+)?(:[\w./-]+)?$")
    data: bool = False
    tray: str = Field(pattern=f"^{TRAY.pattern}$")  # the visitor's folder


class HubParams(StepParams):
    """Parameters of the step."""

    repository: str
    data: bool
    tray: str
    asked: float  # seconds since the epoch: what it leaves lies outside the store's artefacts


def plan_hub(asked: HubRequest, store: Store) -> Plan:
    """Plan the download of one repository."""
    params = HubParams(**asked.model_dump(), asked=time.time())
    node = hub.plan(params, label=f"Fetching {asked.repository}")
    return Plan((node,), node.key)


@step("hub", label="Fetching a repository", params=HubParams)
def hub(inputs: NoInputs[Path], params: HubParams, output: Path, tools: StepTools) -> None:
    """Download a repository's weights with configs and tokenizer, or its data; writes ``hub.json`` with the folder."""
    from ...zoo.described.fetch import download, list_remote
    from ...zoo.described.sources import BESIDE, source_of
    from ...zoo.modalities import MODALITIES

    item = source_of("data" if params.data else "expert", "", f"hf:{params.repository}")
    every = dict.fromkeys(name for kind in MODALITIES.values() for name in kind.tokenizers)
    item = replace(item, beside=(*BESIDE, *every))
    listing = list_remote(item)
    files = download(listing, tools.progress)
    beside = [files[0].parent / name for name in item.beside if not params.data]
    beside = [path for path in beside if path.is_file()]
    folder = Uploads(tools.store.root).keep(params.tray, item.repository.replace("/", "--"), [*files, *beside])
    document = {"repository": item.repository, "revision": listing.revision, "folder": there(str(folder))}
    (output / "hub.json").write_text(json.dumps(document), "utf-8")
