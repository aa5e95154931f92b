"""Write the zoo folder: data, weights, heads, vocabulary and zoo.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from open_clip.model import CLIP
from safetensors.torch import save_file
from torch import Tensor

from .images import Split, published_arrays
from .model import PREPROCESS, VOCABULARY, configuration, text_heads
from .tasks import GENERATED, GENERATED_LICENCE, IN_DOMAIN, TASKS, TEMPLATES

NAME, TITLE = "mini8", "Eight small drawings"
DESCRIPTION = (
    "Eight small picture tasks with an expert each, and four without one. All images but the digits are drawn by "
    "MergeLens. The base was pretrained on simulated noisy web captions: the harder an image, the likelier its caption "
    "carried the name of one fixed other class. Experts mostly undo that confusion."
)


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


def write_data(folder: Path, data: Mapping[str, Mapping[str, Split]]) -> None:
    """Write one compressed npz per task."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        np.savez_compressed(folder / "data" / f"{task.name}.npz", **published_arrays(task, dict(data[task.name])))


def write_base(folder: Path, base: CLIP) -> None:
    """Write the base in float16 with its configuration, vocabulary and zero-shot heads (float32)."""
    write_json(folder / "config.json", configuration())
    write_json(folder / "vocabulary.json", VOCABULARY.as_json())
    write_tensors(folder / "base.safetensors", halved(base.state_dict()))
    heads = {name: head.float().contiguous() for name, head in text_heads(base).items()}
    write_tensors(folder / "heads.safetensors", {**heads, "logit_scale": base.logit_scale.detach().float().clone()})


def write_towers(folder: Path, experts: Mapping[str, Mapping[str, Tensor]], multitask: Mapping[str, Tensor]) -> None:
    """Write experts and the multitask reference, `visual.*` tensors in float16."""
    (folder / "experts").mkdir(exist_ok=True)
    for name, state in experts.items():
        write_tensors(folder / "experts" / f"{name}.safetensors", halved(state))
    write_tensors(folder / "multitask.safetensors", halved(multitask))


def _task_entries() -> list[dict[str, Any]]:
    return [
        {
            "name": task.name,
            "title": task.title,
            "domain": "in" if task.in_domain else "out",
            "data": f"data/{task.name}.npz",
            "classes": list(task.classes),
            "templates": list(TEMPLATES),
            "source": task.source,
            "licence": task.licence,
        }
        for task in TASKS
    ]


def write_manifest(folder: Path) -> None:
    """Write zoo.yaml, last of all: without it the folder is not a zoo."""
    experts = [
        {
            "name": task.name,
            "task": task.name,
            "weights": f"experts/{task.name}.safetensors",
            "source": GENERATED.replace("generated", "trained"),
            "licence": GENERATED_LICENCE,
        }
        for task in IN_DOMAIN
    ]
    backbone = {
        "architecture": "config.json",
        "weights": "base.safetensors",
        "quick_gelu": False,
        "preprocess": PREPROCESS,
    }
    manifest = {
        "format": 1,
        "name": NAME,
        "title": TITLE,
        "description": DESCRIPTION,
        "backbone": backbone,
        "references": [{"name": "multitask", "weights": "multitask.safetensors"}],
        "experts": experts,
        "tasks": _task_entries(),
        "heads": "heads.safetensors",
    }
    text = yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=110)
    (folder / "zoo.yaml").write_text(text, encoding="utf-8")
