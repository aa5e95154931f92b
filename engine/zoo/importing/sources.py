"""Opening what people bring: a file or a folder → tensors, config documents, and what its form says."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointError
from ...manifest import read_manifest, resolve_inside
from ...types import Weights
from ...weights import PickledFile, SafetensorsFile, is_torch_file
from ..names import looks_like_head
from .documents import CONFIG, read_json
from .roots import ADAPTER, ADAPTERS, SINGLE

INDEXED = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


@dataclass
class Source:
    """One checkpoint as it was brought, nothing of it read but its structure."""

    path: Path
    weights: Weights
    config: dict[str, Any] = field(default_factory=dict)  # config.json beside the weights
    adapter: dict[str, Any] = field(default_factory=dict)  # adapter_config.json
    preprocessor: dict[str, Any] = field(default_factory=dict)  # preprocessor_config.json
    open_clip: tuple[dict[str, Any], str] | None = None  # open_clip's config beside the weights, and its file's name
    files: tuple[Path, ...] = ()  # what was opened
    loose: bool = False  # the configs lie beside a file of some other name, and may be of another model

    @property
    def pickled(self) -> PickledFile | None:
        """Return the pickle's own facts, where the file is a whole pickled module."""
        return self.weights if isinstance(self.weights, PickledFile) and self.weights.whole_module else None


def open_source(path: Path) -> Source:
    """Open a checkpoint file, or a folder with weights and config files.

    Raises:
        CheckpointError: nothing to read, a damaged file, or more than one candidate.
    """
    if path.is_dir():
        return _folder(path)
    sharded = path.name.endswith(".index.json")
    source = _sharded(path) if sharded else Source(path, open_file(path), files=(path,))
    named = path.name in (*SINGLE, *ADAPTERS, *INDEXED)
    found = _with_configs(source, path.parent)
    found.adapter = found.adapter if named else {}
    found.loose = not named
    return found


def open_file(path: Path) -> Weights:
    """Open one weights file by its content; nothing in it is executed.

    Raises:
        CheckpointError: it is missing or is no checkpoint.
    """
    if not path.is_file():
        raise CheckpointError(f"There is no weights file {path}.")
    return PickledFile(path) if is_torch_file(path) else SafetensorsFile(path)


def _folder(folder: Path) -> Source:
    if (folder / "zoo.yaml").is_file():
        path = resolve_inside(folder, read_manifest(folder).backbone.weights)
        return _with_configs(Source(folder, open_file(path), files=(path,)), folder)
    for name in (*ADAPTERS, *SINGLE):
        if (folder / name).is_file():
            path = folder / name
            return _with_configs(Source(folder, open_file(path), files=(path,)), folder)
    for name in INDEXED:
        if (folder / name).is_file():
            return _with_configs(_sharded(folder / name), folder)
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".pt", ".pth", ".bin"))
    found = [path for path in files if not looks_like_head(path)]
    if len(found) != 1:
        what = f"{len(found)} weights files ({', '.join(p.name for p in found[:4])} …)" if found else "no weights file"
        raise CheckpointError(
            f"{folder} holds {what}; model.safetensors, pytorch_model.bin, open_clip_model.safetensors or "
            "adapter_model.safetensors is expected. Name the file itself."
        )
    return _with_configs(Source(folder, open_file(found[0]), files=(found[0],)), folder)


def _with_configs(source: Source, folder: Path) -> Source:
    config = read_json(folder / CONFIG)
    source.open_clip = next(
        (
            (document, name)
            for name, document in (
                ("open_clip_config.json", read_json(folder / "open_clip_config.json")),
                (CONFIG, config),
            )
            if "vision_cfg" in _model_config(document)
        ),
        None,
    )
    source.config = {} if source.open_clip else config
    source.adapter = read_json(folder / ADAPTER) if _may_adapt(source) else {}
    source.preprocessor = read_json(folder / "preprocessor_config.json")
    return source


def _model_config(document: dict[str, Any]) -> dict[str, Any]:
    found = document.get("model_cfg", document)
    return found if isinstance(found, dict) else {}


def _may_adapt(source: Source) -> bool:
    """Return whether weights are an adapter's by name or content; a merged model may keep its adapter's config."""
    named = any(path.name in ADAPTERS for path in source.files)
    return named or any(".lora_" in name for name in source.weights.names)


def _sharded(index: Path) -> Source:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table or len(table) > 100_000:
        raise CheckpointError(f"{index.name} lists no tensors under `weight_map`. Copy it again.")
    files: dict[str, Weights] = {}
    for name in table.values():
        if isinstance(name, str) and name in files:
            continue
        if not isinstance(name, str) or Path(name).name != name or "\0" in name or len(files) > 1000:
            raise CheckpointError(f"{index.name} names the file {name!r:.80}, which does not lie beside it.")
        files[name] = open_file(index.parent / name)
    for tensor, name in table.items():
        if tensor not in files[name].names:
            raise CheckpointError(f"{index.name} says that {tensor:.100} lies in {name}, which does not hold it.")
    paths = tuple(index.parent / name for name in files)
    return Source(index.parent, Joined({tensor: files[name] for tensor, name in table.items()}), files=paths)


@dataclass
class Joined:
    """Weights that lie in several files."""

    owners: dict[str, Weights]  # tensor → the file that holds it

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tensors' names."""
        return tuple(self.owners)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self.owners[name].shape(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the stored dtype of one tensor."""
        return self.owners[name].dtype(name)

    def tensor(self, name: str) -> Tensor:
        """Read one tensor."""
        return self.owners[name].tensor(name)
