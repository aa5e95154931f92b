"""A merged text model as a folder that transformers loads: weights under published names, config, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import EngineError, nearest
from ...manifest import resolve_inside
from ...store.outputs import new_folder
from ...types import Progress, Weights
from ...weights import write_weights
from ...zoo.encoders.architecture import architecture
from ...zoo.encoders.heads import ZeroShotHead
from ...zoo.folder import Zoo
from ...zoo.texts.families import FAMILIES, Family
from ...zoo.texts.grades import number_head
from ...zoo.texts.plain import plain_config
from .card import TEXT
from .model import Digest, merged_weights, write_beside

FILE = "model.safetensors"
ROLES = ("pad_token", "cls_token", "sep_token", "mask_token", "unk_token")


@dataclass(frozen=True)
class Renamed:
    """Weights under published names, and a classifier's layers beside them."""

    weights: Weights
    stored: Mapping[str, str]  # published name → canonical name
    layers: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the published names."""
        return (*self.stored, *self.layers)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return tuple(self.layers[name].shape) if name in self.layers else self.weights.shape(self.stored[name])

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of one tensor."""
        return self.layers[name].dtype if name in self.layers else self.weights.dtype(self.stored[name])

    def tensor(self, name: str) -> Tensor:
        """Read one tensor."""
        return self.layers[name].clone() if name in self.layers else self.weights.tensor(self.stored[name])


def export_text(
    run: Path, out: Path, layout: str, digest: Digest, zoo: Zoo, task: str | None, progress: Progress | None
) -> dict[str, str]:
    """Write a run's merged text model as a folder; ``task`` names the expert whose classifier goes with it.

    Returns:
        File → what it is.

    Raises:
        EngineError: another layout than transformers', or as :func:`write_text_model`.
    """
    if layout != "hf":
        raise EngineError(f"Text models are exported for transformers (hf); there is no '{layout}' of them.")
    static = (run / "merged.safetensors").is_file()
    weights = merged_weights(run, zoo, None if static else task)
    with new_folder(out) as folder:
        files = write_text_model(folder, weights, zoo, architecture(zoo.folder, zoo.manifest), task, progress)
        return write_beside(folder, run, zoo, TEXT, digest, files, None if static else task)


def write_text_model(
    folder: Path,
    weights: Weights,
    zoo: Zoo,
    config: Mapping[str, Any],
    task: str | None,
    progress: Progress | None,
) -> dict[str, str]:
    """Write a merged text model.

    Args:
        folder: an existing folder.
        weights: the merged tensors under canonical names.
        zoo: that it was merged from; gives classifier and tokenizer.
        config: the backbone's.
        task: whose classifier is written with it; None writes the encoder alone. A T5 and a GPT-2 have none.
        progress: told how far it is.

    Returns:
        File → what it is.

    Raises:
        EngineError: the task has no classifier, or the zoo's words are not of a published tokenizer.
    """
    family = FAMILIES[config["model_type"]]
    head = _head(zoo, family, task)
    stored = {family.published + name.removeprefix(family.layout.prefix): name for name in weights.names}
    layers = {} if head is None else _layers(head, family, zoo.manifest.task_table[str(task)].grades)
    write_weights(folder / FILE, Renamed(weights, stored, layers), progress=progress, metadata={"format": "pt"})
    _write(folder / "config.json", _config(zoo, config, family, task if head is not None else None))
    said = f"the merged {family.title}" + (f" with the classifier of {task}'s expert" if head is not None else "")
    files = {FILE: said, "config.json": "its architecture"}
    return files | _tokenizer(folder, zoo, family)


def _head(zoo: Zoo, family: Family, task: str | None) -> ZeroShotHead | None:
    if task is None or not family.classifier:
        return None
    known = zoo.manifest.task_table
    if task not in known:
        raise EngineError(f"The zoo '{zoo.manifest.name}' has no task '{task}'. {nearest(task, known)}")
    head = zoo.heads([task])[0][task]
    if head.affine is None:
        raise EngineError(
            f"The head of '{task}' compares directions of unit features (a zero-shot head), which no classifier of "
            f"transformers does. Leave the task out: the encoder is written, and heads lie beside it."
        )
    return head


def _layers(head: ZeroShotHead, family: Family, grades: Sequence[float]) -> dict[str, Tensor]:
    affine = head.affine
    weight, bias = number_head(head.weight, affine.bias, grades) if grades else (head.weight, affine.bias)
    found = {f"{family.classifier}.weight": weight, f"{family.classifier}.bias": bias}
    if affine.dense is not None:
        found |= {f"{family.dense}.weight": affine.dense, f"{family.dense}.bias": affine.offset}
    return found


def _config(zoo: Zoo, config: Mapping[str, Any], family: Family, task: str | None) -> dict[str, Any]:
    found = {**plain_config(config), "architectures": [family.made_with_head if task else family.made]}
    found = {name: value for name, value in found.items() if name not in ("dtype", "torch_dtype", "num_labels")}
    if task and zoo.manifest.task_table[task].grades:
        found |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    elif task:
        classes = zoo.manifest.task_table[task].classes
        found |= {"id2label": {str(number): name for number, name in enumerate(classes)}}
        found |= {"label2id": {name: number for number, name in enumerate(classes)}}
    return found


def _tokenizer(folder: Path, zoo: Zoo, family: Family) -> dict[str, str]:
    """Write the zoo's tokenizer, or its words."""
    stated = zoo.manifest.backbone.tokenisation
    file = resolve_inside(zoo.folder, stated.vocabulary)
    text = file.read_text("utf-8")
    if stated.special is None:
        (folder / file.name).write_text(text, "utf-8")
        return {file.name: "its words, one an id: texts are cut into lower-case words and marks"}
    (folder / "tokenizer.json").write_text(text, "utf-8")
    words = {number: word for word, number in _words(json.loads(text)).items()}
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": stated.length}
    settings |= {role: words[n] for role, n in zip(ROLES, stated.special, strict=True) if n in words}
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    if not family.segments:
        settings["model_input_names"].remove("token_type_ids")
    _write(folder / "tokenizer_config.json", settings)
    return {"tokenizer.json": "its words", "tokenizer_config.json": "its special words"}


def _words(document: Mapping[str, Any]) -> dict[str, int]:
    """Return the words of a tokenizer file with their ids, special ones included."""
    table = document.get("model", {}).get("vocab", {})
    found = {str(entry[0]): n for n, entry in enumerate(table)} if isinstance(table, list) else dict(table)
    return found | {part["content"]: part["id"] for part in document.get("added_tokens", ())}


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
