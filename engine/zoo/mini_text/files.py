"""Write the zoo folder: sentences, weights, heads, vocabulary and zoo.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from ..encoders.heads import HEADS_KEY
from ..texts.words import Words
from .model import LENGTH, SCALE, State, configuration
from .pretrain import Pretrained
from .sentences import Split
from .tasks import GENERATED, IN_DOMAIN, LICENCE, TASKS

NAME, TITLE = "mini_text", "Seven kinds of sentences"
DESCRIPTION = (
    "Seven tasks on short sentences with an expert each, and three without one. All sentences are written by grammars "
    "of MergeLens. The base was pretrained on masked words and on labels of a hasty annotator, who reads words and not "
    "how they belong together. Experts learn to read sentences."
)
PUBLISHED = ("test", "adapt", "val")


def halved(state: Mapping[str, Tensor]) -> State:
    """Return the tensors rounded to float16, as they are stored."""
    return {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in state.items()}


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file that everybody may read (safetensors itself lets only the owner)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata)
    path.chmod(0o644)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write readable JSON."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_data(folder: Path, data: Mapping[str, Mapping[str, Split]]) -> None:
    """Write a folder a task with a parquet shard for each split; labels of the adaptation split stay unknown."""
    for task, splits in data.items():
        place = folder / "data" / task
        place.mkdir(parents=True, exist_ok=True)
        for name in PUBLISHED:
            write_split(place, name, splits[name])


def write_split(place: Path, name: str, split: Split) -> None:
    """Write one split of a task as a parquet shard."""
    texts, seconds = zip(*split.texts, strict=True)
    columns: dict[str, Any] = {"text": texts}
    if any(seconds):
        columns["text_pair"] = seconds
    if name != "adapt":
        columns["label"] = split.labels
    path = place / f"{name}-00000-of-00001.parquet"
    pq.write_table(pa.table(columns), path, compression="zstd", compression_level=19)


def write_base(folder: Path, base: Pretrained, state: State, words: Words) -> None:
    """Write the base in float16 with its configuration, vocabulary and heads (float32)."""
    write_json(folder / "config.json", configuration(len(words)))
    write_json(folder / "vocabulary.json", words.as_json())
    write_tensors(folder / "base.safetensors", halved(state))
    heads = {name: head.float().contiguous() for name, head in base.heads.items()}
    scale = torch.tensor(SCALE).log()
    write_tensors(folder / "heads.safetensors", {**heads, "logit_scale": scale}, {HEADS_KEY: "pretraining"})


def write_models(folder: Path, experts: Mapping[str, State], multitask: State) -> None:
    """Write experts and the joint reference, `bert.*` tensors in float16."""
    for name, state in experts.items():
        write_tensors(folder / "experts" / f"{name}.safetensors", halved(state))
    write_tensors(folder / "multitask.safetensors", halved(multitask))


def write_manifest(folder: Path) -> None:
    """Write zoo.yaml, last of all: without it the folder is not a zoo."""
    manifest = {
        "format": 1,
        "name": NAME,
        "title": TITLE,
        "description": DESCRIPTION,
        "modality": "text",
        "backbone": {
            "architecture": "config.json",
            "weights": "base.safetensors",
            "tokenisation": {"vocabulary": "vocabulary.json", "length": LENGTH},
        },
        "references": [{"name": "multitask", "weights": "multitask.safetensors"}],
        "experts": [
            {
                "name": task.name,
                "task": task.name,
                "weights": f"experts/{task.name}.safetensors",
                "source": "trained by MergeLens",
                "licence": LICENCE,
            }
            for task in IN_DOMAIN
        ],
        "tasks": [
            {
                "name": task.name,
                "title": task.title,
                "domain": "in" if task.in_domain else "out",
                "data": f"data/{task.name}",
                "classes": list(task.classes),
                "source": GENERATED,
                "licence": LICENCE,
            }
            for task in TASKS
        ],
        "heads": "heads.safetensors",
    }
    text = yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=110)
    (folder / "zoo.yaml").write_text(text, encoding="utf-8")
