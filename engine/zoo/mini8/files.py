"""Write the zoo folder: data, weights, heads, vocabulary and zoo.yaml."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from open_clip.model import CLIP
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from .edition import Edition
from .images import Split, published
from .model import PREPROCESS, text_heads
from .tasks import GENERATED, GENERATED_LICENCE, TEMPLATES, Task

Published = Mapping[str, tuple[np.ndarray, np.ndarray | None]]


def halved(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors rounded to float16, as they are stored."""
    return {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in state.items()}


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file that everybody may read (safetensors itself lets only the owner)."""
    save_file(tensors, path)
    path.chmod(0o644)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write readable JSON."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_data(folder: Path, edition: Edition, data: Mapping[str, Mapping[str, Split]]) -> None:
    """Write the published images of every task."""
    for task in edition.tasks:
        path = folder / "data" / task.name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_images(path, task, published(dict(data[task.name])))


def write_images(path: Path, task: Task, splits: Published) -> None:
    """Write a folder with a parquet shard for each split, in the image layout of Hugging Face's data sets.

    Images are lossless WebP; labels come with the class names, images to adapt on without labels.
    """
    path.mkdir(exist_ok=True)
    for split, (images, labels) in splits.items():
        columns: dict[str, Any] = {"image": [{"bytes": webp(image), "path": None} for image in images]}
        features: dict[str, Any] = {"image": {"_type": "Image"}}
        kinds = {"image": pa.struct({"bytes": pa.binary(), "path": pa.string()})}
        if labels is not None:
            columns["label"], kinds["label"] = labels, pa.int64()
            features["label"] = {"names": list(task.classes), "_type": "ClassLabel"}
        described = json.dumps({"info": {"features": features}})
        schema = pa.schema(list(kinds.items()), metadata={"huggingface": described})
        pq.write_table(pa.table(columns, schema), path / f"{split}-00000-of-00001.parquet", compression="none")


def webp(image: np.ndarray) -> bytes:
    """Return an image, uint8 (height, width, 3), as lossless WebP."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "WEBP", lossless=True, quality=75, method=4, exact=True)
    return buffer.getvalue()


def write_base(folder: Path, edition: Edition, base: CLIP) -> None:
    """Write the base in float16 with its configuration, vocabulary and zero-shot heads (float32)."""
    write_json(folder / "config.json", edition.configuration())
    write_json(folder / "vocabulary.json", edition.vocabulary.as_json())
    write_tensors(folder / "base.safetensors", halved(base.state_dict()))
    heads = {name: head.float().contiguous() for name, head in text_heads(edition, base).items()}
    write_tensors(folder / "heads.safetensors", {**heads, "logit_scale": base.logit_scale.detach().float().clone()})


def write_towers(folder: Path, experts: Mapping[str, Mapping[str, Tensor]], multitask: Mapping[str, Tensor]) -> None:
    """Write experts and the multitask reference, `visual.*` tensors in float16."""
    (folder / "experts").mkdir(exist_ok=True)
    for name, state in experts.items():
        write_tensors(folder / "experts" / f"{name}.safetensors", halved(state))
    write_tensors(folder / "multitask.safetensors", halved(multitask))


def _task_entry(task: Task) -> dict[str, Any]:
    shifted = {"shifted_from": task.shifted_from} if task.shifted_from else {}
    return {
        "name": task.name,
        "title": task.title,
        "domain": "in" if task.in_domain else "out",
        **shifted,
        "data": f"data/{task.name}",
        "classes": list(task.classes),
        "templates": list(TEMPLATES),
        "source": task.source,
        "licence": task.licence,
    }


def write_manifest(folder: Path, edition: Edition) -> None:
    """Write zoo.yaml, last of all: without it the folder is not a zoo."""
    experts = [
        {
            "name": task.name,
            "task": task.name,
            "weights": f"experts/{task.name}.safetensors",
            "source": GENERATED.replace("generated", "trained"),
            "licence": GENERATED_LICENCE,
        }
        for task in edition.in_domain
    ]
    backbone = {
        "architecture": "config.json",
        "weights": "base.safetensors",
        "quick_gelu": False,
        "preprocess": PREPROCESS,
    }
    manifest = {
        "format": 1,
        "name": edition.name,
        "title": edition.title,
        "description": edition.description,
        "backbone": backbone,
        "references": [{"name": "multitask", "weights": "multitask.safetensors"}],
        "experts": experts,
        "tasks": [_task_entry(task) for task in edition.tasks],
        "heads": "heads.safetensors",
    }
    text = yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=110)
    (folder / "zoo.yaml").write_text(text, encoding="utf-8")
