"""A first zoo.yaml for a folder of files, to be completed by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ...catalog.datasets import recognise_dataset
from ...errors import DataError, ZooError
from ...manifest import Manifest, Task
from ...recipe import explain
from ...store.outputs import new_file
from ...types import Progress
from ...weights import encoder_part, open_weights
from ..images.brought import known_classes, open_brought
from ..images.data import read_source
from ..images.readers.installed import DEFAULT_ROOT
from ..making.prompts import asked_prompts
from .documents import read_json
from .found import Survey
from .request import parse_request
from .stated import filled
from .survey import recognised
from .tasks import FoundTask

WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
DATA = (".npz", ".parquet", ".csv", ".tsv", ".zip")
CONFIG = "config.json"
UNIT = 1e-2  # by which norms of rows may differ from 1
HEADER = """\
# Written from the files found here. `origins` says how each fact about the backbone is known. Check above all the class
# names, which are in head order, and which tasks are out of domain.
"""


def draft_manifest(folder: Path, given: Mapping[str, Any] | None = None, progress: Progress = lambda *_: None) -> Path:
    """Write ``zoo.yaml`` from what lies in a folder.

    The backbone's facts are read, given, decided by heads and images, or refused, as an import does it.

    Args:
        folder: holds ``base.*`` (or ``zeroshot.*``), ``experts/NAME.*``, and where there are some ``data/NAME`` (an
            .npz file, a folder or .zip of class folders, parquet, a .csv), ``heads.*`` and ``config.json``.
        given: a person's word, as an import request has it: architecture, head_width, quick_gelu, preprocess,
            templates.
        progress: told how far it is.

    Returns:
        The manifest's path.

    Raises:
        EngineError: there is a manifest already, no base or no expert is found, files are in another form than a zoo
            keeps them, data cannot be read, or a fact cannot be known.
    """
    path = folder / "zoo.yaml"
    if path.exists():
        raise ZooError(f"{path} exists already; nothing was written.")
    base = _first(folder, "base") or _first(folder, "zeroshot")
    experts = sorted(file for file in (folder / "experts").glob("*") if file.suffix in WEIGHTS)
    if base is None or not experts:
        missing = "no base (base.safetensors)" if base is None else "no experts (experts/NAME.safetensors)"
        raise ZooError(f"{folder} holds {missing}. Put the base and the experts there, then call `zoo init` again.")
    for file in (base, *experts):
        encoder_part(open_weights(file))
    tasks = _tasks(folder, [expert.stem for expert in experts], str((given or {}).get("templates", "")))
    found = _recognised(folder, base, experts, tasks, given or {}, progress)
    document = _document(folder, base, experts, tasks, found)
    try:
        Manifest.model_validate(document)
    except ValueError as error:
        raise ZooError(f"No zoo.yaml can be written from these files: {explain(error, Manifest)}") from error
    config = folder / document["backbone"]["architecture"]
    if config.suffix == ".json" and not config.exists() and found.architecture is not None:
        with new_file(config) as file:
            file.write_text(json.dumps(found.architecture.config, indent=1), "utf-8")
    with new_file(path) as file:
        file.write_text(HEADER + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110), "utf-8")
    return path


def _tasks(folder: Path, names: list[str], templates: str) -> list[FoundTask]:
    """Return tasks with images, then those of experts without."""
    data = {path.stem if path.is_file() else path.name: path for path in _data_of(folder)}
    asked = asked_prompts(templates)
    found = []
    for name, path in data.items():
        entry = {"name": name, "domain": "in" if name in names else "out", **describe(path, name)}
        found.append(FoundTask(name, name in names, entry, open_brought(path, name)))
    for name in names:
        if name not in data:
            row = recognise_dataset(name)
            classes = {"dataset": row.name} if row else {"classes": []}
            found.append(FoundTask(name, True, {"name": name, "domain": "in", **classes}))
    asked.check(task.name for task in found)
    for task in found:
        task.entry = asked.put_into(task.entry)
        try:
            Task.model_validate(task.entry)
        except ValueError as error:
            raise ZooError(f"No zoo.yaml can be written from these files: {explain(error, Task)}") from error
    return found


def _recognised(
    folder: Path, base: Path, experts: list[Path], tasks: list[FoundTask], given: Mapping[str, Any], progress: Progress
) -> Survey:
    """Return the files as an import recognises them.

    Raises:
        ZooError: everything that is wrong, and facts that cannot be known.
    """
    heads = _first(folder, "heads")
    request = {
        "base": str(base),
        "experts": [{"name": file.stem, "task": file.stem, "path": str(file)} for file in experts],
        "heads": [{"path": str(heads)}] if heads else [],
        "data": {task.name: str(task.images.path) for task in tasks if task.images},
        "name": "drafted",
        "out": str(folder),
        **given,
    }
    found = recognised(parse_request(request), progress, tasks)
    if found.faults:
        raise ZooError("\n".join(fault.text for fault in found.faults))
    return found


def _document(folder: Path, base: Path, experts: list[Path], tasks: list[FoundTask], found: Survey) -> dict[str, Any]:
    architecture = found.architecture
    if architecture is None or architecture.preprocess is None:
        raise ZooError("The base was not recognised.")
    document: dict[str, Any] = {
        "format": 1,
        "name": folder.resolve().name,
        "title": "",
        "backbone": {
            "architecture": architecture.name or _config_file(folder, architecture.config).name,
            "weights": base.name,
            "quick_gelu": bool(architecture.config["quick_gelu"]),
            "preprocess": architecture.preprocess.model_dump(mode="json"),
            "origins": {fact.name: f"{fact.value} ({fact.origin})" for fact in found.known},
        },
        "experts": [{"name": file.stem, "task": file.stem, "weights": f"experts/{file.name}"} for file in experts],
        "tasks": [
            {**task.entry, **({"data": f"data/{task.images.path.name}"} if task.images else {})} for task in tasks
        ],
    }
    if heads := _first(folder, "heads"):
        _check_heads(heads, found)
        document["heads"] = heads.name
    return document


def _check_heads(path: Path, found: Survey) -> None:
    """Refuse heads that an import would convert: a zoo reads unit rows under the task's name.

    Raises:
        EngineError: such heads, or a file that is no state dict.
    """
    file = open_weights(path)
    for task in found.heads:
        if task not in file.names:
            has = f"the tensors {', '.join(f'{name:.60}' for name in file.names[:3])}, none of them"
        elif (file.tensor(task).float().norm(dim=1) - 1).abs().max() > UNIT:
            has = f"rows of norm {float(file.tensor(task).float().norm(dim=1).mean()):.4g}, not 1,"
        else:
            continue
        raise ZooError(
            f"{path.name} holds {has} for the task '{task}'; a zoo needs a tensor of that name with rows of norm 1, "
            "and `logit_scale`. Make the zoo with `zoo import --heads` instead."
        )


def _config_file(folder: Path, config: dict[str, Any]) -> Path:
    """Return the file for an architecture of its own, which may be there; one that says something else stays."""
    for name in (CONFIG, "architecture.json"):
        found = read_json(folder / name)
        same = "vision_cfg" in found and filled(found, name)["vision_cfg"] == config["vision_cfg"]
        if same or not (folder / name).exists():
            return folder / name
    raise ZooError(f"{folder / 'architecture.json'} describes another model. Remove it, then call `zoo init` again.")


def describe(path: Path, name: str) -> dict[str, Any]:
    """Return classes of some data: of the catalogue where it knows them, else as the data name or number them.

    Args:
        path: data of any form.
        name: of the task.

    Raises:
        DataError: the data cannot be read.
    """
    try:
        source = read_source(path)
        known = known_classes(source, name)
        labels = source.labels("test") if source.lengths.get("test") and not known else np.zeros(0, np.int64)
    except DataError as error:
        raise DataError(f"data/{path.name}: {error}") from error
    if "dataset" in known:
        return known
    numbered = [f"class {number}" for number in range(max(int(labels.max(initial=1)) + 1, 2))]
    return {"classes": known.get("classes", numbered)}


def _data_of(folder: Path) -> list[Path]:
    """Return data of tasks, by name; folders that hold torchvision's data sets are none."""
    found = sorted((folder / "data").iterdir()) if (folder / "data").is_dir() else []
    return [
        path
        for path in found
        if not path.name.startswith(".") and (path.suffix in DATA if path.is_file() else path.name != DEFAULT_ROOT)
    ]


def _first(folder: Path, stem: str) -> Path | None:
    return next((folder / f"{stem}{ending}" for ending in WEIGHTS if (folder / f"{stem}{ending}").is_file()), None)
