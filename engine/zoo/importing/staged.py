"""Checkpoints about to become a zoo, seen as one: the manifest and small files are written, weights are not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from ...errors import CheckpointError, ZooError
from ...manifest import Manifest, Task
from ...recipe import explain
from ...types import Weights
from ...weights import Memory, write_weights
from ..encoders.architecture import VOCABULARY
from ..encoders.heads import DEFAULT_LOGIT_SCALE, ZeroShotHead
from ..encoders.text import build_heads, text_problem
from ..folder import Zoo
from ..images.data import ImageData
from .found import Row, Survey, stored_dtype
from .sources import Joined


@dataclass(frozen=True)
class Staged(Zoo):
    """A zoo whose weights and images still lie where they were brought from."""

    models: Mapping[str, Weights] = field(default_factory=dict)
    text: Weights | None = None
    images: Mapping[str, ImageData] = field(default_factory=dict)

    @cached_property
    def data(self) -> Mapping[str, ImageData]:
        """Return the data of every task that has images here."""
        return self.images

    @cached_property
    def text_problem(self) -> str:
        """Return why the base's text encoder gives no heads; '' where it can."""
        return text_problem(self.folder, self.manifest, self.text or Memory({}))

    def open_data(self, task: str) -> ImageData | None:
        """Return the data of one task, None where none lie here."""
        return self.images.get(task)

    def weights(self, model: str) -> Weights:
        """Return the tensors of the base or an expert, as they will be stored."""
        return self.models[model]

    def heads(self, tasks: list[str]) -> tuple[dict[str, ZeroShotHead], list[str]]:
        """Return the heads of some tasks, built from the base's text encoder where none are brought."""
        if self.manifest.heads is not None:
            return super().heads(tasks)
        built = build_heads(self.folder, self.manifest, tasks, lambda fraction, message="": None, base=self.text)
        return {task: ZeroShotHead(weight, DEFAULT_LOGIT_SCALE) for task, weight in built.items()}, []


@dataclass(frozen=True)
class Stored:
    """Weights in the dtype in which they will be stored.

    A value that becomes infinite by that is refused, because it was finite before.
    """

    weights: Weights
    dtypes: Mapping[str, torch.dtype]
    owner: str

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tensors' names."""
        return self.weights.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self.weights.shape(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype in which one tensor will be stored."""
        return self.dtypes[name]

    def tensor(self, name: str) -> Tensor:
        """Return one tensor.

        Raises:
            CheckpointError: it holds NaN or an infinity, or would by being stored.
        """
        tensor = self.weights.tensor(name)
        if not tensor.is_floating_point():
            return tensor
        stored = tensor.to(self.dtypes[name])
        if stored.sum(dtype=torch.float64).isfinite():
            return stored
        missing, infinite = int(tensor.isnan().sum()), int(tensor.isinf().sum())
        if missing or infinite:
            raise CheckpointError(
                f"{self.owner} has {missing:,} NaN and {infinite:,} infinite values of {tensor.numel():,} in "
                f"{name}. Its training diverged or the file is damaged; choose another checkpoint."
            )
        if not torch.isfinite(stored).all():
            kind = str(self.dtypes[name]).removeprefix("torch.")
            raise CheckpointError(
                f"{self.owner} has values up to {float(tensor.abs().max()):.4g} in {name}, which {kind} cannot hold. "
                "Store it in float32 or bfloat16."
            )
        return stored


def stored(found: Survey, row: Row) -> Stored:
    """Return a row's tensors as they will be stored, the base's text encoder with it."""
    weights = found.models[row.name]
    if row.role == "base" and found.text is not None:
        weights = Joined({**dict.fromkeys(weights.names, weights), **dict.fromkeys(found.text.names, found.text)})
    owner = "The base" if row.role == "base" else f"Expert '{row.name}'"
    return Stored(weights, {name: stored_dtype(weights.dtype(name), found.request) for name in weights.names}, owner)


def stage(found: Survey, folder: Path, places: Mapping[str, str]) -> Staged:
    """Write zoo.yaml, config and heads, and return the zoo as it will be.

    Args:
        found: a survey without faults.
        folder: an empty folder.
        places: task → what the manifest names as its data.

    Raises:
        ZooError: no manifest can be written of it.
    """
    manifest = write_manifest(_document(found, folder, places), folder)
    if found.heads:
        heads = {task: head.rows for task, head in found.heads.items()}
        heads["logit_scale"] = torch.tensor(found.log_scale)
        write_weights(folder / "heads.safetensors", Memory(heads))
    models = {row.name: stored(found, row) for row in found.rows if row.role != "head"}
    visual = {name: _visual(weights) for name, weights in models.items()}
    return Staged(folder, manifest, models=visual, text=found.text, images=images_of(found))


def write_manifest(document: Mapping[str, Any], folder: Path) -> Manifest:
    """Write zoo.yaml into a folder, and return the manifest.

    Raises:
        ZooError: the document is none.
    """
    try:
        manifest = Manifest.model_validate(document)
    except ValueError as error:
        raise ZooError(f"No zoo can be made of this: {explain(error, Manifest)}") from error
    text = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=120)
    (folder / "zoo.yaml").write_text(text, "utf-8")
    return manifest


def images_of(found: Survey) -> dict[str, ImageData]:
    """Return the images that were brought, by task, with the classes that the manifest will list."""
    preprocess = found.architecture.preprocess if found.architecture else None
    read = (lambda: preprocess) if preprocess is not None else None
    return {
        task.name: ImageData(Task.model_validate(task.entry), task.images.source, read)
        for task in found.tasks
        if task.images is not None
    }


def _visual(weights: Stored) -> Weights:
    own = weights.weights
    names = [name for name in own.names if name.startswith("visual.")]
    return Stored(Joined(dict.fromkeys(names, own)), weights.dtypes, weights.owner)


def file_of(row: Row) -> str:
    """Return where a model lies in the zoo folder."""
    return "base.safetensors" if row.role == "base" else f"experts/{row.name}.safetensors"


def _document(found: Survey, folder: Path, places: Mapping[str, str]) -> dict[str, Any]:
    """Return the document of zoo.yaml."""
    request = found.request
    document: dict[str, Any] = {"format": 1, "name": request.name, "title": request.title}
    document["backbone"] = _backbone(found, folder)
    document["experts"] = [
        {
            "name": row.name,
            "task": row.task,
            "weights": file_of(row),
            "source": f"{row.layout}: {'/'.join(Path(row.path).parts[-2:])}",
        }
        for row in found.experts
    ]
    if found.tasks:
        entries = [
            {**task.entry, **({"data": places[task.name]} if task.name in places else {})} for task in found.tasks
        ]
        document["tasks"] = entries
    if found.heads:
        document["heads"] = "heads.safetensors"
    return document


def _backbone(found: Survey, folder: Path) -> dict[str, Any]:
    architecture = found.architecture
    if architecture is None or architecture.preprocess is None or found.base is None:
        raise ZooError("The base was not recognised.")
    name = architecture.name
    if not name:
        name = "config.json"
        (folder / name).write_text(json.dumps(architecture.config, indent=1), "utf-8")
        words = found.base.files[0].parent / VOCABULARY
        if words.is_file():
            (folder / VOCABULARY).write_bytes(words.read_bytes())
    return {
        "architecture": name,
        "weights": "base.safetensors",
        "quick_gelu": bool(architecture.config["quick_gelu"]),
        "preprocess": architecture.preprocess.model_dump(mode="json"),
        "origins": {fact.name: f"{fact.value} ({fact.origin})" for fact in found.known},
    }
