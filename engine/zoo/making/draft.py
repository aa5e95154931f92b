"""A first zoo.yaml for a folder of files, to be completed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ...catalog.datasets import recognise_dataset
from ...errors import DataError, ZooError
from ...manifest import Manifest
from ...recipe import explain
from ..images.data import read_source
from ..images.readers.installed import DEFAULT_ROOT
from .brought import known_classes

WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
DATA = (".npz", ".parquet", ".csv", ".tsv", ".zip")
TEMPLATES = ["a photo of a {}."]
HEADER = """\
# Written from the files found here. Check above all: the architecture (a name that open_clip knows, or a config.json),
# quick_gelu (true for OpenAI's weights), the class names in head order, and which tasks are out of domain.
"""


def draft_manifest(folder: Path) -> Path:
    """Write ``zoo.yaml`` from what lies in a folder.

    Args:
        folder: holds ``base.*`` (or ``zeroshot.*``), ``experts/NAME.*``, and where there are some ``data/NAME`` (an
            .npz file, a folder or .zip of class folders, parquet, a .csv), ``heads.*`` and ``config.json``.

    Returns:
        The manifest's path.

    Raises:
        EngineError: there is a manifest already, no base or no expert is found, or data cannot be read.
    """
    path = folder / "zoo.yaml"
    if path.exists():
        raise ZooError(f"{path} exists already; nothing was written.")
    base = _first(folder, "base") or _first(folder, "zeroshot")
    experts = sorted(file for file in (folder / "experts").glob("*") if file.suffix in WEIGHTS)
    if base is None or not experts:
        missing = "no base (base.safetensors)" if base is None else "no experts (experts/NAME.safetensors)"
        raise ZooError(f"{folder} holds {missing}. Put the base and the experts there, then call `zoo init` again.")
    document = _document(folder, base, experts)
    try:
        Manifest.model_validate(document)
    except ValueError as error:
        raise ZooError(f"No zoo.yaml can be written from these files: {explain(error, Manifest)}") from error
    path.write_text(HEADER + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110), "utf-8")
    return path


def _document(folder: Path, base: Path, experts: list[Path]) -> dict[str, Any]:
    names = [expert.stem for expert in experts]
    data = {path.stem if path.is_file() else path.name: path for path in _data_of(folder)}
    document: dict[str, Any] = {
        "format": 1,
        "name": folder.resolve().name,
        "title": "",
        "backbone": {
            "architecture": "config.json" if (folder / "config.json").is_file() else "ViT-B-32",
            "weights": base.name,
            "quick_gelu": False,
        },
        "experts": [{"name": file.stem, "task": file.stem, "weights": f"experts/{file.name}"} for file in experts],
        "tasks": [
            {
                "name": name,
                "domain": "in" if name in names else "out",
                "data": f"data/{path.name}",
                **describe(path, name),
            }
            for name, path in data.items()
        ],
    }
    document["tasks"] += [{"name": name, "domain": "in", **_by_name(name)} for name in names if name not in data]
    if heads := _first(folder, "heads"):
        document["heads"] = heads.name
    return document


def describe(path: Path, name: str) -> dict[str, Any]:
    """Return classes and templates of some data: of the catalogue where it knows them, else as the data name them.

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
    return {"classes": known.get("classes", numbered), "templates": TEMPLATES}


def _by_name(name: str) -> dict[str, Any]:
    row = recognise_dataset(name)
    return {"dataset": row.name} if row else {"classes": ["class 0", "class 1"]}


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
