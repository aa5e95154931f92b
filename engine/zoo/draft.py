"""A first zoo.yaml for a folder of files, to be completed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ..errors import ZooError
from ..manifest import read_manifest
from .data import open_task

WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
HEADER = """\
# Written from the files found here. Check above all: the architecture (a name that open_clip knows, or a config.json),
# quick_gelu (true for OpenAI's weights), the class names in head order, and which tasks are out of domain.
"""


def draft_manifest(folder: Path) -> Path:
    """Write ``zoo.yaml`` from what lies in a folder.

    Args:
        folder: holds ``base.*`` (or ``zeroshot.*``), ``experts/NAME.*``, and where there are some ``data/NAME.npz``,
            ``heads.*`` and ``config.json``.

    Returns:
        The manifest's path.

    Raises:
        ZooError: there is a manifest already, or no base or no expert is found.
    """
    path = folder / "zoo.yaml"
    if path.exists():
        raise ZooError(f"{path} exists already; nothing was written.")
    base = _first(folder, "base") or _first(folder, "zeroshot")
    experts = sorted(file for file in (folder / "experts").glob("*") if file.suffix in WEIGHTS)
    if base is None or not experts:
        missing = "no base (base.safetensors)" if base is None else "no experts (experts/NAME.safetensors)"
        raise ZooError(f"{folder} holds {missing}. Put the base and the experts there, then call `zoo init` again.")
    path.write_text(HEADER + yaml.safe_dump(_document(folder, base, experts), sort_keys=False, allow_unicode=True))
    try:
        _count_classes(folder, path)
    except ZooError:
        path.unlink()
        raise
    return path


def _document(folder: Path, base: Path, experts: list[Path]) -> dict[str, Any]:
    names = [expert.stem for expert in experts]
    data = sorted((folder / "data").glob("*.npz"))
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
                "name": file.stem,
                "domain": "in" if file.stem in names else "out",
                "data": f"data/{file.name}",
                "classes": ["class 0", "class 1"],
                "templates": ["a photo of a {}."],
            }
            for file in data
        ],
    }
    listed = {file.stem for file in data}
    document["tasks"] += [
        {"name": name, "domain": "in", "classes": ["class 0", "class 1"]} for name in names if name not in listed
    ]
    if heads := _first(folder, "heads"):
        document["heads"] = heads.name
    return document


def _count_classes(folder: Path, path: Path) -> None:
    """Replace the two placeholder classes by as many as the labels of each task need."""
    document = yaml.safe_load(path.read_text())
    manifest = read_manifest(folder)
    for entry in document["tasks"]:
        if "data" in entry:
            many = manifest.task_table[entry["name"]].model_copy(
                update={"classes": tuple(f"class {number}" for number in range(100_000))}
            )
            count = int(open_task(folder, many).labels("test").max()) + 1
            entry["classes"] = [f"class {number}" for number in range(max(count, 2))]
    path.write_text(HEADER + yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def _first(folder: Path, stem: str) -> Path | None:
    return next((folder / f"{stem}{ending}" for ending in WEIGHTS if (folder / f"{stem}{ending}").is_file()), None)
