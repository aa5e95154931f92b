"""Imports as work for the engine: a look at the files first, then the conversion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...catalog.prompts import PROMPT_SETS
from ...mounts import here, there
from ...store import Store
from ...zoo.importing.request import REMOTE, parse_request
from ...zoo.importing.roots import inside_roots
from ..graph import Plan
from ..steps import NoInputs, StepParams, step
from .copy import FOLDER
from .stamps import Stamp, stamp_of_file, stamps_of_data, stamps_of_model

if TYPE_CHECKING:
    from ..tools import StepTools

SUMMARY = "summary.json"


class ImportParams(StepParams):
    """Parameters of an import, and of the look at its files."""

    request: dict[str, Any]  # what `engine.zoo.importing.request` reads
    files: dict[str, list[Stamp]]  # place → the states of its files


def plan_import(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan an import, or with ``check`` the look at its files.

    The key names the files by size and time, and the request itself by its ``token``: a zoo that was deleted since is
    written again.

    Raises:
        ZooError: the request is not valid, or names a path outside the configured roots and the store.
    """
    document = dict(request)
    check = bool(document.pop("check", False))
    parsed = parse_request(document)
    models = [parsed.base, *(item.path for item in (*parsed.experts, *parsed.heads))]
    given = [part for part in (parsed.architecture, parsed.preprocess) if isinstance(part, str)]
    settings = [part for part in given if part.endswith(".json")]
    if parsed.templates and parsed.templates not in PROMPT_SETS:
        settings.append(parsed.templates)
    data = [place for place in parsed.data.values() if not place.startswith(REMOTE)]
    stamps: dict[str, list[Stamp]] = {}
    for paths, look in ((models, stamps_of_model), (settings, stamp_of_file), (data, stamps_of_data)):
        for path in paths:
            stamps[path] = [*stamps.get(path, ()), *look(inside_roots(path, (store.root,)))]
    inside_roots(parsed.folder, (store.root / FOLDER,))
    params = ImportParams(request=parsed.model_dump(mode="json"), files=stamps)
    node = check_import.plan(params) if check else carry_out_import.plan(params, label=f"Importing {parsed.name}")
    return Plan((node,), node.key)


@step("import_check", label="Looking at the checkpoints", params=ImportParams, version=3)
def check_import(inputs: NoInputs[Path], params: ImportParams, output: Path, tools: StepTools) -> None:
    """Look at the files of an import and say what it would do."""
    from ...zoo.importing.survey import survey

    found = survey(parse_request(here(params.request)), tools.progress)
    _write(output, found.to_json())


@step("import", label="Importing", params=ImportParams)
def carry_out_import(inputs: NoInputs[Path], params: ImportParams, output: Path, tools: StepTools) -> None:
    """Write the zoo folder and remember it."""
    from ...zoo.importing.convert import import_zoo, read_record

    request = parse_request(here(params.request))
    made = read_record(request) if request.token else None
    summary = made or import_zoo(request, tools.progress)
    for warning in summary["warnings"]:
        tools.log(warning)
    tools.store.zoos.add(request.folder)
    _write(output, summary)


def read_summary(folder: Path) -> dict[str, Any]:
    """Read what an import or a look at its files found."""
    return json.loads((folder / SUMMARY).read_text("utf-8"))


def _write(output: Path, summary: Mapping[str, Any]) -> None:
    (output / SUMMARY).write_text(json.dumps(there(summary), ensure_ascii=False), "utf-8")
