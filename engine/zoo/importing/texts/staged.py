"""Text models about to become a zoo, seen as one, and the zoo's folder written of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ....errors import ZooError
from ....manifest import Task
from ....store.outputs import new_folder
from ....types import Progress
from ....weights import Memory, write_weights
from ...encoders.heads import ACTIVATION, CLASSIFIERS, HEADS_KEY
from ...metadata import describe_model, header_text
from ...texts.config import END, PADDING
from ...texts.data import TextData
from ...texts.families import ANSWERS
from ...texts.plain import plain_config
from ..found import stored_dtype
from ..staged import Staged, Stored, file_of, write_manifest
from .found import TextSurvey

TOKENIZER = "tokenizer.json"
RECORD = "import.json"


def stage(found: TextSurvey, folder: Path, places: Mapping[str, str]) -> Staged:
    """Write zoo.yaml, config, tokenizer and heads, as :func:`..staged.stage` does for images.

    Raises:
        ZooError: no manifest can be written of it.
    """
    manifest = write_manifest(_document(found, places), folder)
    (folder / "config.json").write_text(json.dumps(_config(found), indent=1), "utf-8")
    if found.tokens is not None:
        (folder / TOKENIZER).write_text(found.tokens.text, "utf-8")
    if heads := _heads(found):
        metadata = {HEADS_KEY: CLASSIFIERS, ACTIVATION: found.family.activation}
        write_weights(folder / "heads.safetensors", Memory(heads), metadata=metadata)
    models = {row.name: stored_text(found, row.name) for row in found.rows}
    staged = Staged(folder, manifest, models=models)
    texts = {
        task.name: TextData(Task.model_validate(task.entry), task.table, staged.preprocess, folder)
        for task in found.texts
        if task.table is not None
    }
    return Staged(folder, manifest, models=models, images=texts)  # type: ignore[arg-type]


def stored_text(found: TextSurvey, name: str) -> Stored:
    """Return a model's tensors as they will be stored."""
    weights = found.models[name]
    owner = "The base" if name == "base" else f"Expert '{name}'"
    return Stored(weights, {n: stored_dtype(weights.dtype(n), found.request) for n in weights.names}, owner)


def write_texts(found: TextSurvey, progress: Progress) -> dict[str, Any]:
    """Write the zoo's folder, tensor by tensor.

    Args:
        found: a survey without faults.
        progress: told how far it is.

    Returns:
        The summary, as it is also written beside the zoo.

    Raises:
        ZooError: it cannot be written.
    """
    with new_folder(found.request.folder) as folder:
        staged = stage(found, folder, _bring(found, folder))
        header = header_text(describe_model(staged))
        (folder / "experts").mkdir()
        for number, row in enumerate(found.rows):

            def report(fraction: float, message: str = "", number: int = number, name: str = row.name) -> None:
                progress((number + fraction) / len(found.rows), f"{name}: {message}")

            metadata = {"converted_from": row.layout, "file": Path(row.path).name, **header}
            write_weights(folder / file_of(row), stored_text(found, row.name), None, report, metadata)
        (folder / RECORD).write_text(json.dumps(found.to_json(), indent=1, ensure_ascii=False), "utf-8")
    return found.to_json()


def _config(found: TextSurvey) -> dict[str, Any]:
    """Return the base's config as it was brought, without names of code and of its classes, and what was read."""
    kept = {name: value for name, value in plain_config(found.stated).items() if name not in ("id2label", "label2id")}
    read = ("tie_word_embeddings", "scale_decoder_outputs", END) if found.family.answers else ()
    read = (*read, PADDING) if PADDING in found.config else read
    return {**kept, **{name: found.config[name] for name in read}}


def _heads(found: TextSurvey) -> dict[str, torch.Tensor]:
    heads: dict[str, torch.Tensor] = {}
    for task in found.texts:
        if task.classifier is not None:
            heads |= task.classifier.tensors(task.name)
        elif found.family.answers and task.entry["classes"]:
            count = len(task.entry["classes"])
            heads |= {task.name: torch.eye(count, ANSWERS), f"{task.name}/bias": torch.zeros(count)}
    return heads


def _document(found: TextSurvey, places: Mapping[str, str]) -> dict[str, Any]:
    """Return the document of zoo.yaml."""
    if found.tokens is None:
        raise ZooError("The base was not recognised.")
    request = found.request
    reading: dict[str, Any] = {"vocabulary": TOKENIZER, "length": found.length, "special": list(found.tokens.special)}
    if found.family.answers:
        reading["answers"] = True
    document: dict[str, Any] = {"format": 1, "name": request.name, "title": request.title, "modality": "text"}
    document["backbone"] = {
        "architecture": "config.json",
        "weights": "base.safetensors",
        "tokenisation": reading,
        "origins": {fact.name: f"{fact.value} ({fact.origin})" for fact in found.known},
    }
    document["experts"] = [
        {
            "name": row.name,
            "task": row.task,
            "weights": file_of(row),
            "source": f"{row.layout}: {'/'.join(Path(row.path).parts[-2:])}",
        }
        for row in found.experts
    ]
    document["tasks"] = [
        {**task.entry, **({"data": places[task.name]} if task.name in places else {})} for task in found.texts
    ]
    if _heads(found):
        document["heads"] = "heads.safetensors"
    return document


def _bring(found: TextSurvey, folder: Path) -> dict[str, str]:
    """Copy the tasks' texts into the zoo."""
    places = {}
    for task in found.texts:
        if task.table is None:
            continue
        path, target = task.table.path, Path("data") / task.name
        if path.is_symlink() or (path.is_dir() and any(item.is_symlink() for item in path.rglob("*"))):
            raise ZooError(f"The texts of '{task.name}' hold a symbolic link, which is not followed. Copy the files.")
        target = target.with_name(task.name + path.suffix) if path.is_file() else target
        (folder / "data").mkdir(exist_ok=True)
        try:
            (shutil.copyfile if path.is_file() else shutil.copytree)(path, folder / target)
        except OSError as error:
            raise ZooError(f"The texts of '{task.name}' cannot be copied: {error.strerror}.") from error
        places[task.name] = target.as_posix()
    return places
